# SPDX-License-Identifier: Apache-2.0
"""Which part of each tensor is loaded, and where its bytes are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import EllipsisType
from typing import Any, Literal, NamedTuple

from pinning.errors import ArgumentError, InvalidRangeError, LayoutError
from pinning.files.header import TensorInfo
from pinning.interop.dtypes import DTYPES
from pinning.runtime.arguments import describe, integer

Index = EllipsisType | slice | tuple[EllipsisType | slice, ...] | None
IndexOf = Callable[[str, tuple[int, ...], str], Index]
Plan = IndexOf | Mapping[str, Any]  # of Index or IndexOf: a dict with both is inferred as one of object


class Piece(NamedTuple):
    """A wanted part of a tensor: loaded as `tensor`, whose bytes are `rows` ranges of the file, `pitch` bytes apart."""

    tensor: TensorInfo
    rows: int
    pitch: int


def shard(dim: int, rank: int, of: int, uneven: Literal["last"] | None = None) -> IndexOf:
    """One rank's part of each tensor, divided as in tensor parallelism.

    Parameters
    ----------
    dim : int
        The dimension that is divided; negative: counted from the last.
    rank : int
        The number of the part, from 0 on.
    of : int
        The number of parts.
    uneven : {None, "last"}
        If the dimension cannot be divided evenly. None: an error. ``"last"``: the length of a part is rounded up, and
        the last parts are shorter or empty, as in ``torch.chunk`` and DTensor.

    Returns
    -------
    callable
        For `load_file`, as its `slices` or as one of their values.

    Raises
    ------
    InvalidRangeError
        There is no such rank, or `of` is below 1. From the result, when called: a tensor has no such dimension, or it
        cannot be divided.
    """
    dim, of = integer(dim, "dim", "a dimension"), integer(of, "of", "a number of parts")
    rank = integer(rank, "rank", "that of a part")
    if of < 1:
        raise InvalidRangeError(f"of is {of}; it must be at least 1")
    if not 0 <= rank < of:
        raise InvalidRangeError(f"rank is {rank} of {of}; it must be at least 0 and less than the number of parts")
    if uneven not in (None, "last"):
        raise ArgumentError(f"uneven is {describe(uneven)}; it must be None or 'last'")

    def part(name: str, shape: tuple[int, ...], dtype: str) -> Index:
        if not -len(shape) <= dim < len(shape):
            raise InvalidRangeError(f"the tensor {name!r} has the shape {shape}, without a dimension {dim}")
        length, at = shape[dim], dim % len(shape)
        if length % of and uneven is None:
            raise InvalidRangeError(
                f"the tensor {name!r} has the shape {shape}: dimension {dim}, of {length}, cannot be divided by {of}; "
                "give uneven='last' for last parts that are shorter"
            )
        each = -(-length // of)
        return (slice(None),) * at + (slice(min(rank * each, length), min(rank * each + each, length)),)

    return part


def pieces_of(tensors: Iterable[TensorInfo], plan: Plan | None) -> Iterator[Piece]:
    """The pieces that a plan selects, in the order of the file; None: all of each tensor.

    Raises TypeError if a value is not a slice, InvalidRangeError if it lies outside its tensor, LayoutError if it is
    not a whole number of bytes.
    """
    for tensor in tensors:
        index: Any = ... if plan is None else plan.get(tensor.name) if isinstance(plan, Mapping) else plan
        while callable(index):
            index = index(tensor.name, tensor.shape, tensor.dtype)
        if index is not None:
            yield _piece(tensor, index)


def check_plan(plan: Any, name: str) -> None:
    """Raise TypeError if `plan` is not a plan."""
    if plan is not None and not callable(plan) and not isinstance(plan, Mapping):
        raise TypeError(
            f"{name} is {describe(plan)}; it must be a dict of slices by the tensors' names, or a function of name, "
            "shape and dtype"
        )


def _piece(tensor: TensorInfo, index: Any) -> Piece:
    named = f"the slice of the tensor {tensor.name!r}"
    dim, start, stop = _cut(tensor, index, named)
    if dim is None:
        return Piece(tensor, 1, 0)
    shape = (*tensor.shape[:dim], stop - start, *tensor.shape[dim + 1 :])
    bits = DTYPES[tensor.dtype].bits * math.prod(tensor.shape[dim + 1 :])  # of one step of that dimension
    rows = math.prod(tensor.shape[:dim])
    if not rows * bits * (stop - start):
        return Piece(tensor._replace(shape=shape, nbytes=0), 1, 0)
    if start * bits % 8 or stop * bits % 8 or (rows > 1 and tensor.shape[dim] * bits % 8):
        raise LayoutError(
            f"{named}, of {tensor.dtype} and shape {tensor.shape}, from {start} to {stop} of dimension {dim} begins or "
            "ends inside a byte; cut it elsewhere, or another dimension"
        )
    pitch, row = tensor.shape[dim] * bits // 8, (stop - start) * bits // 8
    begin = tensor.begin + start * bits // 8
    if row == pitch:
        rows, row = 1, rows * row
    return Piece(tensor._replace(shape=shape, begin=begin, nbytes=rows * row), rows, pitch)


def _cut(tensor: TensorInfo, index: Any, named: str) -> tuple[int | None, int, int]:
    """The dimension that is sliced (None: none), the start and the stop."""
    indexes = index if isinstance(index, tuple) else (index,)
    if not all(each is ... or isinstance(each, slice) for each in indexes):
        raise TypeError(
            f"{named} is {describe(index)}; it must be None, a slice, or a tuple of slices such as numpy.s_[:, 2:4]"
        )
    dims = len(tensor.shape)
    given = [each for each in indexes if each is not ...]
    if len(given) > dims or len(indexes) - len(given) > 1:
        raise InvalidRangeError(f"{named} is {index}, of more dimensions than its shape {tensor.shape} has")
    skipped = dims - len(given) if ... in indexes else 0
    ahead = indexes.index(...) if skipped else dims
    found: tuple[int | None, int, int] = None, 0, 0
    for i, each in enumerate(given):
        dim = i if i < ahead else i + skipped
        length = tensor.shape[dim]
        first = 0 if each.start is None else integer(each.start, f"the start of {named}", "an index")
        last = length if each.stop is None else integer(each.stop, f"the stop of {named}", "an index")
        first, last = (at + length if at < 0 else at for at in (first, last))
        if each.step not in (None, 1) or not 0 <= first <= last <= length:
            raise InvalidRangeError(
                f"{named} is {index}, and its shape {tensor.shape}; slices must have step 1 and lie within the shape"
            )
        if (first, last) == (0, length):
            continue
        if found[0] is not None:
            raise InvalidRangeError(f"{named} is {index}, of two dimensions; only one can be sliced")
        found = dim, first, last
    return found

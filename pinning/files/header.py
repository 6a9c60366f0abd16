# SPDX-License-Identifier: Apache-2.0
"""Headers of safetensors files: parsed and checked, or built.

A file is the length of the header (8 bytes, little endian), the header, and the tensors' bytes. The header is a JSON
object: ``dtype``, ``shape`` and ``data_offsets`` of each tensor, and strings by name in ``__metadata__``. The tensors
fill the rest of the file, with no holes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy

from pinning.errors import FileFormatError, LayoutError
from pinning.interop.dtypes import DTYPES

_RANKS = {dtype: rank for rank, dtype in enumerate(DTYPES)}
LONGEST = 100_000_000  # bytes of a header, as in the format's own library
_MOST_DIMENSIONS = 64  # of any library's arrays
_TOP = 1 << 66  # bits; no array has so many
_METADATA = "__metadata__"


class TensorInfo(NamedTuple):
    """A tensor in a file; `begin` is the offset of its first byte in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    nbytes: int


def numpy_dtype_of(tensor: TensorInfo, library: str = "NumPy") -> numpy.dtype[Any]:
    """The dtype for a library with NumPy's dtypes. Raises FileFormatError if these lack the tensor's."""
    known = DTYPES[tensor.dtype]
    if known.numpy is None:
        others = "framework='dlpack', for tensors of any dtype" + (", or 'torch'" if known.torch else "")
        raise FileFormatError(
            f"the tensor {tensor.name!r} is of dtype {tensor.dtype}, which {library} has not: give {others}"
        )
    return numpy.dtype(known.numpy)


class Header(NamedTuple):
    """The contents of a header; `tensors` in the order of their bytes."""

    tensors: list[TensorInfo]
    metadata: dict[str, str]


class _HeaderError(Exception):
    """A header is wrong; the message says how."""


def length_of(first: bytes, file_bytes: int, path: str) -> int:
    """The length of the header, from the first 8 bytes of a file of `file_bytes` bytes. Raises FileFormatError."""
    if len(first) < 8:
        _refuse(path, f"it has {file_bytes} bytes, and the length of its header alone is 8")
    length = int.from_bytes(first[:8], "little")
    if length > LONGEST:
        _refuse(path, f"its first 8 bytes say that its header has {length} bytes; at most {LONGEST} are allowed")
    if length < 2:
        _refuse(path, f"its first 8 bytes say that its header has {length} bytes, which hold no JSON object")
    if 8 + length > file_bytes:
        _refuse(path, f"its header ends at byte {8 + length}, and the file at {file_bytes}: it is truncated, or none")
    return length


def parse(text: bytes, file_bytes: int, path: str) -> Header:
    """Parse the header of a file of `file_bytes` bytes. Raises FileFormatError if it is malformed or inconsistent."""
    try:
        content = _loaded(text)
        metadata = _metadata(content.pop(_METADATA, {}))
        start = 8 + len(text)
        tensors = sorted((_tensor(*each, start, file_bytes) for each in content.items()), key=lambda each: each[3:])
        _check_no_holes(tensors, start, file_bytes)
    except _HeaderError as wrong:
        _refuse(path, str(wrong))
    return Header(tensors, metadata)


def _loaded(text: bytes) -> dict[str, Any]:
    if text[:1] != b"{":
        raise _HeaderError(f"its header begins with {text[:8]!r}, instead of the brace of a JSON object")
    try:
        content = json.loads(text.decode("utf-8"), object_pairs_hook=_without_twins, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise _HeaderError(f"its header is not UTF-8: {error.reason} at byte {8 + error.start}") from None
    except RecursionError:
        raise _HeaderError("its header is nested too deep") from None
    except ValueError as error:  # invalid JSON, or a number of thousands of digits
        raise _HeaderError(f"its header is not JSON: {error}") from None
    assert isinstance(content, dict)  # because it begins with a brace
    if b"\\u" in text and (half := lone_surrogate(content)):
        raise _HeaderError(f"its header is not UTF-8: it contains {half}, an unpaired surrogate")
    return content


def lone_surrogate(content: Any) -> str | None:
    """An unpaired surrogate, such as ``\\ud800``, which JSON can express and UTF-8 cannot; None if there is none."""
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return ascii(error.object[error.start])
    return None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        twin = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise _HeaderError(f"its header has the name {_short(twin)} twice")
    return values


def _no_constant(name: str) -> NoReturn:
    raise _HeaderError(f"its header has {name} in it, which is not JSON")


def _metadata(content: Any) -> dict[str, str]:
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise _HeaderError(f"its {_METADATA} is {_short(content)}; it must be an object of strings")
    return content


def _tensor(name: str, entry: Any, start: int, file_bytes: int) -> TensorInfo:
    what = f"its tensor {_short(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _HeaderError(f"{what} is {_short(entry)}; it must be an object of dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _HeaderError(f"{what} has the dtype {_short(dtype)}; those known are {', '.join(DTYPES)}")
    if not _are_lengths(shape):
        raise _HeaderError(f"{what} has the shape {_short(shape)}; it must be a list of whole numbers from 0 on")
    if not _are_lengths(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _HeaderError(f"{what} has the data_offsets {_short(offsets)}; they must be two whole numbers in order")
    begin, end = offsets
    if start + end > file_bytes:
        raise _HeaderError(
            f"{what} ends at byte {_short(end)} behind its header, and the file at {file_bytes - start}: the file is "
            "truncated, or the header is wrong"
        )
    if len(shape) > _MOST_DIMENSIONS:
        raise _HeaderError(f"{what} has {len(shape)} dimensions; at most {_MOST_DIMENSIONS} are allowed")
    nbytes = _nbytes(dtype, shape, what)
    if nbytes != end - begin:
        raise _HeaderError(f"{what} of {dtype} and shape {_short(shape)} has {nbytes} bytes, and its data_offsets are "
                       f"{end - begin} apart")  # fmt: skip
    return TensorInfo(name, dtype, tuple(shape), start + begin, nbytes)


def _are_lengths(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)


def _nbytes(dtype: str, shape: Sequence[int], what: str) -> int:
    bits = DTYPES[dtype].bits
    for length in shape:
        bits *= length or 1  # an array without elements has strides too
        if bits >= _TOP:
            raise _HeaderError(f"{what} has the shape {_short(list(shape))}, with more bytes than any memory has")
    if 0 in shape:
        return 0
    if bits % 8:
        raise _HeaderError(
            f"{what} of {dtype} and shape {_short(list(shape))} has {bits} bits: not a whole number of bytes"
        )
    return bits // 8


def _check_no_holes(tensors: Iterable[TensorInfo], start: int, file_bytes: int) -> None:
    at, before = start, "its header"
    for tensor in tensors:
        if tensor.begin != at:
            how = "inside" if tensor.begin < at else f"{tensor.begin - at} bytes behind the end of"
            raise _HeaderError(f"its tensor {_short(tensor.name)} begins {how} {before}; they must follow one another")
        at, before = tensor.begin + tensor.nbytes, f"its tensor {_short(tensor.name)}"
    if at != file_bytes:
        raise _HeaderError(f"{before} ends at byte {at}, and the file at {file_bytes}; nothing may follow it")


def _short(value: Any) -> str:
    if isinstance(value, (list, dict)) and len(value) > 100:
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _refuse(path: str, why: str) -> NoReturn:
    raise FileFormatError(f"{path!r} is not a readable safetensors file: {why}") from None


# ---- writing ----


class Written(NamedTuple):
    """The first bytes of a file, the offset of each tensor in it, and the size that it will have."""

    text: bytes
    begins: dict[str, int]
    nbytes: int


def build(tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str] | None) -> Written:
    """A header for tensors of these names, dtypes and shapes, in the order of the format's own library.

    Raises FileFormatError if a string cannot be encoded in UTF-8, or the header is too long for any reader; LayoutError
    if a tensor is not a whole number of bytes.
    """
    order = sorted(tensors, key=lambda name: (-_RANKS[tensors[name][0]], name))
    content: dict[str, Any] = {} if metadata is None else {_METADATA: dict(metadata)}
    begins, at = {}, 0
    for name in order:
        dtype, shape = tensors[name]
        begins[name] = at
        try:
            at += _nbytes(dtype, shape, f"the tensor {_short(name)}")
        except _HeaderError as wrong:
            raise LayoutError(str(wrong)) from None
        content[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begins[name], at]}
    if half := lone_surrogate(content):
        raise FileFormatError(
            f"a name of a tensor, or the metadata, contains {half}, an unpaired surrogate, which is not UTF-8"
        )
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST:
        raise FileFormatError(
            f"the names of {len(tensors)} tensors, and the metadata, make a header of {len(text)} bytes; readers "
            f"accept at most {LONGEST}: shorten them, or save to several files"
        )
    start = 8 + len(text)
    return Written(len(text).to_bytes(8, "little") + text, {name: start + begins[name] for name in order}, start + at)

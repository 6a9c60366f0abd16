# SPDX-License-Identifier: Apache-2.0
"""Shape, strides and addresses, computed by NumPy.

A `Layout` is a NumPy array over memory of a device. NumPy slices, transposes and reshapes it without accessing that
memory. Its users must not access it either: never read an element, and never make a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy
from numpy.typing import DTypeLike, NDArray

from pinning.errors import ArgumentError, LayoutError
from pinning.interop.dtypes import usable_dtype
from pinning.runtime.arguments import describe, integers, is_one_of

Shape = int | Iterable[int]
Array = NDArray[Any]


class Layout(numpy.ndarray[Any, Any]):
    """An array that has the addresses of elements, and does not access them."""

    def __repr__(self) -> str:
        return f"<Layout of shape {self.shape}, {self.dtype}, strides {self.strides}, at {address_of(self):#x}>"

    __str__ = __repr__


class Plan(NamedTuple):
    """An array to be made."""

    shape: tuple[int, ...]
    dtype: numpy.dtype[Any]
    strides: tuple[int, ...] | None
    order: Any

    @property
    def nbytes(self) -> int:
        """Bytes from its first to its last."""
        if 0 in self.shape:
            return 0
        if self.strides is None:
            return math.prod(self.shape) * self.dtype.itemsize
        return self.dtype.itemsize + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))

    def over(self, memory: Array) -> Array:
        """The array, in these bytes of the host."""
        return numpy.ndarray(self.shape, self.dtype, memory, 0, self.strides, self.order)

    def laid_out(self, memory: Layout) -> Layout:
        """The layout of the array in these bytes."""
        return Layout(self.shape, self.dtype, memory, 0, self.strides, self.order)


def plan(shape: Shape, dtype: DTypeLike, strides: Shape | None = None, order: str = "C") -> Plan:
    """The plan for arguments of `device_array` and its like. Raises TypeError for a type or dtype, else LayoutError."""
    lengths = _not_negative(integers(shape, "shape", "a number of elements"), "shape")
    steps = None if strides is None else _not_negative(integers(strides, "strides", "a number of bytes"), "strides")
    check_order(order)
    if steps is not None and len(steps) != len(lengths):
        raise LayoutError(f"strides are {steps}; the shape {lengths} needs {len(lengths)}")
    planned = Plan(lengths, usable_dtype(dtype), steps, order)
    if planned.nbytes >= 1 << 63:
        raise LayoutError(f"shape {lengths} of {planned.dtype} has {planned.nbytes} bytes, more than any memory")
    return planned


def plan_like(array: Array) -> Plan:
    """The plan for a new array like `array`, without gaps, its dimensions in the same order in memory."""
    usable_dtype(array.dtype)
    return Plan(array.shape, array.dtype, None if array.flags.c_contiguous else compact_strides(array), "C")


def compact_strides(array: Array) -> tuple[int, ...]:
    """The strides of a new array like `array`, without gaps, its dimensions in the same order in memory."""
    if array.flags.c_contiguous:
        return array.strides
    strides, step = [0] * array.ndim, array.itemsize
    for axis in sorted(range(array.ndim), key=lambda axis: (abs(array.strides[axis]), -axis)):
        strides[axis], step = step, step * array.shape[axis]
    return tuple(strides)


def check_order(order: str, *others: str) -> None:
    """Refuse an order of indices other than "C", "F" and `others`."""
    if not is_one_of(order, "C", "F", *others):
        raise ArgumentError(f"order is {describe(order)}; it must be {' or '.join(map(repr, ('C', 'F', *others)))}")


def refuse_mask(value: object) -> None:
    """Refuse a masked array: NumPy would convert it to an array of all its elements, those that are masked too."""
    if isinstance(value, numpy.ma.MaskedArray):
        raise TypeError("this is a masked array, and arrays on a device have no masks; give filled() of it")


def host_array(value: Any) -> Array:
    """The array of the host that NumPy makes of a value. Raises TypeError if it is none, or has a mask."""
    refuse_mask(value)
    array = numpy.asarray(value)
    if array.dtype.hasobject and not isinstance(value, numpy.ndarray):
        raise TypeError(
            f"{describe(value)} is no array: NumPy would make one of Python objects of it, which no device can use"
        )
    return array


class _Bytes:
    def __init__(self, ptr: int, size: int, read_only: bool) -> None:
        self.__array_interface__ = {"data": (ptr, read_only), "shape": (size,), "typestr": "|u1", "version": 3}


def layout_at(
    ptr: int, shape: tuple[int, ...], dtype: numpy.dtype[Any], strides: tuple[int, ...] | None, read_only: bool
) -> Layout:
    """The layout of an existing array whose first element is at `ptr`; strides may be negative."""
    if strides is None or 0 in shape:
        whole = Plan(shape, dtype, None, "C")
        return whole.laid_out(bytes_at(ptr, whole.nbytes, read_only))
    ends = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
    below = sum(end for end in ends if end < 0)
    above = sum(end for end in ends if end > 0) + dtype.itemsize
    return Layout(shape, dtype, bytes_at(ptr + below, above - below, read_only), -below, strides)


def bytes_at(ptr: int, size: int, read_only: bool = False) -> Layout:
    """The layout of `size` bytes at an address."""
    array = numpy.asarray(_Bytes(ptr, size, read_only)) if size else numpy.empty(0, numpy.uint8)
    return array.view(Layout)


def address_of(array: Array) -> int:
    """The address of its first element; 0 for an empty array."""
    return array.ctypes.data if array.nbytes else 0


def _not_negative(values: tuple[int, ...], what: str) -> tuple[int, ...]:
    if any(value < 0 for value in values):
        raise LayoutError(f"{what} is {values}; nothing in it can be negative")
    return values

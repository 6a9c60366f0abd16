# SPDX-License-Identifier: Apache-2.0
"""`DeviceArray`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import EllipsisType
from typing import Any, NoReturn

import numpy
from numpy.typing import ArrayLike, DTypeLike

from pinning.arrays import exchange
from pinning.arrays.buffer import Buffer
from pinning.arrays.layout import Array, check_order, host_array, refuse_mask
from pinning.arrays.streams import Stream
from pinning.arrays.transfer import check_alike, copied, fetch, put, take
from pinning.arrays.view import View
from pinning.errors import LayoutError
from pinning.interop.dtypes import usable_dtype
from pinning.runtime.arguments import describe, integers
from pinning.runtime.handles import refuse_copy

Index = int | slice | EllipsisType | None | tuple[int | slice | EllipsisType | None, ...]


class DeviceArray(View):
    """An array in memory of a device, or a view of a part. `device_array`, `to_device` and `as_device_array` make it.

    It has a layout like NumPy's arrays and does no arithmetic. A call with a ``stream`` submits its work there and
    returns at once; the work is ordered in that stream only. A call without one waits: first for all pending work on
    this memory, including that of other libraries once they know its address, then for its own.

    The memory is given back some time after the last array that shares it is gone; see `defer_cleanup`.
    """

    __slots__ = ()

    def __init__(self, layout: Any = None, buffer: Any = None) -> None:
        if not isinstance(buffer, Buffer):
            raise TypeError("a DeviceArray comes from device_array, to_device or as_device_array")
        super().__init__(layout, buffer)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "use copy_to_host(), and to_device() for another array on the device")

    def __len__(self) -> int:
        return len(self._layout)

    def __iter__(self) -> Iterator[Any]:
        """Views along the first dimension; of an array of one dimension its elements, each copied to the host."""
        if not self.ndim:
            raise TypeError("iteration over a 0-d array; array[()] is its element")
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"<DeviceArray of shape {self.shape}, {self.dtype}, on {self.device.name}>"

    # ---- copies ----

    def copy_to_host(self, ary: Array | None = None, stream: Stream = None) -> Array:
        """Copy into `ary`, or into a new NumPy array with the same order of dimensions in memory.

        With a stream, the elements are there once it has completed the copy, such as after ``stream.synchronize()``.

        Raises
        ------
        LayoutError
            `ary` has another shape or dtype, or cannot be written.
        """
        return fetch(self, ary, stream)

    def copy_to_device(self, ary: ArrayLike | DeviceArray, stream: Stream = None) -> None:
        """Copy an array of the same shape and dtype, on the host or on a device, into this one.

        With a stream, a host array without gaps and in the same order may be read until the stream has completed the
        copy; do not change it before.

        Raises
        ------
        TypeError
            It is no array, or has a mask.
        LayoutError
            It has another shape or dtype, or this array cannot be written.
        """
        source = exchange.found_on_device(ary)
        if source is not None:
            take(self, source, stream)
        else:
            array = host_array(ary)
            check_alike(array, self._layout)
            put(self, array, stream)

    def copy(self, order: str = "K", stream: Stream = None) -> DeviceArray:
        """A copy on the same device, without gaps: in order "C", "F" or, by default, "K", the order of this array."""
        return as_array(copied(self, order, stream))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(f"an array on {self.device.name} cannot become a NumPy array without a copy")
        array = self.copy_to_host()
        return array if dtype is None else array.astype(dtype, copy=False)

    # ---- elements and views ----

    def __getitem__(self, index: Index) -> Any:
        """A view or, for a single element, its value, copied to the host. Indices are NumPy's, without arrays."""
        view, whole = self._view(index)
        return view.copy_to_host()[()] if whole else view

    def __setitem__(self, index: Index, value: Any) -> None:
        """Copy a value, or an array of the host or a device, into a part, as NumPy converts and broadcasts; waits."""
        view, whole = self._view(index)
        source = exchange.found_on_device(value)
        try:
            if source is not None:
                layout: Any = numpy.broadcast_to(_without_leading(source._layout, view.ndim), view.shape, subok=True)
                take(view, View(layout, source._buffer), None)
            else:
                put(view, converted(value, view.shape, view.dtype, whole), None)
        except ValueError as error:
            if isinstance(error, LayoutError):
                raise
            raise LayoutError(f"this value does not fit into shape {view.shape}, {self.dtype}: {error}") from None

    def _view(self, index: Any) -> tuple[DeviceArray, bool]:
        """The part that an index selects, and whether that is one element, selected by an integer per dimension."""
        indices = index if isinstance(index, tuple) else (index,)
        plain: list[Any] = []
        for each in indices:
            if each is None or each is Ellipsis or isinstance(each, slice):
                plain.append(each)
            elif isinstance(each, (bool, numpy.bool_)):
                raise _no_index(each)
            else:
                try:
                    plain.append(operator.index(each))
                except TypeError:
                    raise _no_index(each) from None
        whole = len(plain) == self.ndim and all(isinstance(each, int) for each in plain)
        if Ellipsis not in plain:
            plain.append(Ellipsis)  # without it NumPy would read the element
        return DeviceArray(self._layout[tuple(plain)], self._buffer), whole

    def ravel(self, order: str = "C", stream: Stream = None) -> DeviceArray:
        """All elements in one dimension, without gaps: a view if there are none, otherwise a copy on the device."""
        check_order(order)
        contiguous = self.is_c_contiguous() if order == "C" else self.is_f_contiguous()
        return (self if contiguous else self.copy(order, stream)).reshape(-1, order=order)

    def reshape(self, *shape: int | tuple[int, ...], order: str = "C", stream: Stream = None) -> DeviceArray:
        """The same elements in another shape: a view if the strides allow it, otherwise a copy on the device.

        Parameters
        ----------
        shape : int or tuple of int
            One length may be -1.
        order : {"C", "F"}
            The index order in which elements are read and placed.
        stream : Queue, optional
            The stream for the copy, if one is made.

        Raises
        ------
        LayoutError
            The shape has another number of elements.
        """
        check_order(order)
        wanted: Any = shape[0] if len(shape) == 1 else shape
        integral = integers(wanted, "shape", "a number of elements")
        try:
            lengths = numpy.broadcast_to(numpy.int8(0), self.shape).reshape(integral).shape
        except ValueError as error:
            raise LayoutError(f"{error}; the array has {self.size} elements") from None
        ordered: Any = order
        try:
            return DeviceArray(self._layout.reshape(lengths, order=ordered, copy=False), self._buffer)
        except ValueError:  # not without a copy
            copied = self.copy(ordered, stream)
            return DeviceArray(copied._layout.reshape(lengths, order=ordered, copy=False), copied._buffer)

    def transpose(self, axes: Iterable[int] | None = None) -> DeviceArray:
        """A view with the dimensions in another order, by default reversed."""
        order = None if axes is None else integers(axes, "axes", "a dimension's number")
        try:
            return DeviceArray(self._layout.transpose(order), self._buffer)
        except ValueError as error:
            raise LayoutError(f"axes {order} are not a permutation of {self.ndim} dimensions: {error}") from None

    @property
    def T(self) -> DeviceArray:  # noqa: N802
        """The view with the dimensions reversed."""
        return self.transpose()

    def squeeze(self, axis: int | tuple[int, ...] | None = None) -> DeviceArray:
        """A view without the dimensions of length 1, or without those of `axis`."""
        try:
            return DeviceArray(self._layout.squeeze(axis), self._buffer)
        except (TypeError, OverflowError):
            raise TypeError(f"axis is {describe(axis)}; it must be a dimension's number, or a tuple of them") from None
        except ValueError as error:
            raise LayoutError(f"{error}; the shape is {self.shape}") from None

    def view(self, dtype: DTypeLike) -> DeviceArray:
        """A view of the same bytes as elements of another dtype.

        Raises
        ------
        LayoutError
            The last dimension's bytes are not a whole number of these elements, or not contiguous.
        """
        try:
            return DeviceArray(self._layout.view(usable_dtype(dtype)), self._buffer)
        except ValueError as error:
            raise LayoutError(f"{error}; the shape is {self.shape} of {self.dtype}") from None

    # ---- for other libraries ----

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return exchange.cuda_array_interface(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return exchange.dlpack_device(self)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if exchange.leaves_device(self, dl_device, copy):
            return exchange.dlpack_of_copy(self.copy_to_host(), max_version)
        exchange.check_exportable(self, max_version, copy)
        return exchange.dlpack(self.copy() if copy else self, stream, max_version, bool(copy))


def as_array(view: View) -> DeviceArray:
    """A view as a `DeviceArray`."""
    return view if isinstance(view, DeviceArray) else DeviceArray(view._layout, view._buffer)


def converted(value: Any, shape: tuple[int, ...], dtype: numpy.dtype[Any], element: bool) -> Array:
    """The elements, broadcast, that NumPy would assign for `value`; `element`: the part is a single element."""
    refuse_mask(value)
    if isinstance(value, numpy.ndarray) and not element and 0 not in shape:
        array = _without_leading(numpy.asarray(value), len(shape))  # a numpy.matrix would keep two dimensions
        numpy.broadcast_to(array, shape)  # refuses before it converts, as NumPy does
        return numpy.broadcast_to(array.astype(dtype, copy=False), shape)
    if 0 not in shape:  # a value that is one element is converted once
        with suppress(Exception):
            return numpy.broadcast_to(_assigned((), dtype, value, element), shape)
    return _assigned(shape, dtype, value, element)


def _assigned(shape: tuple[int, ...], dtype: numpy.dtype[Any], value: Any, element: bool) -> Array:
    array = numpy.zeros(shape, dtype)
    array[() if element else ...] = value
    return array


def _without_leading(array: Array, ndim: int) -> Array:
    """The array without excess leading dimensions of length 1, as NumPy assigns it."""
    while array.ndim > ndim and array.shape[0] == 1:
        array = array[0, ...]  # a view, also without dimensions: elements cannot be read here
    return array


def _no_index(index: object) -> TypeError:
    return TypeError(f"an array on a device takes integers, slices, ... and None as indices, not {describe(index)}")

# SPDX-License-Identifier: Apache-2.0
"""New arrays on a device."""

from __future__ import annotations

from typing import Any

import numpy
from numpy.typing import ArrayLike, DTypeLike

from pinning.arrays import exchange
from pinning.arrays.array import DeviceArray, as_array
from pinning.arrays.layout import Array, Plan, Shape, host_array, plan, plan_like
from pinning.arrays.streams import Stream, device_of, queue_of
from pinning.arrays.view import new_view
from pinning.plugin import Device
from pinning.runtime.arguments import describe, flag


def device_array(
    shape: Shape,
    dtype: DTypeLike = numpy.float64,
    strides: Shape | None = None,
    order: str = "C",
    stream: Stream = None,
    *,
    device: Device | str | None = None,
) -> DeviceArray:
    """An uninitialized array in memory of a device, from its default pool.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype-like
        Any NumPy dtype without Python objects.
    strides : tuple of int, optional
        Bytes from one element to the next in each dimension, none negative; by default as `order` says.
    order : {"C", "F"}
    stream : Queue or object with ``__cuda_stream__``, optional
        The stream that uses it first; others must wait for this point of it. By default any can use it at once.
    device : Device or str, optional
        Such as ``"cuda:0"``; by default that of the stream, or else the first that is not the host.

    Raises
    ------
    TypeError
        Not a dtype, or one with Python objects.
    LayoutError
        A length is negative, or the strides do not fit.
    VendorError
        The vendor refused, perhaps for lack of memory.
    """
    return _new(plan(shape, dtype, strides, order), stream, device)


def device_array_like(ary: Any, stream: Stream = None, *, device: Device | str | None = None) -> DeviceArray:
    """A `device_array` with the shape, dtype and order of dimensions of an array of NumPy or of a device."""
    layout = layout_of(ary)
    view = exchange.found_on_device(ary)
    if view is not None and device is None and stream is None:
        device = view.device
    return _new(plan_like(layout), stream, device)


def to_device(
    obj: ArrayLike | DeviceArray,
    stream: Stream = None,
    copy: bool = True,
    to: DeviceArray | None = None,
    *,
    device: Device | str | None = None,
) -> DeviceArray:
    """Copy an array to a device.

    An array that is already in memory of that device, of this or another library, is returned as it is.

    Parameters
    ----------
    obj : array-like
        On the host or on any device. Locked arrays of the host are copied directly.
    stream : Queue or object with ``__cuda_stream__``, optional
        The stream for the copy; the call then returns at once. By default it returns when the copy is complete.
    copy : bool
        False: only allocate.
    to : DeviceArray, optional
        The destination, which is then returned.
    device : Device or str, optional
        As for `device_array`.

    Raises
    ------
    TypeError
        It is no array, or has a mask or a dtype with Python objects.
    LayoutError
        `to` has another shape or dtype.
    """
    flag(copy, "copy")
    if to is not None:
        if not isinstance(to, DeviceArray):
            raise TypeError(
                f"to is {describe(to)}; it must be a DeviceArray, such as device_array_like gives. A device is named "
                "by device="
            )
        to.copy_to_device(obj, stream)
        return to
    theirs = exchange.found_on_device(obj)
    if theirs is not None:
        target = theirs.device if device is None and stream is None else device_of(device, stream)
        if theirs.device is target:
            return as_array(theirs)
    source: Any = as_array(theirs) if theirs is not None else host_array(obj)
    array = _new(plan_like(layout_of(source)), stream, device)
    if copy:
        array.copy_to_device(source, stream)
    return array


def as_device_array(obj: Any, sync: bool = True, *, device: Device | str | None = None) -> DeviceArray:
    """An array of another library as a `DeviceArray` over the same memory, which it keeps alive.

    Parameters
    ----------
    obj : object
        With ``__cuda_array_interface__``, or with DLPack. Host memory by DLPack becomes an array on ``host:0``.
    sync : bool
        Whether to wait for pending work on it. If not, the caller must do so.
    device : Device or str, optional
        The device whose memory it is, if the vendor does not know the address.

    Raises
    ------
    TypeError
        It is not such an array, is a masked array of NumPy, or has a dtype with Python objects.
    InvalidRangeError
        It gives 0 as the address of its elements, or the device knows no memory at their address.
    PinningError
        It has a mask, or no device knows the memory.
    """
    flag(sync, "sync")
    return as_array(exchange.as_view(obj, sync, device))


def layout_of(ary: Any) -> Array:
    """Shape, strides and dtype of an array of NumPy or a device, as an array whose elements must not be accessed."""
    view = exchange.found_on_device(ary)
    return numpy.asarray(ary) if view is None else view._layout


def _new(planned: Plan, stream: Stream, device: Device | str | None) -> DeviceArray:
    target = device_of(device, stream)
    return as_array(new_view(planned, target, None if stream is None else queue_of(stream, target)))

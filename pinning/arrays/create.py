# SPDX-License-Identifier: Apache-2.0
"""New arrays on a device."""

from __future__ import annotations

from typing import Any

import numpy
from numpy.typing import ArrayLike, DTypeLike

from pinning.arrays import exchange
from pinning.arrays.array import DeviceArray, as_array
from pinning.arrays.layout import Array, Plan, Shape, plan, plan_like
from pinning.arrays.streams import Stream, device_of, queue_of
from pinning.arrays.view import new_view
from pinning.plugin import Device
from pinning.runtime.arguments import describe


def device_array(
    shape: Shape,
    dtype: DTypeLike = numpy.float64,
    strides: Shape | None = None,
    order: str = "C",
    stream: Stream = None,
    *,
    device: Device | str | None = None,
) -> DeviceArray:
    """An array in memory of a device, from its default pool. What is in it is anything.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype-like
        Any of NumPy's without Python objects.
    strides : tuple of int, optional
        Bytes from one element to the next in each dimension, none negative; by default as `order` says.
    order : {"C", "F"}
    stream : Queue or object with ``__cuda_stream__``, optional
        Where it is used first: elsewhere it can be used when this has come so far. By default it can be used at once.
    device : Device or str, optional
        Such as ``"cuda:0"``; by default that of the stream, or else the first that is not the host.

    Raises
    ------
    TypeError
        No dtype, or one with Python objects.
    LayoutError
        A length is negative, or the strides do not fit.
    VendorError
        The vendor refused, perhaps for want of memory.
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

    What is in memory of that device already, its own or another library's, is returned as it is.

    Parameters
    ----------
    obj : array-like
        Of the host or of any device. Of the host's arrays those that are locked are copied directly.
    stream : Queue or object with ``__cuda_stream__``, optional
        Where; then the call returns at once. By default the array is there when it returns.
    copy : bool
        False: only allocate.
    to : DeviceArray, optional
        Where to copy it to, and what is returned.
    device : Device or str, optional
        As for `device_array`.

    Raises
    ------
    TypeError
        It has a dtype with Python objects.
    LayoutError
        `to` has another shape or dtype.
    """
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
    source: Any = as_array(theirs) if theirs is not None else numpy.asarray(obj)
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
        Whether to wait until what is under way in it is done. If not, its user sees to that.
    device : Device or str, optional
        Whose memory it is, where the vendor does not know the address.

    Raises
    ------
    TypeError
        It is no such array, or has a dtype with Python objects.
    InvalidRangeError
        It says that its elements are at address 0, or the device knows of no memory there.
    PinningError
        It has a mask, or no device knows the memory.
    """
    return as_array(exchange.as_view(obj, sync, device))


def layout_of(ary: Any) -> Array:
    """Shape, strides and dtype of an array of NumPy or of a device; its elements are not to be touched."""
    view = exchange.found_on_device(ary)
    return numpy.asarray(ary) if view is None else view._layout


def _new(planned: Plan, stream: Stream, device: Device | str | None) -> DeviceArray:
    target = device_of(device, stream)
    return as_array(new_view(planned, target, None if stream is None else queue_of(stream, target)))

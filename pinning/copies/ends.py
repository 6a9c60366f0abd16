# SPDX-License-Identifier: Apache-2.0
"""The two ends of a copy: which bytes they are, and whose memory."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any, NamedTuple

from pinning.buffers import is_contiguous, resolve
from pinning.devices import devices
from pinning.errors import InvalidRangeError
from pinning.locks import Lock
from pinning.memory import Allocation, memory_info
from pinning.plugin import Device, MemoryDevice, MemoryKind

_SCATTERED = "the bytes of this {} do not follow one another: copy a contiguous array, or use copy_2d_async"


class End(NamedTuple):
    """One end of a copy.

    Attributes
    ----------
    ptr : int
        Its first byte: the host's address of host memory, else the device's.
    size : int or None
        Bytes; None for a bare address.
    device : MemoryDevice or None
        Whose memory it is; None for the host's.
    read_only : bool
        Whether it may not be written.
    owner : object
        What keeps the memory alive; None where the caller does.
    """

    ptr: int
    size: int | None
    device: MemoryDevice | None
    read_only: bool
    owner: object


def end_of(buffer: object, preferred: Device | None = None) -> End:
    """Find out what one end of a copy is.

    Parameters
    ----------
    buffer : object
        An `Allocation`, a `Lock`, anything that `pinning.lock` takes and that has no gaps, an object with
        ``__cuda_array_interface__``, or an address of host or device memory. An `End` is itself.
    preferred : Device, optional
        Whose memory an address is when several devices know it.

    Raises
    ------
    InvalidRangeError
        Freed, empty or null; or its bytes do not follow one another.
    TypeError
        It is no buffer.
    """
    if isinstance(buffer, End):
        return buffer
    if isinstance(buffer, Allocation):
        if buffer.freed:
            raise InvalidRangeError(f"{buffer!r} cannot be copied")
        device = None if buffer.kind is MemoryKind.HOST else buffer.device
        return End(buffer.ptr, buffer.size, device, False, buffer)
    if isinstance(buffer, Lock):
        return End(buffer.host_ptr, buffer.size, None, False, buffer)
    if isinstance(buffer, Integral):
        return _at_address(int(buffer), preferred)
    interface = getattr(buffer, "__cuda_array_interface__", None)
    if interface is not None:
        return _of_interface(buffer, interface, preferred)
    found = resolve(buffer)
    if not found.contiguous:
        raise InvalidRangeError(_SCATTERED.format(type(buffer).__name__))
    if isinstance(buffer, tuple):
        return _at_address(found.ptr, preferred)._replace(size=found.size)
    return End(found.ptr, found.size, None, found.read_only is True, found.owner)


def _at_address(ptr: int, preferred: Device | None) -> End:
    if ptr <= 0:
        raise InvalidRangeError(f"{ptr:#x} is no address of memory")
    return End(ptr, None, _device_of(ptr, preferred), False, None)


def _of_interface(buffer: object, interface: dict[str, Any], preferred: Device | None) -> End:
    ptr, read_only = interface["data"]
    shape, itemsize = tuple(interface["shape"]), int(interface["typestr"][2:])
    size = itemsize * math.prod(shape)
    if size == 0:
        raise InvalidRangeError("the array is empty; a copy needs at least 1 byte")
    strides = interface.get("strides")
    if strides is not None and not is_contiguous(shape, tuple(strides), itemsize):
        raise InvalidRangeError(_SCATTERED.format(type(buffer).__name__))
    device = _device_of(ptr, preferred)
    return End(ptr, size, device, bool(read_only), buffer)


def _device_of(ptr: int, preferred: Device | None) -> MemoryDevice | None:
    """The device whose memory holds an address; None for the host's."""
    ours = memory_info(ptr)
    if ours is not None and ours.device is not None:
        if ours.kind is MemoryKind.HOST:
            return None
        assert isinstance(ours.device, MemoryDevice)
        return ours.device
    for device in sorted(devices(), key=lambda device: device is not preferred):
        if isinstance(device, MemoryDevice) and (info := device.memory_info(ptr)) is not None:
            if info.kind is MemoryKind.HOST:
                return None
            return device if info.device is None else _sibling(device, info.device)
    return None


def _sibling(device: MemoryDevice, index: int) -> MemoryDevice:
    name = f"{device.name.partition(':')[0]}:{index}"
    found = next((each for each in devices() if each.name == name), device)
    return found if isinstance(found, MemoryDevice) else device

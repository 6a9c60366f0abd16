# SPDX-License-Identifier: Apache-2.0
"""Arrays from and to other libraries, without a copy: ``__cuda_array_interface__`` and DLPack."""

from __future__ import annotations

import operator
from typing import Any

from pinning.arrays.buffer import Buffer
from pinning.arrays.layout import Array, address_of, layout_at, refuse_mask
from pinning.arrays.view import View
from pinning.errors import InvalidRangeError, PinningError, PluginUnavailableError
from pinning.interop.array_memory import array_memory
from pinning.interop.dlpack import make_capsule
from pinning.interop.dtypes import DEVICE_TYPES, HOST_TYPES, STREAM_TYPES, VENDORS, dlpack_type, usable_dtype
from pinning.locking.devices import device as device_of_name
from pinning.memory import memory_info
from pinning.plugin import Device, MemoryDevice, MemoryKind
from pinning.runtime.arguments import describe

_CPU = 1
_NO_STREAM = -1  # in DLPack: the consumer ensures the order itself
_BY_ADDRESS = 0  # not a type of DLPack


# ---- from other libraries ----


def is_device_array(obj: object) -> bool:
    """Whether it is an array in memory of a device, so that `as_device_array` takes it and no copy is needed."""
    try:
        return found_on_device(obj) is not None
    except PluginUnavailableError:
        return False


def as_view(obj: Any, sync: bool, device: Device | str | None) -> View:
    """A view of an array of another library or of this package; see `as_device_array`."""
    if isinstance(obj, View):
        return obj
    refuse_mask(obj)
    array = array_memory(obj)
    layout = layout_at(array.ptr, array.shape, usable_dtype(array.dtype), array.strides, array.read_only)
    kind, index = array.device or (_BY_ADDRESS, 0)
    name = f"{VENDORS[kind]}:{index}" if array.device else "cuda"
    buffer = _buffer_at(array.ptr, device or name, array.owner, host=kind in HOST_TYPES)
    if sync and array.stream is not None:
        stream = buffer.device.adopt_queue(array.stream)  # not a `Queue`, which would query it later too
        stream.synchronize()
        stream.close()
    elif sync and kind in STREAM_TYPES:
        buffer.device.synchronize()
    return View(layout, buffer)


def found_on_device(obj: Any) -> View | None:
    """The view of an array that is in memory of a device; None for anything else."""
    if isinstance(obj, View):
        return obj
    if isinstance(obj, type):
        return None
    if getattr(obj, "__cuda_array_interface__", None) is not None:
        return as_view(obj, True, None)
    if not hasattr(obj, "__dlpack_device__"):
        return None
    try:
        kind, _ = obj.__dlpack_device__()
    except BufferError:  # it cannot be exported, such as an `Allocation` of kind DEVICE, which has no dtype
        return None
    return None if int(kind) in HOST_TYPES else as_view(obj, True, None)


def _buffer_at(ptr: int, device: Device | str, owner: object, host: bool = False) -> Buffer:
    """A buffer over memory that another library owns, on `device` unless the address determines the device."""
    info = memory_info(ptr) if ptr and not host else None
    owning_device = device_of_name(device if info is None or info.device is None else info.device)
    if not isinstance(owning_device, MemoryDevice):
        raise PinningError(f"{owning_device.name} has no queues for copies, so it has no arrays")
    if ptr and not host and info is None and owning_device.vendor != "host":
        raise InvalidRangeError(f"{owning_device.name} has no memory at {ptr:#x}; was it freed?")
    place = None if host or (info is not None and info.kind is MemoryKind.HOST) else owning_device
    return Buffer(owning_device, place, None, owner, True)


# ---- to other libraries ----


def cuda_array_interface(array: View) -> dict[str, Any]:
    """Version 3. Its stream is one that is ordered after all pending work, or None if there is none."""
    if array.device.vendor != "cuda":
        raise AttributeError(f"an array on {array.device.name} has no __cuda_array_interface__: that is for CUDA")
    queues = array._buffer.queues()
    handle = None
    if queues:
        first, *others = queues
        first.wait_for(*(queue.record() for queue in others))
        handle = first.handle or 1  # 1 means the same stream as 0, which the protocol forbids
    return {
        "shape": array.shape,
        "typestr": array.dtype.str,
        "descr": array.dtype.descr,
        "data": (array.device_ptr, array.read_only),
        "strides": None if array.is_c_contiguous() else array.strides,
        "stream": handle,
        "version": 3,
    }


def dlpack_device(array: View) -> tuple[int, int]:
    """DLPack's type of the memory, and the device's index."""
    types = DEVICE_TYPES.get(array.device.vendor)
    if types is None:
        raise BufferError(f"DLPack has no type for a device such as {array.device.name}")
    buffer = array._buffer
    if buffer.allocation is not None:
        kind = buffer.allocation.kind
    else:
        info = memory_info(address_of(array._layout)) if array.nbytes else None
        kind = info.kind if info is not None else MemoryKind.DEVICE
    return types[kind], array.device.index


def leaves_device(array: View, dl_device: tuple[int, int] | None, copy: bool | None) -> bool:
    """Whether the export must be a copy on the host. Raises BufferError if another device, or no copy, is requested."""
    own = dlpack_device(array)
    wanted = own if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
    if wanted != own and (wanted[0] != _CPU or copy is False):
        raise BufferError(
            f"an array on {array.device.name} cannot be exported to DLPack's device {wanted}"
            + (" without a copy" if copy is False else "")
        )
    return wanted != own


def check_exportable(array: View, max_version: tuple[int, int] | None, copy: bool | None) -> None:
    """Refuse what DLPack cannot express."""
    dlpack_type(array.dtype)
    if any(step % array.dtype.itemsize for step in array.strides):
        raise BufferError(
            f"strides {array.strides} are not a whole number of elements of {array.dtype}, which DLPack requires"
        )
    if array.read_only and not _versioned(max_version) and not copy:
        raise BufferError("the array is read-only, which DLPack cannot express before version 1.0: pass max_version")


def dlpack(array: View, stream: int | None, max_version: tuple[int, int] | None, is_copy: bool) -> object:
    """A capsule, as the array API specifies for ``__dlpack__``."""
    own = dlpack_device(array)
    _order(array, stream)
    return _capsule(array, array._layout, array.device_ptr, own, _versioned(max_version), is_copy)


def dlpack_of_copy(array: Array, max_version: tuple[int, int] | None) -> object:
    """A capsule with a copy on the host."""
    return _capsule(array, array, address_of(array), (_CPU, 0), _versioned(max_version), True)


def _capsule(owner: object, layout: Array, ptr: int, device: tuple[int, int], versioned: bool, copied: bool) -> object:
    kind, bits = dlpack_type(layout.dtype)
    strides = tuple(step // layout.itemsize for step in layout.strides)
    read_only = not layout.flags.writeable
    return make_capsule(owner, ptr, device, kind, bits, layout.shape, strides, versioned, read_only, copied)


def _versioned(max_version: tuple[int, int] | None) -> bool:
    if max_version is not None and not isinstance(max_version, tuple):
        raise TypeError(f"max_version is {describe(max_version)}; it must be a tuple of two numbers, or None")
    return max_version is not None and max_version[0] >= 1


def _order(array: View, stream: int | None) -> None:
    """Make the consumer's stream, or else this thread, wait for pending work."""
    plugin = array.device.vendor
    if plugin not in ("cuda", "hip"):
        if stream is not None:
            raise BufferError(f"stream is {stream}; it must be None for an array on {array.device.name}")
        for queue in array._buffer.queues():
            queue.record().wait()
        return
    if stream is not None and not _NO_STREAM <= operator.index(stream) < 1 << 64:
        raise BufferError(f"stream is {stream}; it must be -1, for none, or a stream's number or address")
    if plugin == "cuda" and stream == 0:
        raise BufferError("stream 0 is ambiguous: 1 is the legacy default stream, 2 that of the thread")
    queues = [] if stream == _NO_STREAM else array._buffer.queues()
    if queues:
        # The vendor's queue, not a `Queue`, which would query the stream later, when it may be gone.
        default = 1 if plugin == "cuda" else 0
        consumer = array.device.adopt_queue(default if stream is None else stream)
        for queue in queues:
            reached = queue.record().vendor_event
            if reached is not None:
                consumer.wait(reached)
        consumer.close()

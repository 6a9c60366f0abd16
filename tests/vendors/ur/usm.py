# SPDX-License-Identifier: Apache-2.0
"""Memory, contexts and queues of another user of Unified Runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from pinning_ur import SONAME, UrDevice


@contextmanager
def host_memory(device: UrDevice, size: int) -> Iterator[int]:
    """The address of host memory that the vendor has allocated."""
    address = ctypes.c_void_p()
    _call("urUSMHostAlloc", device.context, None, None, size, ctypes.byref(address))
    yield address.value or 0
    _call("urUSMFree", device.context, address)


@contextmanager
def shared_memory(device: UrDevice, size: int) -> Iterator[int]:
    """The address of memory that moves between the host and the device."""
    address = ctypes.c_void_p()
    _call("urUSMSharedAlloc", device.context, device.handle, None, None, size, ctypes.byref(address))
    yield address.value or 0
    _call("urUSMFree", device.context, address)


@contextmanager
def registered(device: UrDevice, ptr: int, size: int) -> Iterator[None]:
    """Host memory that another library has registered."""
    _call("urUSMHostAllocRegisterExp", device.context, ptr, size, None)
    yield
    _call("urUSMHostAllocUnregisterExp", device.context, ptr)


class QueueProperties(ctypes.Structure):
    """``ur_queue_properties_t``."""

    _fields_ = (("stype", ctypes.c_int), ("next", ctypes.c_void_p), ("flags", ctypes.c_uint32))


@contextmanager
def another_context(device: UrDevice) -> Iterator[int]:
    """A context of one device."""
    context = ctypes.c_void_p()
    devices = (ctypes.c_void_p * 1)(device.handle)
    _call("urContextCreate", 1, devices, None, ctypes.byref(context))
    yield context.value or 0
    _call("urContextRelease", context)


@contextmanager
def others_queue(device: UrDevice, context: int, flags: int) -> Iterator[int]:
    """A queue with these ``ur_queue_flags_t``."""
    queue, properties = ctypes.c_void_p(), QueueProperties(14, None, flags)
    _call("urQueueCreate", context, device.handle, ctypes.byref(properties), ctypes.byref(queue))
    yield queue.value or 0
    _call("urQueueRelease", queue)


def _call(function: str, *arguments: object) -> None:
    library = ctypes.CDLL(SONAME)  # already loaded; this handle does not have the plugin's prototypes
    sized = [ctypes.c_size_t(each) if isinstance(each, int) else each for each in arguments]
    assert getattr(library, function)(*sized) == 0, function

# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory: how the runtime allocates them, and what it knows of a pointer."""

from __future__ import annotations

import ctypes
import sys

from pinning.errors import VendorError
from pinning.plugin import MemoryInfo, MemoryKind
from pinning_hip.driver import INVALID_DEVICE_POINTER, INVALID_VALUE, NOT_FOUND, call, constant

_PORTABLE_AND_MAPPED = 0x1 | 0x2  # for all devices, at the host's own address
_ATTACH_GLOBAL = 0x1  # any stream of any device may use it

NOT_KNOWN = (INVALID_VALUE, INVALID_DEVICE_POINTER, NOT_FOUND)  # what releases say of a pointer that is not theirs


def allocate(size: int, kind: MemoryKind) -> int:
    """`size` bytes on the current device: the host's address of HOST memory, else the device's."""
    match kind:
        case MemoryKind.HOST:
            (ptr,) = call("hipHostMalloc", size, _PORTABLE_AND_MAPPED)
        case MemoryKind.DEVICE:
            (ptr,) = call("hipMalloc", size)
        case MemoryKind.SHARED:
            (ptr,) = call("hipMallocManaged", size, _ATTACH_GLOBAL)
    return int(ptr)


def free(ptr: int, kind: MemoryKind) -> None:
    """Give back what `allocate` returned for this kind, once all work of the device is done."""
    call("hipHostFree" if kind is MemoryKind.HOST else "hipFree", ptr)


def info(ptr: int) -> MemoryInfo | None:
    """The allocation or registration around `ptr`, a host or a device address."""
    try:
        _, size = call("hipMemGetAddressRange", ptr)
        base = attribute("RANGE_START_ADDR", ptr)  # of registered memory the host's, which the call above keeps silent
        if attribute("IS_MANAGED", ptr):
            return MemoryInfo(MemoryKind.SHARED, base, int(size), attribute("DEVICE_ORDINAL", ptr))
        if _is_of_host(ptr):
            return MemoryInfo(MemoryKind.HOST, base, int(size), None)
        return MemoryInfo(MemoryKind.DEVICE, base, int(size), attribute("DEVICE_ORDINAL", ptr))
    except VendorError as error:
        if error.code in NOT_KNOWN:  # or not any more, since the first question
            return None
        raise


def attribute(name: str, ptr: int) -> int:
    """What hipPointerGetAttribute says of a pointer that the runtime knows.

    hipPointerGetAttributes would say more at once, but its hipMemoryType has other numbers in HIP 5 than in HIP 6, and
    hip-python calls it with one argument or two, depending on the release.
    """
    value = bytearray(ctypes.sizeof(ctypes.c_void_p))  # zeroed: a bool fills only its first byte
    call("hipPointerGetAttribute", value, constant("hipPointer_attribute", f"HIP_POINTER_ATTRIBUTE_{name}"), ptr)
    return int.from_bytes(value, sys.byteorder)


def _is_of_host(ptr: int) -> bool:
    try:
        return attribute("HOST_POINTER", ptr) != 0
    except VendorError as error:
        if error.code == INVALID_VALUE:  # of memory that the host cannot reach
            return False
        raise

# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory: how they are allocated in a context, and what is known of a pointer there."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from pinning.plugin import MemoryKind
from pinning_ur import release
from pinning_ur.loader import asked, made

_Value = TypeVar("_Value")

_SUPPORT = {
    MemoryKind.HOST: release.DEVICE_INFO_USM_HOST,
    MemoryKind.DEVICE: release.DEVICE_INFO_USM_DEVICE,
    MemoryKind.SHARED: release.DEVICE_INFO_USM_SHARED,
}
_ACCESS = 0x1


def kinds(device: int) -> frozenset[MemoryKind]:
    """The kinds of memory that a device can reach."""
    return frozenset(
        kind
        for kind, support in _SUPPORT.items()
        if asked(ctypes.c_uint32, "urDeviceGetInfo", device, support).value & _ACCESS
    )


def allocate(context: int, device: int, size: int, kind: MemoryKind) -> int:
    """`size` bytes."""
    match kind:
        case MemoryKind.HOST:
            return made("urUSMHostAlloc", context, None, None, size)
        case MemoryKind.DEVICE:
            return made("urUSMDeviceAlloc", context, device, None, None, size)
        case MemoryKind.SHARED:
            return made("urUSMSharedAlloc", context, device, None, None, size)


class Usm(NamedTuple):
    """What a context knows of an address; `type` is UR_USM_TYPE_UNKNOWN (0) where that is nothing."""

    type: int
    base: int
    size: int
    device: int


def usm(context: int, ptr: int) -> Usm:
    """Ask about an address that is not null. The allocation may go meanwhile, and then the size is 0."""

    def ask(kind: Callable[[], _Value], property_: int) -> _Value:
        return asked(kind, "urUSMGetMemAllocInfo", context, ptr, property_)

    kind = usm_type(context, ptr)
    if kind not in (release.USM_HOST, *release.USM_OF_A_DEVICE):
        return Usm(0, 0, 0, 0)
    base = ask(ctypes.c_void_p, release.ALLOC_INFO_BASE).value or 0
    size = ask(ctypes.c_size_t, release.ALLOC_INFO_SIZE).value
    on = kind in release.USM_OF_A_DEVICE
    device = ask(ctypes.c_void_p, release.ALLOC_INFO_DEVICE).value or 0 if on else 0
    return Usm(kind, base, size, device)


def usm_type(context: int, ptr: int) -> int:
    """The UR_USM_TYPE of the memory at an address."""
    return asked(ctypes.c_int, "urUSMGetMemAllocInfo", context, ptr, release.ALLOC_INFO_TYPE).value

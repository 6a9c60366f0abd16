# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory: how the driver allocates them, and what it knows of a pointer."""

from __future__ import annotations

from typing import Any, NamedTuple

from pinning.plugin import MemoryKind
from pinning_cuda.driver import call, constant

_PORTABLE_AND_MAPPED = 0x01 | 0x02  # pinned for, and mapped into, every context
_WRITE_COMBINED = 0x04
_ATTACH_GLOBAL = 0x01  # any stream of any GPU may use it
_MEMORYTYPE_HOST = 1


def allocate(size: int, kind: MemoryKind) -> int:
    """`size` bytes in the current context: the host's address of HOST memory, else the device's."""
    match kind:
        case MemoryKind.HOST:
            (ptr,) = call("cuMemHostAlloc", size, _PORTABLE_AND_MAPPED)
        case MemoryKind.DEVICE:
            (ptr,) = call("cuMemAlloc", size)
        case MemoryKind.SHARED:
            (ptr,) = call("cuMemAllocManaged", size, _ATTACH_GLOBAL)
    return int(ptr)


def allocate_write_combined(size: int) -> int:
    """As `allocate` of HOST memory, of which the host's caches hold nothing."""
    (ptr,) = call("cuMemHostAlloc", size, _PORTABLE_AND_MAPPED | _WRITE_COMBINED)
    return int(ptr)


def free(ptr: int, kind: MemoryKind) -> None:
    """Give back what `allocate` returned for this kind, once all work of the device is done."""
    call("cuMemFreeHost" if kind is MemoryKind.HOST else "cuMemFree", ptr)


class Range(NamedTuple):
    """An allocation or a registration of anyone in this process. `device` is an index, None for host memory."""

    kind: MemoryKind
    device_ptr: int
    size: int
    device: int | None


def range_around(ptr: int) -> Range | None:
    """What the driver knows of a pointer, if anything; it makes no context and needs none to be current."""
    asked = ("MEMORY_TYPE", "IS_MANAGED", "RANGE_START_ADDR", "RANGE_SIZE", "DEVICE_ORDINAL")
    memory_type, managed, start, size, ordinal = (int(value) for value in _attributes(ptr, *asked))
    if not memory_type or not size:  # not a pointer that the driver knows
        return None
    if managed:
        return Range(MemoryKind.SHARED, start, size, ordinal)
    if memory_type == _MEMORYTYPE_HOST:
        return Range(MemoryKind.HOST, start, size, None)
    return Range(MemoryKind.DEVICE, start, size, ordinal)


def host_base(device_ptr: int) -> int:
    """The host's address of the HOST memory at `device_ptr`; 0 where there is none."""
    (base,) = _attributes(device_ptr, "HOST_POINTER")
    return int(base)


def _attributes(ptr: int, *names: str) -> list[Any]:
    # All at once, so that they are of one allocation. What a pointer has not is 0 and no error.
    wanted = [constant("CUpointer_attribute", f"CU_POINTER_ATTRIBUTE_{name}") for name in names]
    (values,) = call("cuPointerGetAttributes", len(wanted), wanted, ptr)
    return list(values)

# SPDX-License-Identifier: Apache-2.0
"""Limits and facts of this machine, for the commands."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from pinning.cli.units import size as bytes_text
from pinning.errors import LockLimitError
from pinning.machine.room import Room, cgroup_memory, system_memory
from pinning.plugin import Device
from pinning.plugin.locking import lock_limit_of

Bytes = NDArray[numpy.uint8]


def locked_by_kernel() -> int:
    """Bytes that the kernel counts as locked by mlock for this process: VmLck of /proc/self/status."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.partition("VmLck:")[2].split(maxsplit=1)[0]) * 1024


class Bound(NamedTuple):
    """How many bytes can be locked, the reason for the limit, and the command that raises it."""

    size: int
    why: str
    remedy: str


def fit(device: Device, wanted: int, count: int, multiple_of: int) -> tuple[int, Bound | None]:
    """The size of each of `count` buffers to lock, and the limit that makes them smaller than wanted, if any.

    The limit is the vendor's, or a part of the available memory. Raises LockLimitError if there is no room.
    """
    memory = tightest_memory()
    why = f"{memory.name} has {bytes_text(max(memory.free, 0))} free"
    bounds = [Bound(memory.free // 4, why, memory.remedy)]  # commands also fill other buffers
    if limit := lock_limit_of(device):
        why = f"{limit.name} lets this process lock {bytes_text(limit.limit)}"
        bounds.append(Bound(limit.limit - limit.used, why, limit.remedy))
    room = min(bounds)
    share = room.size // count
    size = min(share, wanted)
    size -= size % (multiple_of if size >= multiple_of else mmap.PAGESIZE)
    if size <= 0:
        raise LockLimitError(f"{room.why}, too little for this command; to raise it: {room.remedy}")
    return size, room if share < wanted else None


def tightest_memory() -> Room:
    """The memory limit that leaves least free: the machine's, or that of a control group."""
    return min((system_memory(), *cgroup_memory()), key=lambda room: room.free)


def description(device: Device) -> str:
    """The description of a device, or its name if it has none."""
    return str(getattr(device, "description", device.name))


def memory_at(ptr: int, length: int) -> Bytes:
    """Host memory as an array that does not keep its owner from being closed."""
    return numpy.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(ptr))

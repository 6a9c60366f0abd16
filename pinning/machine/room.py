# SPDX-License-Identifier: Apache-2.0
"""Whether there is room for a lock, checked before any page is touched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pinning.errors import LockLimitError
from pinning.machine.control_group import memory_group
from pinning.runtime.units import exact_size

# Version 1 of cgroups expresses "no limit" as the largest multiple of the page size.
_NO_LIMIT = 1 << 62


class Room(NamedTuple):
    """A bound on the memory of this process: bytes in total, bytes still free, and how to raise it."""

    name: str
    limit: int
    free: int
    remedy: str


def system_memory(root: Path = Path("/")) -> Room:
    """The memory that this machine can still provide without swapping. Raises OSError."""
    lines = (root / "proc/meminfo").read_text("utf-8").splitlines()
    kib = {name: int(figure.split()[0]) for name, _, figure in (line.partition(":") for line in lines)}
    total, available = (kib[name] << 10 for name in ("MemTotal", "MemAvailable"))
    return Room("the machine's memory", total, available, "end what else uses it, or lock less at a time")


def file_system(path: Path) -> Room:
    """The size and the free space of the file system of a path. Raises OSError."""
    system = os.statvfs(path)
    remedy = f"mount -o remount,size=BYTES {path} (as root; for a container: its --shm-size)"
    return Room(f"the file system {path}", system.f_frsize * system.f_blocks, system.f_frsize * system.f_bavail, remedy)


def cgroup_memory(root: Path = Path("/")) -> Iterator[Room]:
    """The memory limits of this process's control group and of the groups above it, if they have any."""
    mount, group, names = memory_group(root)
    for path in (group, *group.parents):
        folder = mount.joinpath(*path.parts[1:])
        try:
            limit = (folder / names.limit).read_text("utf-8").strip()
            if limit == "max" or int(limit) >= _NO_LIMIT:
                continue
            used = int((folder / names.used).read_text("utf-8"))
            usage = dict(line.split() for line in (folder / "memory.stat").read_text("utf-8").splitlines())
        except OSError:
            continue  # The root group has no limit, and a container may not see the groups above its own.
        # Cached files count as used, but are evicted when memory is needed.
        cached = sum(int(usage[names.stat_prefix + kind]) for kind in ("active_file", "inactive_file"))
        remedy = f"echo BYTES > {folder / names.limit} (as root; for a container: its --memory)"
        yield Room(f"the memory limit of control group {path}", int(limit), int(limit) - used + cached, remedy)


def check(size: int, room: Room) -> None:
    """Refuse `size` bytes if fewer are left. Raises LockLimitError."""
    if size > room.free:
        raise LockLimitError(
            f"locking {exact_size(size)} is more than {room.name} allows: {exact_size(room.limit)}, of which "
            f"{exact_size(max(room.free, 0))} are free; to raise it: {room.remedy}"
        )

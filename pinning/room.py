# SPDX-License-Identifier: Apache-2.0
"""Whether there is room for a lock, asked before anything is touched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from pinning import idle
from pinning.control_group import memory_group
from pinning.errors import LockLimitError
from pinning.plugin import Device, LockLimit

# Looking takes up to 0.3 ms. Touching this much takes 10 times that, and a machine without this much to spare is
# out of memory with or without the lock.
WORTH_A_LOOK = 16 << 20

# Version 1 of cgroups says "no limit" by the largest number that is a whole count of pages.
_NO_LIMIT = 1 << 62


class Room(NamedTuple):
    """How much memory something still allows this process.

    Attributes
    ----------
    name : str
        What sets the bound.
    limit, free : int
        Bytes in all, and bytes still to be had.
    remedy : str
        What makes it more.
    """

    name: str
    limit: int
    free: int
    remedy: str


def check_room(size: int, device: Device, resident: bool) -> None:
    """Refuse a lock for which there is no room. What is idle gives way to it, where that is enough.

    Parameters
    ----------
    size : int
        Bytes that are not locked yet.
    device : Device
        The device that will lock them; a `LimitedDevice` says how much its vendor allows.
    resident : bool
        Whether the pages are in memory already, so that locking them takes no more of it.

    Raises
    ------
    LockLimitError
        The message has the limit, the need and the command that raises the limit.

    What cannot be read, without /proc or a file descriptor to be had, does not bind here; the vendor says no itself.
    """
    with suppress(OSError):
        _check_limit(size, device)
    if not resident:
        check_memory(size)


def check_memory(size: int) -> None:
    """Refuse what neither the machine nor a control group has room for. Raises as `check_room`."""
    if size < WORTH_A_LOOK:
        return
    try:
        _check_memory(size)
    except LockLimitError:
        idle.clear_up()  # what is idle for others is memory of theirs, locked or not
        _check_memory(size)


def _check_memory(size: int) -> None:
    with suppress(OSError):
        check(size, system_memory())
    for room in cgroup_memory():
        check(size, room)


def _check_limit(size: int, device: Device) -> None:
    # isinstance(device, LimitedDevice) would take 20 us.
    lock_limit: Callable[[], LockLimit | None] | None = getattr(device, "lock_limit", None)
    cleared = False
    while lock_limit:
        unlocks = idle.unlocks()
        lock = lock_limit()
        if lock is None:
            return
        room = Room(lock.name, lock.limit, lock.limit - lock.used, lock.remedy)
        if size > room.free and not cleared:
            cleared = True
            idle.clear_up()
        elif size <= room.free or not idle.give_way(device, size - room.free, unlocks):
            check(size, room)
            return


def system_memory() -> Room:
    """The memory that this machine can still give without swapping."""
    memory = psutil.virtual_memory()
    return Room("the machine's memory", memory.total, memory.available, "end what else uses it, or lock less at a time")


def file_system(path: Path) -> Room:
    """What the file system of a path has. Raises OSError."""
    system = os.statvfs(path)
    remedy = f"mount -o remount,size=BYTES {path} (as root; for a container: its --shm-size)"
    return Room(f"the file system {path}", system.f_frsize * system.f_blocks, system.f_frsize * system.f_bavail, remedy)


def cgroup_memory(root: Path = Path("/")) -> Iterator[Room]:
    """The memory limit of this process' control group and of each group around it, where they have one.

    Parameters
    ----------
    root : Path, optional
        Where ``proc`` and ``sys`` are mounted.
    """
    mount, group, names = memory_group(root)
    for path in (group, *group.parents):
        folder = mount.joinpath(*path.parts[1:])
        try:
            limit = (folder / names.limit).read_text().strip()
            if limit == "max" or int(limit) >= _NO_LIMIT:
                continue
            used = int((folder / names.used).read_text())
            usage = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except OSError:
            continue  # The root group has no limit, and a container may not see the groups around its own.
        # Files that are cached count as used, but give way.
        cached = sum(int(usage[names.stat_prefix + kind]) for kind in ("active_file", "inactive_file"))
        remedy = f"echo BYTES > {folder / names.limit} (as root; for a container: its --memory)"
        yield Room(f"the memory limit of control group {path}", int(limit), int(limit) - used + cached, remedy)


def check(size: int, room: Room) -> None:
    """Refuse `size` bytes where there are not so many left. Raises as `check_room`."""
    if size > room.free:
        raise LockLimitError(
            f"locking {_bytes(size)} is more than {room.name} allows: {_bytes(room.limit)}, of which "
            f"{_bytes(max(room.free, 0))} are free; to raise it: {room.remedy}"
        )


def _bytes(count: int) -> str:
    return f"{count} bytes ({count / 2**20:.1f} MiB)"

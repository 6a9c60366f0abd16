# SPDX-License-Identifier: Apache-2.0
"""Whether there is room for a lock, if necessary after cached regions were given back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from pinning.budget import cache
from pinning.errors import LockLimitError
from pinning.machine.room import Room, cgroup_memory, check, system_memory
from pinning.plugin import Device, LockLimit

# A check takes up to 0.3 ms. Populating this much takes 10 times as long, and a machine without this much to spare is
# out of memory with or without the lock.
WORTH_A_LOOK = 16 << 20
MOST_LOOKS = 64  # at a limit while other threads lock and unlock; a lock that does not fit must end


def check_room(size: int, device: Device, *, fresh: bool) -> None:
    """Refuse to lock `size` more bytes if a limit of the device has no room even after cached regions were given back.

    `fresh`: none of the pages is locked yet. Those that are count once, so without it only a lock that is larger than
    the whole limit is refused here, and the vendor refuses what does not fit. So it does if the limit cannot be read,
    without /proc or a free descriptor. Raises LockLimitError with limit, need, remedy.
    """
    # isinstance(device, LimitedDevice) would take 20 us.
    lock_limit: Callable[[], LockLimit | None] | None = getattr(device, "lock_limit", None)
    if lock_limit is None:
        return
    with suppress(OSError):
        cleared = False
        for _ in range(MOST_LOOKS):
            changes = cache.changes(device)
            lock = lock_limit()
            if lock is None:
                return
            room = Room(lock.name, lock.limit, lock.limit - lock.used, lock.remedy)
            if size > room.free and not cleared:
                cleared = True
                cache.clear_up()
            elif size <= room.free or not cache.give_way(device, size - room.free, changes):
                break
        if size > (room.free if fresh else room.limit):
            check(size, room)


def check_memory(size: int) -> None:
    """Refuse `size` bytes if the machine or a control group has no room for them. Raises as `check_room`."""
    if size < WORTH_A_LOOK:
        return
    try:
        _check_memory(size)
    except LockLimitError:
        cache.clear_up()  # regions cached for other devices take memory too
        _check_memory(size)


def _check_memory(size: int) -> None:
    with suppress(OSError):
        check(size, system_memory())
    for room in cgroup_memory():
        check(size, room)

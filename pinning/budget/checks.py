# SPDX-License-Identifier: Apache-2.0
"""Whether there is room for a lock: cached registrations give way to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from pinning.budget import cache
from pinning.errors import LockLimitError
from pinning.machine.room import Room, cgroup_memory, check, system_memory
from pinning.plugin import Device, LockLimit

# Looking takes up to 0.3 ms. Touching this much takes 10 times that, and a machine without this much to spare is
# out of memory with or without the lock.
WORTH_A_LOOK = 16 << 20


def check_room(size: int, device: Device, resident: bool) -> None:
    """Refuse a lock of bytes that are not locked yet and for which there is no room, once what is cached has given way.

    `resident`: the pages are in memory already, so that locking takes no more of it. What cannot be read, for want of
    /proc or a descriptor, does not bind here; the vendor refuses by itself. Raises LockLimitError with limit, need,
    remedy.
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
        cache.clear_up()  # what is cached for other devices is memory too
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
        unlocks = cache.unlocks()
        lock = lock_limit()
        if lock is None:
            return
        room = Room(lock.name, lock.limit, lock.limit - lock.used, lock.remedy)
        if size > room.free and not cleared:
            cleared = True
            cache.clear_up()
        elif size <= room.free or not cache.give_way(device, size - room.free, unlocks):
            check(size, room)
            return

# SPDX-License-Identifier: Apache-2.0
"""Whether there is room for a lock, with what the cache can give back."""

from __future__ import annotations

from contextlib import suppress

from pinning.budget import cache
from pinning.errors import LockLimitError
from pinning.machine.room import Room, cgroup_memory, check, system_memory
from pinning.plugin import Device, LockLimit
from pinning.plugin.locking import lock_limit_of

# A check takes up to 0.3 ms. Populating this much takes 10 times as long, and a machine without this much to spare is
# out of memory with or without the lock.
WORTH_A_LOOK = 16 << 20


def check_limit(size: int, device: Device) -> None:
    """Refuse a lock of `size` bytes that is larger than a limit of the device. Raises as `check_room`.

    What other locks have used of the limit is the vendor's to check: pages that are locked already count once.
    """
    limit = _lock_limit(device)
    if limit is not None and size > limit.limit:
        check(size, _room(limit))


def check_room(size: int, device: Device) -> None:
    """Refuse to lock `size` bytes of new pages if a limit of the device has no room, even with an empty cache.

    Without /proc or a free descriptor the limit cannot be read, and the vendor refuses what does not fit. Raises
    LockLimitError with limit, need, remedy.
    """
    cache.clear_up()
    while True:
        ended = cache.ended()
        limit = _lock_limit(device)
        if limit is None or size <= limit.limit - limit.used + cache.cached(device):
            return
        if not cache.wait_for_an_end(ended):
            check(size, _room(limit))


def _lock_limit(device: Device) -> LockLimit | None:
    with suppress(OSError):
        return lock_limit_of(device)
    return None


def _room(limit: LockLimit) -> Room:
    return Room(limit.name, limit.limit, limit.limit - limit.used, limit.remedy)


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

# SPDX-License-Identifier: Apache-2.0
"""What the plugin has locked, for all of its devices.

HSA's locks are the process's, not a device's, and the runtime cannot always tell what is locked: where the kernel
driver supports shared virtual memory, `hsa_amd_pointer_info` knows nothing of a lock. Nor does it count locks reliably:
of two locks with one base and different sizes `hsa_amd_memory_unlock` undoes neither, and says that it has. So no two
locks may overlap, and this is where that is known.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from operator import attrgetter

from pinning.plugin import PinnedInfo

_BASE = attrgetter("base")


class Lock:
    """A range of the host that is being locked, and then is: from then on `device_ptr` is known."""

    def __init__(self, base: int, size: int) -> None:
        self.base = base
        self.size = size
        self.device_ptr: int | None = None


class Locks:
    """All `Lock` objects, none of which overlap, by base."""

    def __init__(self) -> None:
        self._locks: list[Lock] = []
        self._mutex = threading.Lock()

    def enter(self, lock: Lock) -> bool:
        """Enter a range before it is locked; False where it shares a byte with another."""
        with self._mutex:
            before = bisect_left(self._locks, lock.base + lock.size, key=_BASE)
            if before and self._locks[before - 1].base + self._locks[before - 1].size > lock.base:
                return False
            insort(self._locks, lock, key=_BASE)
            return True

    def leave(self, lock: Lock) -> None:
        """Forget a range, if it was entered."""
        with self._mutex:
            if lock in self._locks:
                self._locks.remove(lock)

    def around(self, ptr: int) -> Lock | None:
        """The range that holds `ptr`."""
        with self._mutex:
            behind = bisect_right(self._locks, ptr, key=_BASE)
            lock = self._locks[behind - 1] if behind else None
        return lock if lock and ptr < lock.base + lock.size else None

    def info(self, ptr: int) -> PinnedInfo | None:
        """The range that holds `ptr`, once it is locked."""
        lock = self.around(ptr)
        return PinnedInfo(lock.base, lock.size, lock.device_ptr) if lock and lock.device_ptr is not None else None


LOCKS = Locks()

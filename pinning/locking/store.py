# SPDX-License-Identifier: Apache-2.0
"""Locks objects of a store that several processes share, such as Ray's, in the background when they are used.

The store is one mapping of shared memory, in which objects are made, used and deleted, and others take their place.
Each is locked as a whole and by itself, so that no copy of an object crosses the border of a lock, and unused objects
are not populated.

A copy from locked memory continues after its call has returned; one from pageable memory is done with its source by
then. So an object that this process has used is released only after the device has completed all work submitted until
then; meanwhile the store does not reuse its place.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy

from pinning.budget.cache import give_back_crossing
from pinning.budget.limits import budget
from pinning.errors import LockLimitError, PartialOverlapError, PinningError
from pinning.locking.devices import pinned_map
from pinning.locking.lock import Lock, lock, range_of, unlock_cached
from pinning.machine.mappings import mappings
from pinning.map.adapters import synchronize_in_background
from pinning.plugin import Device, MemoryDevice
from pinning.runtime.handles import refuse_copy
from pinning.runtime.process import Inbox


class ObjectLocks:
    """The locks of an object store.

    An object that is no longer used, or is deleted, stays registered, because it may be used again, or another one of
    its size may take its place: its lock goes into the registration cache, which is switched on for that.

    `device` is called until it returns one. Only objects of at least `smallest` bytes, mapped from a file with `name`
    in its name, are locked. `pace` is in bytes per second: the device's other work waits for a lock, which is therefore
    delayed by the time that the object's first copy takes at this pace.
    """

    def __init__(
        self,
        device: Callable[[], Device | None],
        smallest: int,
        name: str,
        log: logging.Logger,
        pace: float = 10e9,
    ) -> None:
        self._ask, self._smallest, self._name, self._log, self._pace = device, smallest, name, log, pace
        self._device: Device | None = None
        self._extents: list[_Extent] = []  # in use, by address; none overlap
        self._refused: set[tuple[int, int]] = set()
        self._changing = threading.Lock()
        self._todo = Inbox()  # extents to lock, uses that have ended, and None
        self._said = self._closing = False
        if budget().idle_limit == 0:
            budget(idle=True)
        self._thread = threading.Thread(target=self._work, name="pinning store", daemon=True)
        self._thread.start()

    def use(self, memory: object, parts: Sequence[object]) -> Sequence[object]:
        """Have an object locked; return one buffer for each of `parts`, through which it is to be used.

        The store keeps the object as long as `memory` is kept: as long as any of these buffers exists, and then until
        the device has done its work.
        """
        try:
            use = self._begin(memory)
            return parts if use is None else _views(parts, _User(use, self._todo))
        except Exception as error:  # of any kind: the object can be used without a lock
            self._say(error)
            return parts

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "make one where it is needed")

    def close(self) -> None:
        """Lock nothing more, and undo each lock as soon as its object is no longer used."""
        self._closing = True
        self._todo.put(None)

    def _begin(self, memory: Any) -> _Use | None:
        if not self._thread.is_alive():  # closed; or in a forked child, where thread and locks are the parent's
            return None
        start, size = range_of(memory)
        with self._changing:
            at = self._overlapping(start, size)
            old = self._extents[at]
            if len(old) == 1 and old[0].is_at(start, size):
                return self._count(memory, old[0])
            del self._extents[at]
        for extent in old:
            extent.undo(Lock.unlock)  # of an object that no longer exists: a copy of this one must not cross its border
        registered = self._device is not None and give_back_crossing(pinned_map(self._device), start, size)
        if size < self._smallest or self._closing or (start, size) in self._refused:
            return None
        if self._device_to_lock_for() is None or not (registered or _is_mapped(start, size, self._name)):
            return None
        extent = new = _Extent(start, size, time.monotonic() + size / self._pace)
        extent.asked = registered
        with self._changing:
            at = self._overlapping(start, size)
            if not self._extents[at]:
                self._extents[at] = [extent]
            elif not (extent := self._extents[at][0]).is_at(start, size):
                return None
            use = self._count(memory, extent)
        if registered and extent is new:
            self._lock(extent)  # immediately: no vendor is called
        return use

    def _count(self, memory: object, extent: _Extent) -> _Use:
        """Enter a use; called with the mutex held."""
        use = _Use(memory, extent)
        extent.uses.add(use)
        if not extent.asked:
            extent.asked = True
            self._todo.put(extent)
        return use

    def _overlapping(self, start: int, size: int) -> slice:
        first = bisect_right(self._extents, start, key=lambda extent: extent.end)
        return slice(first, bisect_left(self._extents, start + size, first, key=lambda extent: extent.start))

    def _device_to_lock_for(self) -> Device | None:
        if self._device is None:
            self._device = self._ask()
        return self._device

    def _work(self) -> None:
        """Lock objects, and release those no longer used."""
        ended: list[_Use] = []
        waiting: list[_Extent] = []
        while not self._closing or self._extents:
            first = min((extent.due for extent in waiting), default=None)
            for each in self._todo.take(-1 if first is None else max(first - time.monotonic(), 0)):
                if isinstance(each, _Extent):
                    waiting.append(each)
                elif each is not None:
                    ended.append(each)
            each = None
            for extent in [extent for extent in waiting if extent.due <= time.monotonic()]:
                waiting.remove(extent)
                self._lock(extent)
            with suppress(PinningError):  # what the vendor refuses is tried again with the next item
                if ended and isinstance(self._device, MemoryDevice):
                    synchronize_in_background(self._device)
                while ended:
                    self._end(ended[-1])
                    ended.pop()
                if self._closing and self._device is not None:
                    give_back_crossing(pinned_map(self._device), 1, 2**64 - 1)

    def _end(self, use: _Use) -> None:
        extent = use.extent
        with self._changing:
            extent.uses.discard(use)
            if extent.uses or (extent.asked and not extent.begun):
                return
        self._let_go(extent)

    def _let_go(self, extent: _Extent) -> None:
        """Release an extent that had no use just now."""
        extent.undo(unlock_cached)
        with self._changing:
            if extent.uses:
                self._todo.put(extent)
            elif extent in self._extents:
                self._extents.remove(extent)

    def _lock(self, extent: _Extent) -> None:
        with self._changing:
            if extent not in self._extents:
                return
            extent.begun, extent.lock = True, None
            extent.settled = threading.Event()  # a new one: it may be locked once more
        try:
            extent.lock = lock(extent.start, extent.size, device=self._device)
        except Exception as error:
            self._say(error)
            if isinstance(error, (LockLimitError, PartialOverlapError)):
                extent.asked = extent.begun = False  # tried again with the next use
            else:
                self._refused.add((extent.start, extent.size))
        finally:
            extent.settled.set()
        if not extent.uses:
            self._let_go(extent)

    def _say(self, error: Exception) -> None:
        if not self._said:
            self._said = True
            self._log.warning("some objects of the store are not locked, so they are copied as before: %s", error)


class _Extent:
    """The place of an object, present or past, and its lock."""

    def __init__(self, start: int, size: int, due: float) -> None:
        self.start, self.size, self.end = start, size, start + size
        self.due = due  # when its lock is to begin
        self.lock: Lock | None = None
        self.asked = self.begun = False
        self.settled = threading.Event()  # the lock that was begun has succeeded or failed
        self.uses: set[_Use] = set()

    def is_at(self, start: int, size: int) -> bool:
        """Whether it is exactly this range, and still locked if it was: memory may have been unmapped."""
        return self.start == start and self.size == size and (self.lock is None or self.lock.held)

    def undo(self, unlock: Callable[[Lock], object]) -> None:
        if self.begun:
            self.settled.wait()
            if self.lock is not None:
                unlock(self.lock)


class _Use:
    """A use of an object by this process."""

    def __init__(self, memory: object, extent: _Extent) -> None:
        self.memory, self.extent = memory, extent


class _User:
    """Shared by all views of an object: the use ends with the last of them."""

    def __init__(self, use: _Use, ended: Inbox) -> None:
        self._use, self._ended = use, ended

    def __del__(self) -> None:
        self._ended.put(self._use)  # which never waits


class _View:
    """Bytes of an object, which keep its `_User`."""

    def __init__(self, start: int, size: int, readonly: bool, user: _User) -> None:
        self._user = user
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (start, readonly), "version": 3}


def _views(parts: Sequence[Any], user: _User) -> list[object]:
    views: list[object] = []
    for part in parts:
        view = memoryview(part)
        if view.nbytes:
            views.append(numpy.asarray(_View(*range_of(part), view.readonly, user)).data)
        else:
            views.append(part)
    return views


def _is_mapped(start: int, size: int, name: str) -> bool:
    """Whether a range is a shared mapping of a file with `name` in its name. Locks may divide it into many mappings."""
    at = start
    for mapping in mappings(start, start + size):
        if mapping.start > at or not mapping.access.endswith(b"s") or name not in Path(mapping.file).name:
            return False
        at = mapping.end
    return at >= start + size

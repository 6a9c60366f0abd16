# SPDX-License-Identifier: Apache-2.0
"""What a pool has in store: segments that it has from the vendor, within a limit, and how much of them is in use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from pinning.errors import PinningError, StillInUseError, VendorError
from pinning.memory import Context
from pinning.plugin import MemoryDevice, MemoryKind
from pinning.pools.blocks import After, Block, Blocks, Segment
from pinning.pools.given import address_there, give_up, reserve

if TYPE_CHECKING:
    from pinning.queues import History, Queue


class Store:
    """Memory of one kind. Any thread may take and put back.

    Attributes
    ----------
    maximum : int or None
        Bytes that may be reserved at most.
    reserved, used : int
        Bytes from the vendor, and of these in blocks that somebody has.
    reserved_high, used_high : int
        The most that these ever were, since `reset_high`.
    closed : bool
    """

    def __init__(self, backing: Context, kind: MemoryKind, maximum: int | None) -> None:
        self.backing = backing
        self.kind = kind
        self.maximum = maximum
        self.reserved = self.reserved_high = self.used = self.used_high = 0
        self.closed = False
        self._growing = 0  # bytes that the vendor is being asked for
        self._blocks: dict[str, Blocks] = {}  # by name of the device
        self._queues: WeakSet[Queue] = WeakSet()  # of the points that blocks come after
        self._mutex = threading.Lock()  # guards all of this; neither a vendor nor a queue is called under it

    def reset_high(self) -> None:
        """Have the high watermarks begin again, with what there is now."""
        with self._mutex:
            self.reserved_high, self.used_high = self.reserved, self.used

    # ---- taking ----

    def take(self, place: MemoryDevice, length: int, history: History) -> Block | None:
        """A block that is free for whoever comes after `history`, if need be of new memory.

        None where that would go over the maximum. It counts as used; the high watermark waits for `keep`.
        """
        return self._reuse(place, length, history) or self._grow(place, length)

    def keep(self) -> None:
        """What was taken is in use for good."""
        if self.used > self.used_high:
            with self._mutex:
                self.used_high = max(self.used_high, self.used)

    def watch(self, queue: Queue) -> None:
        """Some of the points that blocks come after are in this queue."""
        with self._mutex:
            self._queues.add(queue)

    def put(self, place: MemoryDevice, block: Block, after: After) -> None:
        """Put a block back, for whoever comes after all these points."""
        with self._mutex:
            self.used -= block.size
            self._blocks[place.name].give_back(block, after)

    def _reuse(self, place: MemoryDevice, length: int, history: History) -> Block | None:
        def usable(block: Block) -> bool:
            return all(point in history for point in block.after)

        def taken() -> Block | None:
            with self._mutex:
                return self._take(place, length, usable)

        return taken() or (taken() if self.poll() else None)

    def _take(self, place: MemoryDevice, length: int, usable: Callable[[Block], bool]) -> Block | None:
        if self.closed:
            raise PinningError("the pool is closed; nothing can be allocated in it")
        blocks = self._blocks.get(place.name)
        block = blocks.take(length, usable) if blocks else None
        if block is not None:
            self.used += block.size
        return block

    def poll(self) -> bool:
        """Find out which frees are over; False where none was pending."""
        with self._mutex:
            if not any(blocks.waits() for blocks in self._blocks.values()):
                return False
            queues = list(self._queues)
        for queue in queues:
            with suppress(PinningError):  # the device is lost: what was freed there stays as it is
                queue.poll()
        return True

    # ---- growing ----

    def _grow(self, place: MemoryDevice, length: int) -> Block | None:
        if not self._begin_to_grow(length):
            if self.maximum is None or length > self.maximum:
                return None
            self.release(self.maximum - length)
            if not self._begin_to_grow(length):
                return None
        segment: Segment | None = None
        try:
            segment = self._new_segment(place, length)
        finally:
            with self._mutex:
                self._growing -= length
                if segment is not None:
                    self._add(place, segment)
                    # At once, before another thread can.
                    block = self._take(place, length, lambda block: block.segment is segment)
        return block

    def _begin_to_grow(self, length: int) -> bool:
        with self._mutex:
            if self.maximum is not None and self.reserved + self._growing + length > self.maximum:
                return False
            self._growing += length
            return True

    def _new_segment(self, place: MemoryDevice, length: int) -> Segment:
        try:
            base = reserve(self.backing, place, length, self.kind)
        except VendorError:
            if not self.release(0):
                raise
            base = reserve(self.backing, place, length, self.kind)
        try:
            return Segment(base, address_there(place, base) if self.kind is MemoryKind.HOST else base, length)
        except BaseException:
            give_up(self.backing, place, base)
            raise

    def _add(self, place: MemoryDevice, segment: Segment) -> None:
        self._blocks.setdefault(place.name, Blocks(place)).add(segment)
        self.reserved += segment.length
        self.reserved_high = max(self.reserved_high, self.reserved)

    # ---- giving back to the vendor ----

    def release(self, upto: int) -> bool:
        """Give back what is wholly free while more than `upto` bytes are reserved. Whether anything was.

        Raises
        ------
        StillLockedError
            Someone holds a lock in HOST memory that is free; it is still in store.
        VendorError
            The vendor refused; that memory is still in store.
        """
        self.poll()
        detached = self._detach(upto)
        any_at_all = bool(detached)
        try:
            while detached:
                place, segment = detached[-1]
                give_up(self.backing, place, segment.base)
                detached.pop()
        finally:
            with self._mutex:
                for place, segment in detached:
                    self._add(place, segment)
        return any_at_all

    def _detach(self, upto: int) -> list[tuple[MemoryDevice, Segment]]:
        detached = []
        with self._mutex:
            for blocks in self._blocks.values():
                blocks.settle()
                for segment in blocks.idle():
                    if self.reserved > upto:
                        blocks.remove(segment)
                        self.reserved -= segment.length
                        detached.append((blocks.place, segment))
        return detached

    def close(self) -> None:
        """Give all back, once the frees are over, and have nothing in store any more.

        Raises
        ------
        StillInUseError
            Somebody has a block, or work whose end nobody can tell may use one.
        StillLockedError, VendorError
            As `release`.

        After an error this is open.
        """
        with self._mutex:
            if self.used or self._growing:
                raise StillInUseError(f"the pool has {self.used + self._growing} bytes in use: free them first")
            self.closed = True
            queues = list(self._queues)
        try:
            for queue in queues:
                with suppress(PinningError):  # what went wrong in a queue is for its users; see below what is left
                    queue.record().wait()
            self.release(0)
            if self.reserved:
                raise StillInUseError(f"the pool has {self.reserved} bytes that work in a queue may still use")
        except BaseException:
            self.closed = False
            raise

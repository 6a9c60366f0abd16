# SPDX-License-Identifier: Apache-2.0
"""Memory that is allocated and freed in the order of queues."""

from __future__ import annotations

import _thread
import operator
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self
from weakref import WeakSet

from pinning.errors import InvalidRangeError, PinningError, PoolLimitError, StillInUseError, VendorError
from pinning.memory import Allocation, Context, owned
from pinning.memory.context import device_address, size_of
from pinning.plugin import MemoryDevice, MemoryKind, VendorQueue
from pinning.pools.allocation import PoolAllocation, RefusedAllocation
from pinning.pools.blocks import GRAIN, After, Block, Blocks, Segment, union
from pinning.queues import Event

if TYPE_CHECKING:
    from pinning.queues import Queue


class Pool:
    """Memory of one kind, to be allocated and freed in the order of queues; a context manager, which closes it.

    What is freed in a queue is given out again as soon as the new allocation comes after the free: at once in the same
    in-order queue, elsewhere when the wait list leads to the free's event, or when the free is known to be over.

    Parameters
    ----------
    context : Context
        Who owns the memory. Queues of its devices allocate here.
    kind : MemoryKind
    release_threshold : int, optional
        Bytes: while more is reserved, what is wholly free goes back to the vendor. That is looked at whenever
        something is freed here. By default all is kept until `trim_to` or `close`.
    maximum_size : int, optional
        Bytes that may be reserved at most.
    zero_initialize : bool
        Whether every allocation is filled with zeroes, in the order of its queue.
    read_only : bool
        A promise that devices only read what is allocated here. `Allocation.read_only` passes it on.
    """

    def __init__(
        self,
        context: Context,
        kind: MemoryKind = MemoryKind.DEVICE,
        *,
        release_threshold: int | None = None,
        maximum_size: int | None = None,
        zero_initialize: bool = False,
        read_only: bool = False,
    ) -> None:
        self.context = context
        self.kind = MemoryKind(kind)
        self.release_threshold = _limit(release_threshold, "release_threshold")
        self.maximum_size = _limit(maximum_size, "maximum_size")
        self.zero_initialize = zero_initialize
        self.read_only = read_only
        self.closed = False
        self._hold_nothing()
        _pools.add(self)

    def _hold_nothing(self) -> None:
        self._mutex = threading.Lock()  # guards what follows; neither a vendor nor a queue is called under it
        self._blocks: dict[str, Blocks] = {}  # by name of the device
        self._queues: WeakSet[Queue] = WeakSet()  # in which something was freed
        self._reserved = self._reserved_high = self._used = self._used_high = 0
        self._growing = 0  # bytes that the vendor is being asked for

    # ---- figures ----

    @property
    def reserved(self) -> int:
        """Bytes that the pool has from the vendor."""
        return self._reserved

    @property
    def used(self) -> int:
        """Bytes of these that are allocated, in blocks of multiples of 256."""
        return self._used

    @property
    def reserved_high(self) -> int:
        """The most that was ever reserved, since `reset_high`."""
        return self._reserved_high

    @property
    def used_high(self) -> int:
        """The most that was ever used, since `reset_high`."""
        return self._used_high

    def reset_high(self) -> None:
        """Have the high watermarks begin again, with what is reserved and used now."""
        with self._mutex:
            self._reserved_high, self._used_high = self._reserved, self._used

    # ---- allocating and freeing ----

    def alloc(self, queue: Queue, nbytes: int, wait_for: Iterable[Event] = ()) -> tuple[Allocation, Event]:
        """Allocate in a queue; see `Queue.alloc`."""
        size = size_of(nbytes)
        events = tuple(wait_for)
        member = self.context.member(queue.device)
        place = self.context.devices[0] if self.kind is MemoryKind.HOST else member
        if self.closed:
            raise PinningError(f"{self!r} is closed")
        length = -(-size // GRAIN) * GRAIN
        block = self._reuse(queue, place, length, events) or self._grow(place, length)
        if block is None:
            error = self._limit_error(length)
            return RefusedAllocation(self, place, size, error), Event.over(queue, error)
        allocation = PoolAllocation(self, queue, place, size, block)
        try:
            event = self._enter(queue, allocation, events)
        except BaseException:
            allocation.claim()
            self._put(allocation, block.after)
            raise
        if self._used > self._used_high:
            with self._mutex:
                self._used_high = max(self._used_high, self._used)
        return allocation, event

    def _enter(self, queue: Queue, allocation: PoolAllocation, wait_for: tuple[Event, ...]) -> Event:
        """Make an allocation known; returns the event after which it can be used."""
        table = owned.owned(allocation.device)
        table.enter(allocation)
        try:
            return self._order(queue, allocation, wait_for)
        except BaseException:
            table.take_out(allocation)
            raise

    def _order(self, queue: Queue, allocation: PoolAllocation, wait_for: tuple[Event, ...]) -> Event:
        block = allocation.block
        if self.zero_initialize:
            ptr, size = allocation.ptr, allocation.size

            def zero(vendor: VendorQueue) -> None:
                vendor.fill(ptr, b"\0", size)

            event: Event = queue.submit(zero, wait_for, (allocation,))
            if event.point is not None:
                block.after = union((*block.after, event.point))
            return event
        if wait_for or not all(point.reached for point in block.after):
            ready: Event = queue.submit(None, wait_for)
            return ready
        return Event.over(queue)

    def take_back(self, queue: Queue, allocation: PoolAllocation, wait_for: Iterable[Event]) -> Event:
        """Free an allocation that is marked as freed, in a queue's order; on failure nothing has changed."""
        after = allocation.block.after
        if queue.closed and queue is allocation.queue:  # all its work is over
            event = Event.over(queue)
        else:
            event = queue.submit(None, wait_for)
            if event.point is not None:
                others = [point for point in after if not event.comes_after(point)] if after else ()
                after = union((event.point, *others)) if others else (event.point,)
        if queue not in self._queues:
            self._queues.add(queue)
        owned.owned(allocation.device).take_out(allocation)
        self._put(allocation, after)
        if self.release_threshold is not None and self._reserved > self.release_threshold:
            with suppress(PinningError):  # the next one, or trim_to, tries again
                self._release(self.release_threshold)
        return event

    def _put(self, allocation: PoolAllocation, after: After) -> None:
        block = allocation.block
        with self._mutex:
            self._used -= block.size
            self._blocks[allocation.device.name].give_back(block, after)

    # ---- finding memory ----

    def _reuse(self, queue: Queue, place: MemoryDevice, length: int, wait_for: tuple[Event, ...]) -> Block | None:
        """A free block that may be used by what is allocated in `queue` after `wait_for`."""
        blocks = self._blocks.get(place.name)
        if blocks is None:
            return None
        history = queue.history(wait_for)

        def usable(block: Block) -> bool:
            return all(point in history for point in block.after)

        return self._take(blocks, length, usable) or (self._take(blocks, length, usable) if self._poll() else None)

    def _take(self, blocks: Blocks, length: int, usable: Callable[[Block], bool]) -> Block | None:
        with self._mutex:
            block = blocks.take(length, usable)
            if block is not None:
                self._used += block.size
            return block

    def _poll(self) -> bool:
        """Find out which frees are over; False where none was pending."""
        with self._mutex:
            if not any(blocks.waits() for blocks in self._blocks.values()):
                return False
        for queue in list(self._queues):
            with suppress(PinningError):  # the device is lost: what was freed there stays as it is
                queue.poll()
        return True

    def _grow(self, place: MemoryDevice, length: int) -> Block | None:
        """A block of new memory; None where that would go over the maximum."""
        if not self._begin_to_grow(length):
            self._release((self.maximum_size or 0) - length)
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
        return self._take(self._blocks[place.name], length, lambda block: block.segment is segment)

    def _begin_to_grow(self, length: int) -> bool:
        with self._mutex:
            if self.maximum_size is not None and self._reserved + self._growing + length > self.maximum_size:
                return False
            self._growing += length
            return True

    def _new_segment(self, place: MemoryDevice, length: int) -> Segment:
        try:
            base = self.context.vendor_allocate(place, length, self.kind)
        except VendorError:
            if not self._release(0):
                raise
            base = self.context.vendor_allocate(place, length, self.kind)
        try:
            return Segment(base, device_address(place, base) if self.kind is MemoryKind.HOST else base, length)
        except BaseException:
            self.context.vendor_free(place, base, length, self.kind)
            raise

    def _add(self, place: MemoryDevice, segment: Segment) -> None:
        self._blocks.setdefault(place.name, Blocks(place)).add(segment)
        self._reserved += segment.length
        self._reserved_high = max(self._reserved_high, self._reserved)

    # ---- giving memory back ----

    def trim_to(self, nbytes: int) -> None:
        """Give memory back until at most so many bytes are reserved, or what is left is in use or not over yet.

        Raises
        ------
        VendorError
            The vendor refused; the pool still has that memory.
        """
        wanted = operator.index(nbytes)
        if wanted < 0:
            raise InvalidRangeError(f"a pool cannot be trimmed to {wanted} bytes")
        self._release(wanted)

    def _release(self, upto: int) -> bool:
        """Give back what is wholly free while more than `upto` bytes are reserved. Whether anything was."""
        self._poll()
        detached = self._detach(upto)
        any_at_all = bool(detached)
        try:
            while detached:
                place, segment = detached[-1]
                self.context.vendor_free(place, segment.base, segment.length, self.kind)
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
                    if self._reserved > upto:
                        blocks.remove(segment)
                        self._reserved -= segment.length
                        detached.append((blocks.place, segment))
        return detached

    def close(self) -> None:
        """Give all memory back, once the frees are over; nothing can be allocated here afterwards.

        Raises
        ------
        StillInUseError
            Something is still allocated.
        VendorError
            The vendor refused. The pool stays open.
        """
        self.closed = True
        try:
            if self._used:
                raise StillInUseError(f"{self!r} has {self._used} bytes in use: free them first")
            for queue in list(self._queues):
                with suppress(PinningError):  # what went wrong in a queue is for its users; see below what is left
                    queue.record().wait()
            self._release(0)
            if self._reserved:
                raise StillInUseError(f"{self!r} has {self._reserved} bytes left that work in a queue may still use")
        except BaseException:
            self.closed = False
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if sys.is_finalizing() or getattr(self, "closed", True) or not self._reserved:
            return
        try:
            warnings.warn(f"{self!r} was dropped; close it, or use `with`", ResourceWarning, stacklevel=2, source=self)
        finally:
            # Not here: the garbage collector runs this in the middle of anything, under any lock.
            _thread.start_new_thread(self._close_dropped, ())

    def _close_dropped(self) -> None:
        with suppress(PinningError):  # nobody is there to hear
            self.close()

    def _limit_error(self, length: int) -> PoolLimitError:
        return PoolLimitError(
            f"{length} bytes more would take {self!r} over its maximum of {self.maximum_size}; it has reserved "
            f"{self._reserved}, of which {self._used} are in use: free some, or make a pool with a larger maximum"
        )

    def __repr__(self) -> str:
        return f"<Pool of {self.kind.name} of {self.context!r}{', closed' if self.closed else ''}>"


_pools: WeakSet[Pool] = WeakSet()


def _limit(nbytes: int | None, name: str) -> int | None:
    if nbytes is None:
        return None
    if (limit := operator.index(nbytes)) < 0:
        raise InvalidRangeError(f"{name} is {limit}; it cannot be negative")
    return limit


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool._hold_nothing()  # memory and queues are the parent's; the mutex may be held by a thread that is gone


os.register_at_fork(after_in_child=_after_fork_in_child)

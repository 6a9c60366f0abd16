# SPDX-License-Identifier: Apache-2.0
"""Pools: memory that is allocated and freed in the order of queues."""

from __future__ import annotations

import _thread
import operator
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self
from weakref import WeakSet

from pinning.errors import InvalidRangeError, PinningError, PoolLimitError
from pinning.memory import Allocation, Context
from pinning.plugin import MemoryKind, VendorQueue
from pinning.pools.blocks import GRAIN, After, union
from pinning.pools.given import PoolAllocation, made, refused, take_out
from pinning.pools.store import Store
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
        self.release_threshold = None if release_threshold is None else _bytes(release_threshold, "release_threshold")
        self.maximum_size = None if maximum_size is None else _bytes(maximum_size, "maximum_size")
        self.zero_initialize = zero_initialize
        self.read_only = read_only
        self._hold_nothing()
        _pools.add(self)

    def _hold_nothing(self) -> None:
        self._store = Store(self.context, self.kind, self.maximum_size)

    @property
    def closed(self) -> bool:
        """Whether nothing can be allocated here any more."""
        return self._store.closed

    # ---- figures ----

    @property
    def reserved(self) -> int:
        """Bytes that the pool has from the vendor."""
        return self._store.reserved

    @property
    def used(self) -> int:
        """Bytes of these that are allocated, in blocks of multiples of 256."""
        return self._store.used

    @property
    def reserved_high(self) -> int:
        """The most that was ever reserved, since `reset_high`."""
        return self._store.reserved_high

    @property
    def used_high(self) -> int:
        """The most that was ever used, since `reset_high`."""
        return self._store.used_high

    def reset_high(self) -> None:
        """Have the high watermarks begin again, with what is reserved and used now."""
        self._store.reset_high()

    # ---- allocating and freeing ----

    def alloc(self, queue: Queue, nbytes: int, wait_for: Iterable[Event] = ()) -> tuple[Allocation, Event]:
        """Allocate in a queue; see `Queue.alloc`."""
        size = operator.index(nbytes)
        if not 1 <= size <= sys.maxsize:
            raise InvalidRangeError(f"size is {size}; an allocation has at least 1 byte and at most {sys.maxsize}")
        events = tuple(wait_for)
        if not queue.usable:
            queue.submit(None)  # says why not
        member = self.context.member(queue.device)
        place = self.context.devices[0] if self.kind is MemoryKind.HOST else member
        length = -(-size // GRAIN) * GRAIN
        store = self._store
        block = store.take(place, length, queue.history(events))
        if block is None:
            error = self._limit_error(length)
            return refused(self, place, size, error), Event.over(queue, error)
        try:
            allocation = made(self, queue, place, size, block)
            try:
                event = self._order(queue, allocation, events)
            except BaseException:
                take_out(allocation)
                raise
        except BaseException:
            store.put(place, block, block.after)
            raise
        store.keep()
        return allocation, event

    def _order(self, queue: Queue, allocation: PoolAllocation, wait_for: tuple[Event, ...]) -> Event:
        """The event after which an allocation can be used."""
        block = allocation.block
        if self.zero_initialize:
            ptr, size = allocation.ptr, allocation.size

            def zero(vendor: VendorQueue) -> None:
                vendor.fill(ptr, b"\0", size)

            event: Event = queue.submit(zero, wait_for, (allocation,))
            if event.point is not None:
                self._store.watch(queue)
                block.after = union((*block.after, event.point))
            return event
        if wait_for or not all(point.reached for point in block.after):
            ready: Event = queue.submit(None, wait_for)
            return ready
        return Event.over(queue)

    def take_back(self, queue: Queue, allocation: PoolAllocation, wait_for: Iterable[Event]) -> Event:
        """Free an allocation that is marked as freed, in a queue's order; on failure nothing has changed."""
        event: Event = queue.submit(None, wait_for)
        after = allocation.block.after
        if event.point is not None:
            after = union((event.point, *(point for point in after if not event.comes_after(point))))
            self._store.watch(queue)
        self.put_back(allocation, after)
        return event

    def put_back(self, allocation: PoolAllocation, after: After) -> None:
        """Have the block of what is freed again, for whoever comes after all these points."""
        take_out(allocation)
        self._store.put(allocation.device, allocation.block, after)
        if self.release_threshold is not None and self._store.reserved > self.release_threshold:
            with suppress(PinningError):  # the next one, or trim_to, tries again
                self._store.release(self.release_threshold)

    # ---- giving memory back ----

    def trim_to(self, nbytes: int) -> None:
        """Give memory back until at most so many bytes are reserved, or what is left is in use or not over yet.

        Raises
        ------
        InvalidRangeError
            `nbytes` is negative.
        StillLockedError
            Someone holds a lock in HOST memory that is free; the pool still has it.
        VendorError
            The vendor refused; the pool still has that memory.
        """
        self._store.release(_bytes(nbytes, "the size to trim to"))

    def close(self) -> None:
        """Give all memory back, once the frees are over; nothing can be allocated here afterwards.

        Raises
        ------
        StillInUseError
            Something is still allocated.
        StillLockedError
            Someone holds a lock in its HOST memory.
        VendorError
            The vendor refused.

        After an error the pool is open.
        """
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # this module may be gone by then
        if is_finalizing() or not getattr(self, "_store", None) or not self.reserved:
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
            f"{self.reserved}, of which {self.used} are in use: free some, or make a pool with a larger maximum"
        )

    def __repr__(self) -> str:
        return f"<Pool of {self.kind.name} of {self.context!r}{', closed' if self.closed else ''}>"


_pools: WeakSet[Pool] = WeakSet()


def _bytes(nbytes: int, name: str) -> int:
    number = operator.index(nbytes)
    if number < 0:
        raise InvalidRangeError(f"{name} is {number}; it cannot be negative")
    return number


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool._hold_nothing()  # memory and queues are the parent's; the mutex may be held by a thread that is gone


os.register_at_fork(after_in_child=_after_fork_in_child)

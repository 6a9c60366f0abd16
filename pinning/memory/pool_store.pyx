# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""The memory of a pool: allocated by the vendor, within a limit, cut into blocks; and the users of the blocks.

No lock: the state of a pool is changed in C++ while the GIL is held, in steps that neither make nor destroy a Python
object, so that neither another thread nor a finalizer comes between. Vendors and queues are called between such steps.
"""

from cpython.object cimport PyObject
from cpython.weakref cimport PyWeakref_GetObject, PyWeakref_NewRef
from libc.stdint cimport uint64_t

from pinning.memory.allocation cimport (
    FREED, LEAVING, LIVE, Allocation, check_part_unlocked, kind_of, leave, number_of, size_of,
)
from pinning.memory.backing cimport Backing, device_address
from pinning.plugin.native cimport CMemoryKind, VendorQueue
from pinning.queues.event cimport Event
from pinning.queues.lane cimport Lane, Work
from pinning.queues.order cimport CDependencies
from pinning.queues.submitter cimport Submitter, events_of
from pinning.runtime.process cimport generation, is_parents

from contextlib import suppress
from typing import TYPE_CHECKING

from pinning.runtime.arguments import MOST_BYTES, byte_count, describe, integer
from pinning.errors import (
    InvalidRangeError,
    PinningError,
    PoolLimitError,
    StillInUseError,
    VendorError,
)
from pinning.plugin import MemoryKind, MemoryKindLike
from pinning.queues.pending import uses
from pinning.runtime.handles import refuse_copy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinning.memory.context import Context
    from pinning.queues import Queue

cdef enum:
    GRAIN = 256  # bytes: blocks start and end at multiples of it, so that every kernel finds its memory aligned


# ---- what a pool gives out ----


cdef class PoolAllocation(Allocation):
    """A block of a pool. Its `free` is a free in the queue where it was allocated.

    Attributes
    ----------
    queue : Queue
        Where it was allocated.
    """

    cdef int check_unused(self) except -1:
        points = uses(self)
        if points and not self.queue.closed:
            before = self.queue._history()
            points = [point for point in points if point not in before]
        if points:
            raise StillInUseError(f"{self!r} is in use by work of a queue: wait for that first")
        return 0

    cdef int check_unlocked(self) except -1:
        return check_part_unlocked(self)

    cdef int give_back(self) except -1:
        cdef Store pool = self.pool
        if self.queue.closed:  # all work that was ever in it is over
            pool.put(self)
            pool.release_more()
        else:
            pool.take_back(self.queue, self, ())
        return 0


cdef class Zeroes(Work):
    cdef submit(self, VendorQueue* queue):
        with nogil:
            queue.fill(self.written, 0, 1, self.written_size)


def free_in(Submitter queue not None: Queue, given: object, wait_for: Iterable[Event]) -> Event:
    """Free in the order of a queue; see `Queue.free`.

    Raises
    ------
    InvalidRangeError
        It is freed already, or was not allocated in a queue.
    TypeError
        It is not an allocation.
    StillLockedError
        There is a lock in it.
    StillInUseError
        A buffer of its bytes is exported.
    """
    if not isinstance(given, PoolAllocation):
        if not isinstance(given, Allocation):
            raise TypeError(f"memory is {describe(given)}; it must be an allocation returned by `Queue.alloc`")
        raise InvalidRangeError(f"{given} was not allocated in a queue: use its free() when its work is complete")
    cdef PoolAllocation allocation = given
    if allocation.error is not None:
        return Event._over(queue, allocation.error)
    allocation.claim()
    try:
        allocation.check_unlocked()
        allocation.check_unexported()
        return (<Store>allocation.pool).take_back(queue, allocation, events_of(wait_for))
    except BaseException:
        if allocation.state == LEAVING:
            allocation.state = LIVE
        raise


# ---- the pool's memory ----


cdef class Store:
    """The base of `Pool`: its memory, and how that is allocated and freed."""

    def __init__(
        self,
        Backing context not None: Context,
        kind: MemoryKindLike,
        release_threshold: int | None,
        maximum_size: int | None,
        bint zero_initialize,
        bint read_only,
    ) -> None:
        self.context = context
        self.number = number_of(kind)
        self.threshold = None if release_threshold is None else bytes_of(release_threshold, "release_threshold")
        self.limit = None if maximum_size is None else bytes_of(maximum_size, "maximum_size")
        self.zero_initialize, self.read_only = zero_initialize, read_only
        self.made_in = generation() - 1
        self.restart()

    def __dealloc__(self):
        for blocks in self.places:
            del blocks

    cdef int restart(self) except -1:
        """Become empty in a child process after fork, where the memory is the parent's."""
        if not is_parents(self.made_in):
            return 0
        for blocks in self.places:
            del blocks
        self.places.clear()
        for _ in self.context.devices:
            self.places.push_back(new Blocks())
        self.reserved_now = self.used_now = self.reserved_most = self.used_most = self.growing = 0
        self.queues, self.last_queue = {}, None
        self.made_in = generation()
        return 0

    # ---- figures ----

    @property
    def kind(self) -> MemoryKind:
        return kind_of(self.number)

    @property
    def release_threshold(self) -> int | None:
        return self.threshold

    @property
    def maximum_size(self) -> int | None:
        return self.limit

    @property
    def closed(self) -> bool:
        return self.shut

    @property
    def reserved(self) -> int:
        self.restart()
        return self.reserved_now

    @property
    def used(self) -> int:
        self.restart()
        return self.used_now

    @property
    def reserved_high(self) -> int:
        self.restart()
        return self.reserved_most

    @property
    def used_high(self) -> int:
        self.restart()
        return self.used_most

    def reset_high(self) -> None:
        """Reset the high watermarks to what is reserved and used now."""
        self.restart()
        self.reserved_most, self.used_most = self.reserved_now, self.used_now

    # ---- allocating ----

    def alloc(self, queue: Queue, nbytes: int, wait_for: Iterable[Event] = ()) -> tuple[Allocation, Event]:
        """Allocate in a queue; see `Queue.alloc`.

        Parameters
        ----------
        queue : Queue
            Of a device of this pool's context.
        nbytes, wait_for
            As for `Queue.alloc`, which also says what is returned.
        """
        if not isinstance(queue, Submitter):
            raise TypeError(f"queue is {describe(queue)}; a pool allocates in the order of a pinning.Queue")
        cdef Submitter submitter = queue
        cdef uint64_t size = size_of(nbytes)
        cdef tuple events = events_of(wait_for)
        submitter.check()
        self.restart()
        cdef uint64_t length = (size + GRAIN - 1) // GRAIN * GRAIN
        cdef tuple devices = self.context.devices
        cdef size_t place = 0
        cdef CDependencies before
        cdef Event event
        if submitter.device is not devices[0]:
            place = devices.index(self.context.member(submitter.device))
            if self.number == CMemoryKind.host:
                place = 0
        cdef PoolAllocation allocation = PoolAllocation.__new__(PoolAllocation)
        submitter.add_history(before, events)
        allocation.blocks = self.places[place]
        allocation.block = self.take(place, length, before)
        if allocation.block is NULL:
            return self.refused(allocation, submitter, devices[place], size, length)
        cdef Segment* segment = allocation.block.segment
        allocation.queue = submitter
        try:
            allocation.begin(allocation.block.start,
                             allocation.block.start - segment.base + segment.device_base,
                             size, self.number, self.context, devices[place], self)
            event = self.order(submitter, allocation, events)
        except BaseException:
            self.put(allocation)
            raise
        if self.used_now > self.used_most:
            self.used_most = self.used_now
        return allocation, event

    cdef tuple refused(self, PoolAllocation allocation, Submitter queue, device, uint64_t size, uint64_t length):
        allocation.extent.size, allocation.extent.kind = size, self.number
        allocation.context, allocation.device, allocation.pool = self.context, device, self
        allocation.error = PoolLimitError(
            f"{length} bytes more would take {self!r} over its maximum of {self.limit}; it has reserved "
            f"{self.reserved_now}, of which {self.used_now} are in use: free some, or make a pool with a larger maximum"
        )
        return allocation, Event._over(queue, allocation.error)

    cdef Event order(self, Submitter queue, PoolAllocation allocation, tuple events):
        """The event after which an allocation can be used."""
        cdef Event event
        cdef Zeroes zeroes
        if self.zero_initialize:
            zeroes = Zeroes.__new__(Zeroes)
            zeroes.written, zeroes.written_size = allocation.extent.ptr, allocation.extent.size
            self.watch(queue)
            try:
                event = queue.submit(zeroes, events, (allocation,))
            except BaseException:  # it may have been submitted all the same
                for lane in queue.lanes:
                    allocation.block.after.add_upto((<Lane>lane).native.get().timeline(), (<Lane>lane).native.get().count())
                raise
            allocation.block.after.add(event.native.timeline(), event.native.position())
            return event
        if events or not allocation.block.after.reached():
            return queue.submit(None, events)
        return Event._over(queue)

    cdef Block* take(self, size_t place, uint64_t length, const CDependencies& before) except? NULL:
        """Take a block that can be used after `before`, if need be of new memory; null if that exceeds the maximum."""
        cdef Block* block
        cdef bint polled = False
        while True:
            if self.shut:
                raise PinningError(f"{self!r} is closed; nothing can be allocated in it")
            block = self.places[place].take(length, before)
            if block is not NULL:
                self.used_now += block.size
                return block
            if polled or not self.poll():
                return self.grow(place, length)
            polled = True

    cdef Block* grow(self, size_t place, uint64_t length) except? NULL:
        cdef uint64_t base, device_base
        cdef bint gone
        cdef Block* block
        device = self.context.devices[place]
        if not self.has_room(length):
            if length > self.limit:
                return NULL
            self.release(self.limit - length, [])
            if not self.has_room(length):
                return NULL
        self.growing += length
        try:
            if self.shut:
                raise PinningError(f"{self!r} is closed; nothing can be allocated in it")
            try:
                base = self.context.take(device, length, self.number, False)
            except VendorError:
                if not self.release(0, []):
                    raise
                base = self.context.take(device, length, self.number, False)
            try:
                device_base = device_address(device, base) if self.number == CMemoryKind.host else base
                block = self.places[place].add(base, device_base, length)
            except BaseException:
                self.context.release(device, base, &gone)
                raise
        finally:
            self.growing -= length
        self.reserved_now += length
        self.used_now += length
        if self.reserved_now > self.reserved_most:
            self.reserved_most = self.reserved_now
        return block

    cdef bint has_room(self, uint64_t length) except *:
        return self.limit is None or self.reserved_now + self.growing + length <= self.limit

    # ---- freeing ----

    cdef Event take_back(self, Submitter queue, PoolAllocation allocation, tuple events):
        """Free a claimed allocation in the order of a queue; on failure nothing has changed."""
        cdef Event event = queue.submit(None, events)
        cdef CDependencies after, history
        self.watch(queue)
        if not allocation.block.after.replace(event.native.timeline(), event.native.position()):
            after.add(event.native.timeline(), event.native.position())
            event.native.add_history(history)
            after.add_uncovered(allocation.block.after, history)
            allocation.block.after.swap(after)
        self.put(allocation)
        self.release_more()
        return event

    cdef void put(self, PoolAllocation allocation) noexcept:
        """Take back the block of an allocation, for use by what comes after all points in its `after`."""
        if allocation.state != FREED:
            leave(allocation)
            allocation.state = FREED
        self.used_now -= allocation.block.size
        allocation.blocks.give_back(allocation.block)
        allocation.block = NULL

    cdef int release_more(self) except -1:
        if self.threshold is not None and self.reserved_now > self.threshold:
            self.release(self.threshold, [])  # what is refused is tried again next time, or by trim_to
        return 0

    cdef int watch(self, Submitter queue) except -1:
        """Note that blocks come after points in this queue."""
        if self.last_queue is not None and PyWeakref_GetObject(self.last_queue) is <PyObject*>queue:
            return 0
        reference = self.queues.get(id(queue))
        if reference is None or PyWeakref_GetObject(reference) is not <PyObject*>queue:
            reference = PyWeakref_NewRef(queue, None)
            self.queues = {key: each for key, each in self.queues.items() if each() is not None}
            self.queues[id(queue)] = reference
        self.last_queue = reference
        return 0

    cdef list watched(self):
        return [queue for each in list(self.queues.values()) if (queue := each()) is not None]

    cdef bint poll(self) except *:
        """Poll the queues of pending frees; False if none was pending."""
        cdef bint waits = False
        for blocks in self.places:
            waits = waits or blocks.waits()
        if waits:
            for queue in self.watched():
                try:
                    queue.poll()
                except PinningError:  # the queue is a parent process's: what was freed there stays as it is
                    pass
        return waits

    # ---- giving back to the vendor ----

    cdef bint release(self, uint64_t upto, list errors) except *:
        """Give back wholly free segments while more than `upto` bytes are reserved. Returns whether any was given back.

        Segments that are refused stay in the pool; the reasons are added to `errors`.
        """
        cdef bint any_at_all = False
        cdef size_t place
        cdef Blocks* blocks
        cdef vector[Block*] refused
        self.poll()
        for place in range(self.places.size()):
            blocks = self.places[place]
            blocks.coalesce()
            refused.clear()
            try:
                while self.reserved_now > upto and blocks.idle() is not NULL:
                    refused.reserve(refused.size() + 1)
                    try:
                        self.give_back_segment(place, blocks, blocks.claim(blocks.idle()), refused)
                        any_at_all = True
                    except PinningError as error:  # others may be accepted nevertheless
                        errors.append(error)
            finally:
                for block in refused:
                    blocks.give_back(block)
        return any_at_all

    cdef int give_back_segment(self, size_t place, Blocks* blocks, Block* block, vector[Block*]& refused) except -1:
        """Give a claimed segment back to the vendor."""
        cdef bint gone = False
        cdef uint64_t length = block.size
        self.reserved_now -= length
        try:
            self.context.release(self.context.devices[place], block.start, &gone)
        except BaseException:
            if gone:
                blocks.remove(block)
            else:
                self.reserved_now += length
                refused.push_back(block)
            raise
        blocks.remove(block)
        return 0

    def trim_to(self, nbytes: int) -> None:
        """Give memory back until at most `nbytes` are reserved, or the rest is in use or its frees are pending.

        Raises
        ------
        InvalidRangeError
            `nbytes` is negative.
        StillLockedError
            There is a lock in memory that is free; the pool still has it.
        VendorError
            The vendor refused; the pool still has that memory.
        """
        cdef uint64_t upto = bytes_of(nbytes, "the size to trim to")
        self.restart()
        cdef list errors = []
        self.release(upto, errors)
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Give all memory back, once all frees are complete; nothing can be allocated here afterwards.

        Raises
        ------
        StillInUseError
            Something is still allocated.
        StillLockedError
            There is a lock in its memory.
        VendorError
            The vendor refused.

        After an error the pool is open.
        """
        self.restart()
        if self.used_now or self.growing:
            raise StillInUseError(f"{self!r} has {self.used_now + self.growing} bytes in use: free them first")
        self.shut = True
        cdef list errors = []
        try:
            for queue in self.watched():
                with suppress(PinningError):  # errors of a queue are for its users; what is left is checked below
                    for tail in (<Submitter>queue).tails():
                        with suppress(PinningError):
                            tail.wait()
            self.release(0, errors)
            if errors:
                raise errors[0]
            if self.reserved_now:
                raise StillInUseError(f"{self!r} has {self.reserved_now} bytes that work in a queue may still use")
        except BaseException:
            self.shut = False
            raise

    def __reduce__(self):
        refuse_copy(self, "its memory has one owner; make another, with pinning.Pool")


cdef object bytes_of(nbytes, str name):
    return byte_count(min(integer(nbytes, name), MOST_BYTES), name, 0)  # more is as good as no limit

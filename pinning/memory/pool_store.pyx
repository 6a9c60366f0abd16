# SPDX-License-Identifier: Apache-2.0
"""The memory of a pool, and the allocations from it: a wrapper of <pinning/pool.hpp>."""

from cython.operator cimport dereference
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr
from libcpp.utility cimport move

from pinning.memory.allocation cimport (
    FREED, LEAVING, LIVE, Allocation, check_part_unlocked, kind_of, leave, number_of, size_of,
)
from pinning.memory.backing cimport Backing, device_address
from pinning.plugin.native cimport CMemoryKind, VendorQueue, raise_in_python
from pinning.queues.event cimport CEvent, Event, Meanwhile, handle_signals
from pinning.queues.lane cimport Lane, Work
from pinning.queues.order cimport CDependencies
from pinning.queues.submitter cimport Submitter, events_of
from pinning.runtime.process cimport generation, is_parents

from typing import TYPE_CHECKING

from pinning.runtime.arguments import MOST_BYTES, byte_count, describe, integer
from pinning.errors import (
    InvalidRangeError,
    PinningError,
    PoolLimitError,
    StillInUseError,
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

cdef extern from "<pinning/blocks.hpp>" namespace "pinning" nogil:
    cppclass Segment "pinning::Blocks::Segment":
        uint64_t base
        uint64_t device_base

    cppclass Block "pinning::Blocks::Block":
        Segment* segment
        uint64_t start
        CDependencies after

cdef extern from "<pinning/pool.hpp>" namespace "pinning" nogil:
    const uint64_t UNLIMITED "pinning::Pool::unlimited"

    cppclass Memory "pinning::Pool::Memory":
        uint64_t base
        uint64_t device_base

    cppclass Figures "pinning::Pool::Figures":
        uint64_t reserved
        uint64_t used
        uint64_t reserved_high
        uint64_t used_high

    cppclass Left "pinning::Pool::Left":
        uint64_t used
        uint64_t pending

    cppclass Source "pinning::Pool::Source":
        pass

    cppclass CPool "pinning::Pool":
        CPool(unique_ptr[Source] source, size_t devices, uint64_t most, uint64_t keep) except +
        Block* take_free(size_t device, uint64_t size, const CDependencies& before) except +raise_in_python
        Block* take(size_t device, uint64_t size, const CDependencies& before) except +raise_in_python
        @staticmethod
        void order(Block& block, const CEvent& event) except +
        cbool free(size_t device, Block* block) noexcept
        void untake(size_t device, Block* block) noexcept
        void free_excess() except +raise_in_python
        void trim(uint64_t upto) except +raise_in_python
        Left close(Meanwhile meanwhile) except +raise_in_python
        cbool is_closed() noexcept
        Figures figures() noexcept
        void reset_high() noexcept

cdef extern from "<pinning/python_source.hpp>" namespace "pinning":
    cppclass PythonSource(Source):
        ctypedef int (*Allocate)(PyObject* owner, size_t number, uint64_t size, Memory& made) except -1
        ctypedef int (*Free)(PyObject* owner, size_t number, uint64_t base, cbool& gone) except -1
        PythonSource(PyObject* owner, Allocate allocate, Free free)


# ---- what a pool gives out ----


cdef class PoolAllocation(Allocation):
    """A block of a pool. Its `free` is a free in the queue where it was allocated.

    Attributes
    ----------
    queue : Queue
        Where it was allocated.
    """

    cdef readonly Submitter queue  # type: Queue
    cdef Block* block
    cdef size_t number  # of its device in the pool

    cdef int check_unused(self) except -1:
        cdef CDependencies before
        cdef list found = uses(self)
        if found and not self.queue.closed:
            self.queue.add_history(before, ())
        for lane, position in found:
            if not (isinstance(lane, Lane) and before.covers(dereference((<Lane>lane).native.get().timeline()), position)):
                raise StillInUseError(f"{self!r} is in use by work of a queue: wait for that first")
        return 0

    cdef int check_unlocked(self) except -1:
        return check_part_unlocked(self)

    cdef int give_back(self) except -1:
        cdef Store pool = self.pool
        if self.queue.closed:  # or being closed by another thread, which waits for the work in it
            add_all_work(self.block.after, self.queue)
            pool.put(self)
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

    cdef object __weakref__
    cdef readonly Backing context  # type: Context
    cdef CMemoryKind number
    cdef object limit  # maximum_size
    cdef object threshold  # release_threshold
    cdef readonly bint zero_initialize
    cdef readonly bint read_only
    cdef unique_ptr[CPool] native
    cdef unsigned made_in

    def __cinit__(self, *args, **kwargs):
        cdef unique_ptr[Source] source
        self.native.reset(new CPool(move(source), 0, 0, 0))  # until __init__ has succeeded
        self.made_in = generation()

    def __init__(
        self,
        Backing context not None: Context,
        kind: MemoryKindLike,
        release_threshold: int | None,
        maximum_size: int | None,
        bint zero_initialize,
        bint read_only,
    ) -> None:
        if self.context is not None:
            raise TypeError("a Pool cannot be initialized again")
        self.number = number_of(kind)
        self.threshold = None if release_threshold is None else bytes_of(release_threshold, "release_threshold")
        self.limit = None if maximum_size is None else bytes_of(maximum_size, "maximum_size")
        self.zero_initialize, self.read_only = zero_initialize, read_only
        self.context = context
        self.begin()

    cdef int begin(self) except -1:
        cdef unique_ptr[Source] source
        source.reset(new PythonSource(<PyObject*>self, &allocate, &free))
        self.native.reset(new CPool(move(source), len(self.context.devices), UNLIMITED if self.limit is None else self.limit,
                                    UNLIMITED if self.threshold is None else self.threshold))
        self.made_in = generation()
        return 0

    cdef CPool* here(self) except NULL:
        """The pool. In a child process after fork it is empty: the memory is the parent's."""
        cdef cbool closed
        if is_parents(self.made_in):
            closed = self.native.get().is_closed()
            self.native.release()  # another thread may have been changing it
            self.begin()
            if closed:
                self.native.get().close(NULL)
        return self.native.get()

    def __dealloc__(self):
        if is_parents(self.made_in):
            self.native.release()

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
        return self.native.get().is_closed()

    @property
    def reserved(self) -> int:
        return self.here().figures().reserved

    @property
    def used(self) -> int:
        return self.here().figures().used

    @property
    def reserved_high(self) -> int:
        return self.here().figures().reserved_high

    @property
    def used_high(self) -> int:
        return self.here().figures().used_high

    def reset_high(self) -> None:
        """Reset the high watermarks to what is reserved and used now."""
        self.here().reset_high()

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
        if self.context is None:
            raise PinningError("this pool is of a subclass that has not called __init__; nothing can be allocated in it")
        cdef CPool* native = self.here()
        cdef uint64_t length = (size + GRAIN - 1) // GRAIN * GRAIN
        cdef tuple devices = self.context.devices
        cdef size_t number = 0
        cdef CDependencies before
        cdef Event event
        if submitter.device is not devices[0]:
            number = devices.index(self.context.member(submitter.device))
            if self.number == CMemoryKind.host:
                number = 0
        cdef PoolAllocation allocation = PoolAllocation.__new__(PoolAllocation)
        submitter.add_history(before, events)
        allocation.number = number
        try:
            allocation.block = native.take_free(number, length, before)
            if allocation.block is NULL:
                with nogil:
                    allocation.block = native.take(number, length, before)
        except PinningError:
            if self.closed:
                raise PinningError(f"{self!r} is closed; nothing can be allocated in it") from None
            raise
        if allocation.block is NULL:
            return self.refused(allocation, submitter, devices[number], size, length)
        cdef Segment* segment = allocation.block.segment
        allocation.queue = submitter
        try:
            allocation.begin(allocation.block.start,
                             allocation.block.start - segment.base + segment.device_base,
                             size, self.number, self.context, devices[number], self)
            event = self.order(submitter, allocation, events)
        except BaseException:
            withdraw(allocation)
            native.untake(number, allocation.block)
            raise
        return allocation, event

    cdef tuple refused(self, PoolAllocation allocation, Submitter queue, device, uint64_t size, uint64_t length):
        allocation.extent.size, allocation.extent.kind = size, self.number
        allocation.context, allocation.device, allocation.pool = self.context, device, self
        allocation.error = PoolLimitError(
            f"{length} bytes more would take {self!r} over its maximum of {self.limit}; it has reserved "
            f"{self.reserved}, of which {self.used} are in use: free some, or make a pool with a larger maximum"
        )
        return allocation, Event._over(queue, allocation.error)

    cdef Event order(self, Submitter queue, PoolAllocation allocation, tuple events):
        """The event after which an allocation can be used."""
        cdef Event event
        cdef Zeroes zeroes
        if self.zero_initialize:
            zeroes = Zeroes.__new__(Zeroes)
            zeroes.owners = (allocation,)
            zeroes.written, zeroes.written_size = allocation.extent.ptr, allocation.extent.size
            try:
                event = queue.submit(zeroes, events)
            except BaseException:  # it may have been submitted all the same
                add_all_work(allocation.block.after, queue)
                raise
            allocation.block.after.add(event.native.timeline(), event.native.position())
            return event
        if events or not allocation.block.after.reached():
            return queue.submit(None, events)
        return Event._over(queue)

    # ---- freeing ----

    cdef Event take_back(self, Submitter queue, PoolAllocation allocation, tuple events):
        """Free a claimed allocation in the order of a queue; on failure nothing has changed."""
        cdef Event event = queue.submit(None, events)
        CPool.order(dereference(allocation.block), event.native)
        self.put(allocation)
        return event

    cdef int put(self, PoolAllocation allocation) except -1:
        """Take back the block of an allocation, for use by what comes after all points in its `after`."""
        cdef CPool* native = self.native.get()
        withdraw(allocation)
        if native.free(allocation.number, allocation.block):
            with nogil:
                native.free_excess()
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
        cdef CPool* native = self.here()
        with nogil:
            native.trim(upto)

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
        cdef CPool* native = self.here()
        cdef Left left
        with nogil:
            left = native.close(&handle_signals)
        if left.used:
            raise StillInUseError(f"{self!r} has {left.used} bytes in use: free them first")
        if left.pending:
            raise StillInUseError(f"{self!r} has {left.pending} bytes that work in a queue may still use")

    def __reduce__(self):
        refuse_copy(self, "its memory has one owner; make another, with pinning.Pool")


cdef int add_all_work(CDependencies& after, Submitter queue) except -1:
    for lane in queue.lanes:
        after.add_upto((<Lane>lane).native.get().timeline(), (<Lane>lane).native.get().count())
    return 0


cdef int withdraw(PoolAllocation allocation) except -1:
    """Let go of its addresses, before its block can become another allocation."""
    if allocation.state != FREED:
        leave(allocation)
        allocation.state = FREED
    return 0


# ---- the source of the native pool ----


cdef int allocate(PyObject* owner, size_t number, uint64_t size, Memory& made) except -1:
    cdef Store pool = <Store>owner
    cdef bint gone
    device = pool.context.devices[number]
    made.base = made.device_base = pool.context.take(device, size, pool.number, False)
    if pool.number == CMemoryKind.host:
        try:
            made.device_base = device_address(device, made.base)
        except BaseException:
            pool.context.release(device, made.base, &gone)
            raise
    return 0


cdef int free(PyObject* owner, size_t number, uint64_t base, cbool& gone) except -1:
    cdef Store pool = <Store>owner
    cdef bint is_gone = False
    try:
        pool.context.release(pool.context.devices[number], base, &is_gone)
    finally:
        (&gone)[0] = is_gone
    return 0


cdef object bytes_of(nbytes, str name):
    return byte_count(min(integer(nbytes, name), MOST_BYTES), name, 0)  # more is as good as no limit

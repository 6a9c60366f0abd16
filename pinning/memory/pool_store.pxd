# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from pinning.memory.allocation cimport Allocation
from pinning.memory.backing cimport Backing
from pinning.plugin.native cimport CMemoryKind
from pinning.queues.event cimport Event
from pinning.queues.order cimport CDependencies
from pinning.queues.submitter cimport Submitter


cdef extern from "<pinning/blocks.hpp>" namespace "pinning" nogil:
    cppclass Segment "pinning::Blocks::Segment":
        uint64_t base
        uint64_t device_base
        uint64_t length

    cppclass Block "pinning::Blocks::Block":
        Segment* segment
        uint64_t start
        uint64_t size
        CDependencies after

    cppclass Blocks:
        Blocks() except +
        Block* add(uint64_t base, uint64_t device_base, uint64_t length) except +
        Block* take(uint64_t size, const CDependencies& before) except +
        void give_back(Block* block) noexcept
        void coalesce() noexcept
        cbool waits() noexcept
        const Segment* idle() noexcept
        Block* claim(const Segment* segment) noexcept
        void remove(const Block* whole) noexcept


cdef class PoolAllocation(Allocation):
    cdef readonly Submitter queue  # type: Queue
    cdef Block* block
    cdef Blocks* blocks


cdef class Store:
    cdef object __weakref__
    cdef readonly Backing context  # type: Context
    cdef CMemoryKind number
    cdef object limit  # maximum_size
    cdef object threshold  # release_threshold
    cdef readonly bint zero_initialize
    cdef readonly bint read_only
    cdef vector[Blocks*] places  # one for each device of the context
    cdef uint64_t reserved_now, used_now, reserved_most, used_most
    cdef uint64_t growing  # bytes that the vendor is allocating now
    cdef bint shut
    cdef dict queues  # weak references by id: the queues of the points that blocks come after
    cdef object last_queue  # a weak reference to one that is surely in `queues`
    cdef unsigned made_in

    cdef int restart(self) except -1
    cdef Block* take(self, size_t place, uint64_t length, const CDependencies& before) except? NULL
    cdef Block* grow(self, size_t place, uint64_t length) except? NULL
    cdef bint has_room(self, uint64_t length) except *
    cdef tuple refused(self, PoolAllocation allocation, Submitter queue, device, uint64_t size, uint64_t length)
    cdef Event order(self, Submitter queue, PoolAllocation allocation, tuple events)
    cdef Event take_back(self, Submitter queue, PoolAllocation allocation, tuple events)
    cdef void put(self, PoolAllocation allocation) noexcept
    cdef int release_more(self) except -1
    cdef int watch(self, Submitter queue) except -1
    cdef list watched(self)
    cdef bint poll(self) except *
    cdef bint release(self, uint64_t upto, list errors) except *
    cdef int give_back_segment(self, size_t place, Blocks* blocks, Block* block, vector[Block*]& refused) except -1

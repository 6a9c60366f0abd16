# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr

from pinning.memory.allocation cimport Allocation
from pinning.memory.backing cimport Backing
from pinning.plugin.native cimport CMemoryKind, raise_in_python
from pinning.queues.event cimport CEvent, Event, Meanwhile
from pinning.queues.order cimport CDependencies
from pinning.queues.submitter cimport Submitter


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


cdef class PoolAllocation(Allocation):
    cdef readonly Submitter queue  # type: Queue
    cdef Block* block
    cdef size_t number  # of its device in the pool


cdef class Store:
    cdef object __weakref__
    cdef readonly Backing context  # type: Context
    cdef CMemoryKind number
    cdef object limit  # maximum_size
    cdef object threshold  # release_threshold
    cdef readonly bint zero_initialize
    cdef readonly bint read_only
    cdef unique_ptr[CPool] native
    cdef unsigned made_in

    cdef int begin(self) except -1
    cdef CPool* here(self) except NULL
    cdef tuple refused(self, PoolAllocation allocation, Submitter queue, device, uint64_t size, uint64_t length)
    cdef Event order(self, Submitter queue, PoolAllocation allocation, tuple events)
    cdef Event take_back(self, Submitter queue, PoolAllocation allocation, tuple events)
    cdef int put(self, PoolAllocation allocation) except -1

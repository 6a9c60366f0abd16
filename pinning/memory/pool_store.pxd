# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from pinning.memory.allocation cimport Allocation
from pinning.memory.backing cimport Backing
from pinning.plugin.native cimport CMemoryKind
from pinning.queues.event cimport Event
from pinning.queues.order cimport Timeline
from pinning.queues.submitter cimport Submitter


cdef extern from *:
    """
    #include <Python.h>
    #include <pinning/blocks.hpp>

    // A Python Timeline. The GIL is held; releasing one runs no Python, as it has neither finalizer nor references.
    class TimelineRef {
     public:
      TimelineRef(PyObject* timeline, std::uint64_t const* reached, bool ordered)
          : timeline_(Py_NewRef(timeline)), reached_(reached), ordered_(ordered) {}
      TimelineRef(TimelineRef const& other)
          : timeline_(Py_NewRef(other.timeline_)), reached_(other.reached_), ordered_(other.ordered_) {}
      TimelineRef& operator=(TimelineRef const& other) {
        Py_SETREF(timeline_, Py_NewRef(other.timeline_));
        reached_ = other.reached_;
        ordered_ = other.ordered_;
        return *this;
      }
      ~TimelineRef() { Py_DECREF(timeline_); }
      std::uint64_t reached() const noexcept { return *reached_; }
      bool ordered() const noexcept { return ordered_; }
      void const* key() const noexcept { return timeline_; }
      bool operator==(TimelineRef const& other) const noexcept { return timeline_ == other.timeline_; }

     private:
      PyObject* timeline_;
      std::uint64_t const* reached_;
      bool ordered_;
    };

    static void add(pinning::After<TimelineRef>& after, PyObject* timeline, std::uint64_t const* reached, bool ordered,
                    std::uint64_t position) {
      pinning::add(after, {TimelineRef(timeline, reached, ordered), position});
    }
    """
    void add(After& after, object timeline, const uint64_t* reached, cbool ordered, uint64_t position) except +


cdef extern from "<pinning/blocks.hpp>" namespace "pinning" nogil:
    cppclass After "pinning::After<TimelineRef>":
        void swap(After& other) noexcept

    cbool reached(const After& after) noexcept
    void add_uncovered(After& after, const After& more, const Before& covered) except +

    cppclass Before "pinning::Before<TimelineRef>":
        Before() except +
        void add_upto(const void* timeline, uint64_t position) except +
        void add(const void* timeline, uint64_t position) except +
        cbool covers(const After& after) noexcept

    cppclass Segment "pinning::Blocks<TimelineRef>::Segment":
        uint64_t base
        uint64_t device_base
        uint64_t length

    cppclass Block "pinning::Blocks<TimelineRef>::Block":
        Segment* segment
        uint64_t start
        uint64_t size
        After after

    cppclass Blocks "pinning::Blocks<TimelineRef>":
        Blocks() except +
        Block* add(uint64_t base, uint64_t device_base, uint64_t length) except +
        Block* take(uint64_t size, const Before& before) except +
        void give_back(Block* block) noexcept
        void settle() noexcept
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
    cdef long generation

    cdef int present(self) except -1
    cdef Block* take(self, size_t place, uint64_t length, const Before& before) except? NULL
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
    cdef int give_up(self, size_t place, Blocks* blocks, Block* block, vector[Block*]& refused) except -1

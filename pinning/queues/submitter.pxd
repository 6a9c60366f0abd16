# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t

from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, unique_ptr

from pinning.plugin.native cimport raise_in_python
from pinning.queues.event cimport CEvent, Event
from pinning.queues.lane cimport CEvents, CLane, Lane, Span
from pinning.queues.order cimport CDependencies

cdef extern from "<pinning/queue.hpp>" namespace "pinning" nogil:
    cppclass CTurn "pinning::Queue::Turn":
        shared_ptr[CLane] lane
        CEvents after
        CEvents foreign

    cppclass CQueue "pinning::Queue":
        CQueue(shared_ptr[CLane] first) except +
        CTurn turn(const CEvents& wait_for) except +raise_in_python
        void add(CTurn& turn, shared_ptr[CLane] lane) except +
        void note(const CTurn& turn, CEvent& event) except +
        void note(CEvent& event) noexcept
        void note_tail(CEvent& event) except +
        void bar(CEvent event) except +
        void lift() noexcept
        void add_history(CDependencies& to, const CEvents& wait_for) except +
        cbool may_write(Span range, const CEvents& wait_for) except +raise_in_python
        cbool is_shared() noexcept


cpdef tuple events_of(object wait_for)  # a wait list, or a single event


cdef class Submitter:
    cdef object __weakref__
    cdef readonly object device  # type: MemoryDevice
    cdef readonly bint closed
    cdef bint ordered
    cdef bint apart  # it has left its lane to other queues over the same stream
    cdef unique_ptr[CQueue] native
    cdef list lanes  # those of `native`, for Python
    cdef unsigned made_in

    cdef check(self)
    cdef Event record_in_graph(self, Lane lane, uint64_t capture, Event event, object work, object wait_for, tuple keep)
    cdef Event enqueue(self, Event event, object work, object wait_for, tuple keep)
    cdef Event enqueue_live(self, Event event, object work, object wait_for, tuple keep)  # what it uses cannot be freed now
    cdef Event enqueue_in_turn(self, Lane first, Event event, object work, tuple waits, tuple kept)
    cdef bint is_usable(self) noexcept
    cdef bint reads_early(self) noexcept
    cdef bint is_shared(self) noexcept
    cdef bint is_to_be_written(self, uint64_t start, uint64_t size, object wait_for) except -1
    # Whether an operation that is submitted now may read these bytes of the host before its turn.
    cdef bint may_be_read(self, uint64_t start, uint64_t size, object wait_for) except -1
    # What an operation with this wait list would come after, if it were submitted now.
    cdef int add_history(self, CDependencies& to, object wait_for) except -1
    cdef tuple waited_for(self, object wait_for, uint64_t capture=*)
    cdef Lane lane_of(self, CTurn& turn)
    cdef list tails(self)
    cdef Event tail(self, Lane lane)

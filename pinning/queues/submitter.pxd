# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t

from pinning.queues.event cimport Event
from pinning.queues.lane cimport Lane
from pinning.queues.order cimport CDependencies, SharedDependencies


cpdef tuple events_of(object wait_for)  # a wait list, or a single event


cdef class Submitter:
    cdef object __weakref__
    cdef readonly object device  # type: Any
    cdef readonly bint closed
    cdef bint ordered
    cdef str vendor_name
    cdef list lanes
    cdef SharedDependencies before  # in order: what the next operation comes after, on other timelines
    cdef SharedDependencies past  # out of order: what any operation so far comes after, on other timelines
    cdef tuple barrier  # out of order: what all later operations wait for
    cdef unsigned made_in

    cdef check(self)
    cdef Event record_in_graph(self, Lane lane, uint64_t capture, Event event, object work, object wait_for, tuple keep)
    cdef Event enqueue(self, Event event, object work, object wait_for, tuple keep)
    cdef bint is_usable(self) noexcept
    cdef bint reads_early(self) noexcept
    cdef bint is_shared(self) noexcept
    cdef bint is_to_be_written(self, uint64_t start, uint64_t size, object wait_for) except -1
    # Whether an operation that is submitted now may read these bytes of the host before its turn.
    cdef bint may_be_read(self, uint64_t start, uint64_t size, object wait_for) except -1
    # What an operation with this wait list would come after, if it were submitted now.
    cdef int add_history(self, CDependencies& to, object wait_for) except -1
    cdef tuple waited_for(self, object wait_for, uint64_t capture=*)
    cdef add_to_barrier(self, tuple waits)
    cdef Lane lane_for(self, tuple waits)
    cdef bint needs_waiting(self, Event event, Lane lane)
    cdef list tails(self)
    cdef Event tail(self, Lane lane)

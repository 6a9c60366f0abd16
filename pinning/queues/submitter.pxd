# SPDX-License-Identifier: Apache-2.0
from pinning.queues.event cimport Event
from pinning.queues.lane cimport Lane


cdef class Submitter:
    cdef object __weakref__
    cdef readonly object device
    cdef readonly bint closed
    cdef bint ordered
    cdef str vendor_name
    cdef list lanes
    cdef dict before  # in order: what the next operation comes after, in other lines
    cdef dict past  # out of order: what any operation so far comes after, in other lines
    cdef tuple barrier  # out of order: what all later operations wait for
    cdef long generation

    cdef check(self)
    cdef tuple waited_for(self, object wait_for)
    cdef Lane lane_for(self, tuple waits)
    cdef bint needs_waiting(self, Event event, Lane lane)
    cdef Event tail(self, Lane lane)

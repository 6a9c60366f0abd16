# SPDX-License-Identifier: Apache-2.0
cimport cython
from libc.stdint cimport uint64_t

from pinning.queues.event cimport Event, Place
from pinning.queues.order cimport Line


cdef class Lane:
    cdef object __weakref__
    cdef readonly object vendor  # the VendorQueue
    cdef Line line
    cdef uint64_t submitted
    cdef uint64_t complete  # `submitted` before the submission in progress, or now where there is none
    cdef uint64_t looked  # `submitted` when the vendor was last asked
    cdef object last  # weakly, the place after all that was submitted
    cdef object kept  # deque of (position, objects)
    cdef object markers  # deque of (position, vendor's event)
    cdef readonly object error  # of work, told while nobody was there to hear
    cdef bint shared  # others submit there too
    cdef bint watched
    cdef readonly bint retired
    cdef readonly bint closed
    cdef long generation
    cdef cython.pymutex mutex
    cdef unsigned long owner

    cdef bint enter(self) except *
    cdef leave(self, bint outermost)
    cdef put(self, Event event, object work, list vendor_waits, list gates, tuple keep)
    cdef give(self, object work, list vendor_waits, list gates, tuple keep)
    cdef flush(self)
    cdef read_markers(self)
    cdef raise_error(self)
    cdef hold(self, tuple keep)
    cdef look(self)
    cdef mark(self)
    cdef blame(self, object error)
    cdef reach(self, uint64_t position)


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

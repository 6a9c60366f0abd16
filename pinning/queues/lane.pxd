# SPDX-License-Identifier: Apache-2.0
cimport cython
from libc.stdint cimport uint64_t

from pinning.queues.event cimport Event, Place
from pinning.queues.order cimport Line

cdef list NONE  # to be given where there is nothing to wait for


cdef class Lane:
    cdef object __weakref__
    cdef readonly object vendor  # the VendorQueue
    cdef Line line
    cdef uint64_t submitted
    cdef uint64_t complete  # `submitted` before the submission in progress, or now where there is none
    cdef uint64_t looked  # `submitted` when the vendor was last asked
    cdef object last  # weakly, the place after all that was submitted
    cdef object kept  # deque of (position, objects)
    cdef object unsettled  # deque of (position, weakly an event that holds those it waits for)
    cdef object markers  # deque of (position, vendor's event)
    cdef readonly object error  # of work, told while nobody was there to hear
    cdef int refusals  # of the vendor to say how far it is, since it last did
    cdef list asking  # the threads that are asking the vendor how far it is
    cdef bint shared  # others submit there too
    cdef bint watched
    cdef readonly bint retired
    cdef bint closing  # nothing is submitted any more
    cdef readonly bint closed
    cdef long generation
    cdef cython.pymutex mutex
    cdef unsigned long owner

    cdef bint enter(self) except *
    cdef leave(self, bint outermost)
    cdef bint busy_here(self) except *
    cdef put(self, Event event, object work, list vendor_waits, list gates, tuple keep)
    cdef give(self, object work, list vendor_waits, list gates, tuple keep)
    cdef flush(self)
    cdef bint ask(self, bint block) except *
    cdef read_markers(self)
    cdef raise_error(self)
    cdef hold(self, tuple keep)
    cdef look(self)
    cdef mark(self)
    cdef blame(self, object error)
    cdef reach(self, uint64_t position)


cdef long process() noexcept  # another number in a fork
cdef check_process(long made_in)

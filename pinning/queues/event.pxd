# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t

from pinning.queues.order cimport CDependencies, SharedDependencies, Timeline


cdef class Place:
    """A point in a lane between two submissions, shared by all events at that point.

    The lane has a borrowed pointer to its last place: while it is set, a vendor's event of it may still be needed.
    """

    cdef object lane  # a Lane, whose `record` makes the vendor's event
    cdef void** known_as  # the lane's pointer to its last place; if that is this one, deallocation clears it
    cdef object vendor_event
    cdef object error  # of work before it, which the vendor has reported to another call


cdef class Event:
    cdef object __weakref__
    cdef readonly object queue  # type: Any
    cdef Place place
    cdef Timeline timeline
    cdef uint64_t position
    cdef SharedDependencies before  # what it comes after on other timelines
    cdef readonly object error  # type: BaseException | None
    cdef object traceback
    cdef bint settled
    cdef tuple sources  # events of the wait list that were unsettled or had failed
    cdef uint64_t capture  # the capture that recorded its operation into a graph; 0 if none did

    cdef bint known_over(self)
    cdef fail(self, error)
    cdef int add_history(self, CDependencies& to) except -1  # all that it comes after, and itself
    cdef bint _ask(self, bint block) except *
    cdef settle(self)
    cdef learn_error(self, bint ask)
    cdef recorded(self)
    cdef raise_error(self)

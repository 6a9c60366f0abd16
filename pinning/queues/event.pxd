# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t

from pinning.queues.order cimport Timeline


cdef class Place:
    """A place in a lane where nothing more is submitted, shared by the events that stand there.

    The lane knows its last place without keeping it, and so whether a vendor's event of it may still be needed.
    """

    cdef object lane  # a Lane: `record` makes the vendor's event of a place
    cdef void** known_as  # where the lane has it, to be cleared at its end
    cdef object vendor_event
    cdef object error  # of work before it, which the vendor has reported elsewhere


cdef class Event:
    cdef object __weakref__
    cdef readonly object queue  # type: Any
    cdef Place place
    cdef Timeline timeline
    cdef uint64_t position
    cdef dict before  # what it comes after in other lines
    cdef readonly object error  # type: BaseException | None
    cdef object traceback
    cdef bint settled
    cdef tuple sources  # unsettled events of the wait list
    cdef uint64_t capture  # where its operation was recorded into a graph instead of done

    cdef bint known_over(self)
    cdef fail(self, error)
    cdef dict positions(self)
    cdef bint _ask(self, bint block) except *
    cdef settle(self)
    cdef learn_error(self, bint ask)
    cdef recorded(self)
    cdef raise_error(self)

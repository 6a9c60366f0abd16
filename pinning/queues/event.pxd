# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr

from pinning.plugin.native cimport VendorEvent as CVendorEvent, raise_in_python
from pinning.queues.order cimport CDependencies, SharedTimeline

cdef extern from "<pinning/python_errors.hpp>" namespace "pinning" nogil:
    ctypedef void (*Meanwhile)()
    void handle_signals()


cdef extern from "<pinning/lane.hpp>" namespace "pinning" nogil:
    cppclass CEvent "pinning::Event":
        CEvent() noexcept
        cbool is_over() noexcept
        cbool is_last_user() noexcept
        const SharedTimeline& timeline() noexcept
        uint64_t position() noexcept
        void add_history(CDependencies& to) except +
        void make_askable(cbool block) except +raise_in_python
        shared_ptr[CVendorEvent] recorded() except +raise_in_python
        shared_ptr[CVendorEvent] if_recorded() noexcept
        void raise_error() except +raise_in_python
        void forget() noexcept
        double seconds_since(CEvent& first, Meanwhile meanwhile) except +raise_in_python

cdef extern from "<pinning/python_wait.hpp>" namespace "pinning" nogil:
    cbool ask_and_handle_signals(CEvent& event, cbool block, cbool& interrupted) except +raise_in_python


cdef class Event:
    cdef object __weakref__
    cdef readonly object queue  # type: Any
    cdef CEvent native
    cdef object lane  # of type Lane; None if it was complete from the start
    cdef readonly object error  # type: BaseException | None
    cdef object traceback
    cdef bint resolved
    cdef tuple sources  # events of the wait list that were unresolved or had failed
    cdef uint64_t capture  # the capture that recorded its operation into a graph; 0 if none did

    cdef bint known_over(self)
    cdef fail(self, error)
    cdef bint _ask(self, bint block) except *
    cdef bint ask_alone(self, bint block) except *
    cdef resolve(self)
    cdef learn_error(self, bint ask)
    cdef shared_ptr[CVendorEvent] recorded(self) except *
    cdef raise_error(self)

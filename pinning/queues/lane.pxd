# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t, uintptr_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.vector cimport vector

from pinning.plugin.native cimport VendorDevice, VendorQueue, raise_in_python
from pinning.queues.event cimport CEvent, Event
from pinning.queues.order cimport SharedTimeline

cdef extern from "<pinning/operation.hpp>" namespace "pinning" nogil:
    cppclass Span:
        uint64_t start
        uint64_t end

    cppclass Operation:
        void submit(VendorQueue& queue) except +raise_in_python


cdef extern from "<pinning/lane.hpp>" namespace "pinning" nogil:
    ctypedef vector[CEvent*] CEvents "pinning::Events"

    cppclass CStreamKey "pinning::StreamKey":
        uintptr_t handle
        uint64_t thread

    CStreamKey key_of_stream(const VendorDevice& device, uintptr_t handle) except +

    cppclass CLane "pinning::Lane":
        @staticmethod
        shared_ptr[CLane] make(VendorDevice& device, shared_ptr[VendorQueue] queue, cbool ordered, cbool adopted) except +
        const SharedTimeline& timeline() noexcept
        cbool is_shared() noexcept
        cbool is_closed() noexcept
        uint64_t count() noexcept
        uint64_t capture() except +raise_in_python
        void check_uncaptured(const char* what) except +raise_in_python
        @staticmethod
        const VendorQueue* set_caller(const VendorQueue* queue) noexcept
        CEvent submit_uncaptured(unique_ptr[Operation] operation, const CEvents& after) except +raise_in_python
        cbool submit_at_once(unique_ptr[Operation]& operation, CEvent& event) except +raise_in_python
        void share() except +raise_in_python
        void lock() except +raise_in_python
        void unlock() noexcept
        void check_open() except +raise_in_python
        cbool poll() except +raise_in_python
        void ask_last() except +raise_in_python
        cbool done() except +raise_in_python
        cbool keeps_any() noexcept
        vector[uint64_t] keeping(const void* thing) except +
        cbool is_silent() except +raise_in_python
        cbool is_lost() noexcept
        void give_back() except +raise_in_python
        cbool is_in_call() noexcept


cdef str ONCE  # why work in general is not recorded into a graph


cdef class Freeable:
    """Memory that the program frees, but not while a call of another thread submits work with it."""

    cdef Py_ssize_t submissions  # calls that are submitting work with it; the GIL guards it
    cdef int check_live(self) except -1  # raises if it is freed, or being freed


cdef class Work:
    """An operation in C. The lane keeps it, and what it refers to, until it is over."""

    cdef Operation* native  # it submits, and belongs to this object; null: `submit` does
    cdef tuple owners  # of the memory that it uses
    cdef uint64_t written, written_size  # without `native`: host-readable bytes that it may write; size 0: none

    cdef submit(self, VendorQueue* queue)
    cdef str unrecordable(self)  # why a graph cannot record it; None if it does the same at each launch


cdef class Lane:
    """The face of a lane of C++. Its own state concerns Python's objects, and only C code that the GIL guards changes it."""

    cdef object __weakref__
    cdef shared_ptr[CLane] native
    cdef VendorQueue* queue  # that of `vendor`, for C++
    cdef readonly object vendor  # the VendorQueue, for Python
    cdef object device
    cdef object stream  # the owner of an adopted vendor's queue, kept as long as work may be submitted there
    cdef object unresolved  # deque of (position, weak reference to an event that holds `sources`)
    cdef list recorder  # if not None, collects what recorded operations keep, instead of their graph
    cdef bint watched
    cdef uint64_t unwatched  # operations at the last call of `unwatch`
    cdef uint64_t number  # of an adopted stream, which others with its handle do not have; 0: unknown
    cdef int users  # queues that submit here: several may be over one stream
    cdef bint given_back  # no further queue may be
    cdef unsigned made_in

    cdef uint64_t capture(self) except? 0
    cdef put(self, Event event, object work, const CEvents& after, tuple keep)
    cpdef attend(self)
    cdef synchronize(self, cbool& interrupted)
    cdef drain(self, cbool& interrupted)
    cdef finish(self, cbool& interrupted)
    cdef uint64_t reached_upto(self) noexcept


cdef bint keeps(object kept, object thing)
cdef int begin_submission(tuple kept) except -1  # all of it is live, and stays so until `end_submission`
cdef void end_submission(tuple kept) noexcept
cdef check_process(unsigned made_in)

# SPDX-License-Identifier: Apache-2.0
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

from libcpp cimport bool as cbool

from pinning.plugin.native cimport NativeQueue, VendorQueue
from pinning.queues.event cimport Event, Place
from pinning.queues.order cimport Timeline

cdef extern from "<pinning/kept_reference.hpp>" namespace "pinning" nogil:
    cppclass Reference "pinning::KeptReference":
        uint64_t position
        PyObject* thing


cdef extern from "<pinning/writes.hpp>" namespace "pinning" nogil:
    cppclass Writes:
        void add(uint64_t position, uint64_t start, uint64_t size) except +
        void add_unknown(uint64_t position) noexcept
        void reach(uint64_t position) noexcept
        cbool meet(uint64_t reached, uint64_t start, uint64_t size) noexcept


cdef extern from "<deque>" nogil:
    cppclass ReferenceDeque "std::deque<pinning::KeptReference>":
        void push_back(Reference reference) except +
        void pop_front() noexcept
        Reference& front() noexcept
        Reference& at "operator[]"(size_t i) noexcept
        size_t size() noexcept
        cbool empty() noexcept
        void clear() noexcept

cdef list NONE  # an empty wait list
cdef str ONCE  # why work in general is not recorded into a graph


cdef class Lane


cdef class Work:
    """The vendor calls of an operation, in C. The lane keeps it, and what it refers to, until the operation is over."""

    cdef uint64_t written, written_size  # host-readable bytes that it may write; size 0: none

    cdef submit(self, Lane lane)
    cdef bint keeps(self, object thing)
    cdef str unrecordable(self)  # why a graph cannot record it; None if it does the same at each launch


cdef class Lane:
    cdef object __weakref__
    cdef readonly object vendor  # the VendorQueue, for Python
    cdef object device
    cdef object stream  # the owner of an adopted vendor's queue, kept as long as work may be submitted there
    cdef NativeQueue native  # `vendor` for C++
    cdef VendorQueue* queue  # that of `native`
    cdef Timeline timeline
    cdef uint64_t submitted
    cdef uint64_t complete  # `submitted` at the end of the last submission
    cdef uint64_t looked  # `submitted` when `look` last polled the vendor
    cdef void* last  # a borrowed Place after all that was submitted; null if no event can need it
    cdef ReferenceDeque kept  # not released with the lane: the vendor may still use what is not known to be over
    cdef Writes writes
    cdef object unsettled  # deque of (position, weak reference to an event that holds `sources`)
    cdef object markers  # deque of (position, vendor's event); if `shared`, one for every position
    cdef readonly object error  # of work, if no event reports it
    cdef int refusals  # failed polls of the vendor since the last that succeeded
    cdef list asking  # idents of the threads that are polling or waiting for the vendor
    cdef bint shared  # others submit there too, and may capture it: progress is read from events only
    cdef bint adopted  # and its owner may destroy it once what was submitted is over
    cdef list recorder  # if not None, collects what recorded operations keep, instead of their graph
    cdef bint watched
    cdef uint64_t unwatched  # `submitted` at the last call of `unwatch`
    cdef readonly bint retired
    cdef bint closing  # nothing is submitted any more
    cdef readonly bint closed
    cdef long generation
    cdef cython.pymutex mutex
    cdef unsigned long owner

    cdef bint enter(self) except *
    cdef leave(self, bint outermost)
    cdef uint64_t capture(self) except? 0
    cdef bint busy_here(self) except *
    cdef put(self, Event event, object work, list vendor_waits, list foreign_waits, tuple keep)
    cdef give(self, object work, list vendor_waits, list foreign_waits, tuple keep)
    cdef flush(self)
    cdef bint ask(self, bint block) except *
    cdef bint is_over(self) except *
    cdef give_signals(self)
    cdef read_markers(self)
    cdef drain(self)
    cdef show_end(self)
    cdef raise_error(self)
    cdef hold(self, object thing)
    cdef Place last_place(self)
    # If so, a later copy must not read them yet.
    cdef bint may_write(self, uint64_t start, uint64_t size) noexcept
    cdef look(self)
    cdef mark(self)
    cdef blame(self, object error)
    cdef reach(self, uint64_t position)
    cdef uint64_t over_upto(self) noexcept  # the last operation that is known to be over


cdef bint keeps(object kept, object thing)
cdef check_process(long made_in)

# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint32_t, uint64_t
from libcpp.vector cimport vector

from pinning.copies.ends cimport End
from pinning.map.pinned_map cimport Hold
from pinning.plugin.native cimport VendorQueue
from pinning.queues.event cimport Event
from pinning.queues.lane cimport Work
from pinning.queues.staging cimport CStaged, Staging, StagingLimits


cdef class Copy(Event):
    cdef public object path  # type: CopyPath
    cdef public object reason  # type: str


cdef enum Way:  # in the order of `Path`
    way_direct, way_staged, way_lock, way_plain

cdef void count_bytes(Way way, uint64_t size) noexcept nogil


cdef class DirectCopy(Work):
    """One call of the vendor's."""

    cdef Hold hold  # so that no unlock takes the host's memory away under the copy
    cdef End to, origin
    cdef uint64_t size
    cdef uint64_t changes  # of the map, when its memory was found pageable
    cdef bint pageable


cdef class DirectFill(Work):
    cdef End to
    cdef uint32_t value
    cdef unsigned width
    cdef uint64_t count


cdef struct PlannedStep:
    uint64_t dst, src, size
    Way way


cdef class StepsCopy(Work):
    """The steps of a plan."""

    cdef vector[PlannedStep] steps
    cdef vector[CStaged*] staged  # its own
    cdef list held  # locks of the ranges that are copied directly
    cdef End to, origin
    cdef Staging staging  # None where nothing is to be staged
    cdef StagingLimits limits
    cdef bint early, direct
    cdef bint refused  # no ring was to be had for a step

    cdef int put(self, VendorQueue* queue, PlannedStep step) except -1 nogil


cdef class PlannedCopy(Work):
    """Calls of the vendor's that Python makes."""

    cdef object calls
    cdef tuple kept
    cdef bint direct  # no part of it is pageable, or copied by the host


# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""What copies put into queues."""

cimport cython
from libc.stdint cimport uint64_t

from pinning.copies.ends cimport End
from pinning.plugin.native cimport VendorQueue
from pinning.queues.event cimport Event
from pinning.queues.lane cimport Lane, Work
from pinning.queues.submitter cimport Submitter

from pinning.copies.plan import CopyPath

cdef str PAGEABLE = "memory of the host that the copy uses is pageable: it would be read or written once, at the submission"
cdef dict WAYS = {path: way for way, path in enumerate(CopyPath)}

cdef extern from "<pinning/status_page.hpp>" namespace "pinning" nogil:
    cppclass Counter "std::atomic<std::uint64_t>":
        uint64_t add "fetch_add" (uint64_t, int order) noexcept
        uint64_t load() noexcept
    cppclass StatusPage:
        Counter moved[4]
    StatusPage& status_page() noexcept

cdef extern from "<atomic>" nogil:
    int relaxed "std::memory_order_relaxed"

cdef StatusPage* page = &status_page()  # the same for good


cdef void count_bytes(Way way, uint64_t size) noexcept nogil:
    page.moved[<int>way].add(size, relaxed)


def count_moved(path, uint64_t size):
    """Note that so many bytes have been submitted on a path; `copy_async` does so itself where it is one call."""
    count_bytes(<Way><int>WAYS[path], size)


def bytes_moved():
    """Bytes that copies of this process have been submitted for, by path."""
    return {path: page.moved[<int>way].load() for path, way in WAYS.items()}


cdef class Copy(Event):
    """A copy under way: an `Event` that also says how the bytes travel.

    Attributes
    ----------
    path : CopyPath
        ``"direct"``, ``"staged"``, ``"lock"`` or ``"plain"``.
    reason : str
        Why.
    """


@cython.final
@cython.no_gc_clear
cdef class DirectCopy(Work):
    cdef submit(self, Lane lane):
        cdef VendorQueue* queue = lane.queue
        cdef uint64_t dst = self.to.ptr, src = self.origin.ptr
        with nogil:
            queue.copy(dst, src, self.size)

    cdef bint keeps(self, object thing):
        return thing is self.to.owner or thing is self.origin.owner

    cdef str unrecordable(self):
        return PAGEABLE if self.pageable else None

    def __dealloc__(self):
        self.hold = None  # before its memory may go


@cython.final
cdef class DirectFill(Work):
    cdef submit(self, Lane lane):
        cdef VendorQueue* queue = lane.queue
        cdef uint64_t dst = self.to.ptr
        with nogil:
            queue.fill(dst, self.value, self.width, self.count)

    cdef bint keeps(self, object thing):
        return thing is self.to.owner

    cdef str unrecordable(self):
        return None


@cython.final
cdef class PlannedCopy(Work):
    cdef submit(self, Lane lane):
        self.calls(lane.vendor)

    cdef bint keeps(self, object thing):
        for each in self.kept:
            if each is thing:
                return True
        return False

    cdef str unrecordable(self):
        return None if self.direct else PAGEABLE


def submit_planned(Submitter queue not None, calls, uint64_t dst, uint64_t size, wait_for, tuple keep not None, bint direct):
    """As `Queue.submit`, of calls that write nothing but so many bytes at `dst`.

    `direct`: the device alone moves the bytes, so that a graph can have the calls.
    """
    cdef PlannedCopy work = PlannedCopy.__new__(PlannedCopy)
    work.calls, work.kept, work.direct = calls, keep, direct
    work.written, work.written_size = dst, size
    return queue.enqueue(Copy.__new__(Copy), work, wait_for, ())

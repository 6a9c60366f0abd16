# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""What copies put into queues."""

cimport cython
from cython.operator cimport dereference
from libc.stdint cimport uint64_t
from libcpp.memory cimport unique_ptr

from pinning.copies.ends cimport End
from pinning.plugin.native cimport VendorQueue
from pinning.queues.event cimport Event
from pinning.queues.lane cimport Lane, Work
from pinning.queues.staging cimport CStaged, limits_of
from pinning.queues.submitter cimport Submitter

from contextlib import suppress
from typing import TYPE_CHECKING

from pinning.copies.costs import costs
from pinning.copies.plan import CopyPath
from pinning.queues.staging import staging_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pinning.plugin
    from pinning.copies.plan import Plan
    from pinning.queues import Queue

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


def count_moved(path: CopyPath, uint64_t size) -> None:
    """Note that so many bytes have been submitted on a path; `copy_async` does so itself where it is one call."""
    count_bytes(<Way><int>WAYS[path], size)


def bytes_moved() -> dict[CopyPath, int]:
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
@cython.no_gc_clear
cdef class StepsCopy(Work):
    cdef submit(self, Lane lane):
        cdef size_t i = 0
        try:
            with nogil:
                while i < self.steps.size():
                    self.put(lane.queue, self.steps[i])
                    i += 1
        except BaseException:
            if i > 0:
                with suppress(BaseException):  # the first error says more
                    lane.vendor.synchronize()
            raise

    cdef int put(self, VendorQueue* queue, PlannedStep step) except -1 nogil:
        cdef unique_ptr[CStaged] staged
        if self.staging is not None:
            self.staged.reserve(self.staged.size() + 1)
            if self.to.device is None and self.origin.device is None:
                # The vendor would copy at once, when the queue's earlier work is over, and block.
                staged = self.staging.staging.copy_in_host(dereference(queue), step.dst, step.src, step.size, self.limits)
            elif step.way == way_staged and self.to.device is None:
                staged = self.staging.staging.copy_to_host(dereference(queue), step.dst, step.src, step.size, self.limits)
            elif step.way == way_staged:
                staged = self.staging.staging.copy_to_device(dereference(queue), step.dst, step.src, step.size,
                                                             self.early, self.limits)
        if staged.get() is not NULL:
            self.staged.push_back(staged.release())
            return 0
        queue.copy(step.dst, step.src, step.size)
        self.refused |= step.way == way_staged
        return 0

    cdef bint keeps(self, object thing):
        return thing is self.to.owner or thing is self.origin.owner

    cdef str unrecordable(self):
        return None if self.direct else PAGEABLE

    def __dealloc__(self):
        cdef CStaged* staged
        with nogil:
            for staged in self.staged:
                del staged
        self.held = None  # before its memory may go


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


def submit_plan(
    Submitter queue not None: Queue,
    plan: Plan,
    End to not None,
    End origin not None,
    uint64_t size,
    wait_for: Iterable[Event],
    list held not None: list[object],
    bint early,
) -> Copy:
    """Submit the steps of a plan, which writes nothing but so many bytes of `to`.

    Parameters
    ----------
    held : list
        Locks of the ranges that are copied directly; kept until the copy is over.
    early : bool
        Whether the source may be read before the queue comes to it.

    Raises
    ------
    VendorError
        The vendor refused a step. What was submitted before it is done by then.
    """
    cdef StepsCopy work = StepsCopy.__new__(StepsCopy)
    cdef Copy copy = Copy.__new__(Copy)
    cdef PlannedStep step
    cdef bint stages = to.device is None and origin.device is None
    for dst, src, nbytes, path in plan.steps:
        step.dst, step.src, step.size, step.way = dst, src, nbytes, <Way><int>WAYS[path]
        work.steps.push_back(step)
        stages = stages or step.way == way_staged
    if stages:
        work.staging, work.limits = staging_of(queue.device), limits_of(costs)
    work.held, work.to, work.origin, work.early, work.direct = held, to, origin, early, plan.is_direct
    work.written, work.written_size = to.ptr, size
    queue.enqueue(copy, work, wait_for, ())
    for step in work.steps:
        count_bytes(step.way, step.size)
    copy.path, copy.reason = plan.path, plan.reason
    if work.refused:
        copy.path = CopyPath.PLAIN
        copy.reason = f"{plan.reason}, but all {costs.staging_bytes} bytes for staging are in use, or refused"
    return copy


def submit_planned(
    Submitter queue not None: Queue,
    calls: Callable[[pinning.plugin.VendorQueue], object],
    uint64_t dst,
    uint64_t size,
    wait_for: Iterable[Event],
    tuple keep not None: tuple[object, ...],
    bint direct,
) -> Copy:
    """As `Queue.submit`, of calls that write nothing but so many bytes at `dst`.

    `direct`: the device alone moves the bytes, so that a graph can have the calls.
    """
    cdef PlannedCopy work = PlannedCopy.__new__(PlannedCopy)
    work.calls, work.kept, work.direct = calls, keep, direct
    work.written, work.written_size = dst, size
    return queue.enqueue(Copy.__new__(Copy), work, wait_for, ())

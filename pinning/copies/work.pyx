# SPDX-License-Identifier: Apache-2.0
"""The operations that copies submit to queues."""

cimport cython
from cython.operator cimport dereference

from pinning.locking.lock cimport map_of
from pinning.map.adapters cimport vendor_of
from pinning.map.pinned_map cimport unlock_orphans
from pinning.queues.staging cimport limits_of
from pinning.queues.submitter cimport Submitter

from typing import TYPE_CHECKING

from pinning.copies.costs import costs
from pinning.copies.plan import CopyPath, Reason, Step, plan_of
from pinning.plugin import MemoryConnection
from pinning.queues.staging import staging_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinning.copies.plan import Plan
    from pinning.plugin import MemoryDevice
    from pinning.queues import Queue

cdef str PAGEABLE = "memory of the host that the copy uses is pageable: it would be read or written once, at the submission"
cdef tuple PATHS = tuple(CopyPath)
cdef tuple REASONS = tuple(Reason)
cdef dict WAYS = {path: way for way, path in enumerate(CopyPath)}

cdef extern from "<pinning/status_page.hpp>" namespace "pinning" nogil:
    cppclass Counter "std::atomic<std::uint64_t>":
        uint64_t add "fetch_add" (uint64_t, int order) noexcept
        uint64_t load() noexcept
    cppclass StatusPage:
        Counter moved[4]
        Counter by_peers
    StatusPage& status_page() noexcept

cdef extern from "<atomic>" nogil:
    int relaxed "std::memory_order_relaxed"

cdef StatusPage* page = &status_page()  # its address never changes


cdef void count_bytes(Way way, uint64_t size) noexcept nogil:
    page.moved[<int>way].add(size, relaxed)


def count_moved(path: CopyPath, uint64_t size) -> None:
    """Count bytes submitted on a path; `copy_async` itself counts those of a single vendor call."""
    count_bytes(<Way><int>WAYS[path], size)


def count_by_peers(uint64_t size) -> None:
    """Count those of the bytes on some path that go through a peer."""
    page.by_peers.add(size, relaxed)


def bytes_moved() -> dict[CopyPath, int]:
    """Bytes of the copies that this process has submitted, by path."""
    return {path: page.moved[<int>way].load() for path, way in WAYS.items()}


cdef class Copy(Event):
    """A copy under way: an `Event` that also says how the bytes travel.

    Attributes
    ----------
    path : CopyPath
        ``"direct"``, ``"staged"`` or ``"plain"``.
    reason : str
        Why.
    """


@cython.final
@cython.no_gc_clear
cdef class DirectCopy(Work):
    def __cinit__(self):
        self.native = &self.call

    cdef str unrecordable(self):
        return PAGEABLE if self.pageable else None

    def __dealloc__(self):
        self.hold = None  # before the ends release the memory


@cython.final
cdef class DirectFill(Work):
    def __cinit__(self):
        self.native = &self.call

    cdef str unrecordable(self):
        return None


@cython.no_gc_clear
cdef class NativeCopy(Work):
    cdef str unrecordable(self):
        return None if self.operation.is_direct() else PAGEABLE

    @property
    def path(self) -> CopyPath:
        """The slowest path of its parts; final once it is submitted."""
        return PATHS[<int>self.operation.path()]

    @property
    def reason_code(self) -> Reason:
        return REASONS[<int>self.operation.reason()]

    def __dealloc__(self):
        cdef CopyOperation* operation = self.operation
        with nogil:  # before the owners of the memory are released
            del operation


@cython.final
@cython.no_gc_clear
cdef class RangeCopy(NativeCopy):
    """A copy of `size` bytes as it is planned now, for a queue of `device`, which can stage if it `stages`.

    `early`: its source may be read before the queue reaches it. `in_turn`: it must not, because pending work may write
    it. Raises VendorError if the vendor refuses to say whose memory an address is.
    """

    cdef CopiedRange* range  # the same as `operation`
    cdef End to, origin

    def __cinit__(
        self,
        End to not None,
        End origin not None,
        uint64_t size,
        device: MemoryDevice,
        bint stages,
        bint early=False,
        bint in_turn=False,
    ) -> None:
        cdef CopyLimits limits = limits_of(costs)
        cdef CopyRequest request
        cdef VendorDevice* vendor = vendor_of(device)
        request.dst, request.src, request.size = to.ptr, origin.ptr, size
        request.early, request.in_turn = early, in_turn
        request.direction = direction_between(to, origin)
        request.ask_from = costs.stage_from(request.to_device())
        self.map, self.staging = map_of(device), staging_of(device)
        self.to, self.origin, self.owners = to, origin, (to.owner, origin.owner)
        try:
            with nogil:
                self.range = new CopiedRange(dereference(self.map.map), dereference(vendor), request, stages, limits)
        finally:
            unlock_orphans()
        self.native = self.operation = self.range

    def plan(self) -> Plan:
        return plan_between(self.range.plan(), self.to, self.origin)


@cython.final
@cython.no_gc_clear
cdef class RowsCopy(NativeCopy):
    """A copy of `height` rows of `width` bytes as it is planned now, for a queue of `device`; raises as `RangeCopy`."""

    cdef CopiedRows* rows  # the same as `operation`
    cdef End to, origin

    def __cinit__(
        self,
        End to not None,
        uint64_t dst_pitch,
        End origin not None,
        uint64_t src_pitch,
        uint64_t width,
        uint64_t height,
        device: MemoryDevice,
    ) -> None:
        cdef CopyLimits limits = limits_of(costs)
        cdef VendorDevice* vendor = vendor_of(device)
        cdef Direction direction = direction_between(to, origin)
        cdef Rows rows
        rows.dst, rows.dst_pitch, rows.src, rows.src_pitch = to.ptr, dst_pitch, origin.ptr, src_pitch
        rows.width, rows.height = width, height
        self.map = map_of(device)
        self.to, self.origin, self.owners = to, origin, (to.owner, origin.owner)
        try:
            with nogil:
                self.rows = new CopiedRows(dereference(self.map.map), dereference(vendor), rows, direction, limits)
        finally:
            unlock_orphans()
        self.native = self.operation = self.rows

    def plan(self) -> Plan:
        return plan_between(self.rows.plan(), self.to, self.origin)


cdef object plan_between(const CopyPlan& plan, End to, End origin):
    cdef vector[CopyStep] native_steps = plan.steps
    cdef CopyStep step
    steps = tuple([Step(step.dst, step.src, step.size, PATHS[<int>step.path]) for step in native_steps])
    to_device = None if (to.device is None) is (origin.device is None) else to.device is not None
    return plan_of(PATHS[<int>plan.path], REASONS[<int>plan.reason], steps, to_device, to, origin)


cdef Direction direction_between(End to, End origin) except *:
    if to.device is None:
        return Direction.in_host if origin.device is None else Direction.to_host
    if origin.device is None:
        return Direction.to_device
    if to.device is origin.device:
        return Direction.on_device
    connected = origin.device.connection(to.device) is not MemoryConnection.NONE
    return Direction.between_devices if connected else Direction.through_host


def submit_native(Submitter queue not None: Queue, NativeCopy work not None, wait_for: Iterable[Event]) -> Copy:
    """Submit a copy by libpinning. Parts submitted before one that the vendor refuses are complete by then."""
    return queue.enqueue(Copy.__new__(Copy), work, wait_for, ())

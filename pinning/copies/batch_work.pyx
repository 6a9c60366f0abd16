# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""A thin face of the batches of <pinning/batch.hpp>."""

from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from pinning.map.adapters cimport native_queue, vendor_of
from pinning.map.native cimport CPinnedMap
from pinning.map.pinned_map cimport PinnedMap
from pinning.plugin.native cimport NativeQueue, Part, VendorDevice, VendorQueue, raise_in_python
from pinning.queues.staging cimport StagingLimits, limits_of

from typing import TYPE_CHECKING, NamedTuple

from pinning.queues.staging import staging_of

if TYPE_CHECKING:
    from typing import Any

    import pinning.plugin
    from pinning.copies.costs import Costs
    from pinning.plugin import MemoryDevice

cdef extern from "<pinning/batch.hpp>" namespace "pinning" nogil:
    cppclass PartList:
        uint64_t size() noexcept
        const Part* begin() noexcept
        const Part* end() noexcept

    cppclass Parts:
        PartList by_kernel
        vector[Part] by_engine
        vector[Part] to_device
        vector[Part] to_host
        vector[Part] on_host
        uint64_t written
        uint64_t written_end

    cppclass Items:
        const uint64_t* dsts
        const uint64_t* srcs
        const uint64_t* sizes
        uint64_t size_step
        uint64_t count

    enum class Engine:
        automatic
        copy
        kernel

    cppclass BatchLimits:
        uint64_t kernel_from_items
        uint64_t kernel_to_bytes
        uint64_t stage_from
        StagingLimits staging

    cppclass Batch:
        Batch(CPinnedMap& on, VendorDevice& device, const Items& items, Engine engine, cbool has_kernel,
              const BatchLimits& limits) except +raise_in_python
        void submit(VendorQueue& queue) except +raise_in_python
        const Parts& parts() noexcept
        uint64_t plain() noexcept


class KernelLimits(NamedTuple):
    from_items: int
    to_bytes: int


def default_limits() -> KernelLimits:
    """From how many items on, and to how many bytes of one, a kernel moves them."""
    cdef BatchLimits limits
    return KernelLimits(limits.kernel_from_items, limits.kernel_to_bytes)


cdef dict ENGINES = {"auto": Engine.automatic, "copy": Engine.copy, "kernel": Engine.kernel}


cdef class BatchWork:
    """Work for a queue. Until it is collected it holds the locks of all locked memory that it copies.

    Parameters
    ----------
    device : MemoryDevice
    on : PinnedMap
        Of the same device.
    dsts, srcs : array of uint64
        Addresses, one of each for an item, and at least one.
    sizes : array of uint64
        Bytes of each item, or of all of them.
    engine : {"auto", "copy", "kernel"}
    has_kernel : bool
        Whether its queue moves parts.
    costs : Costs

    Raises
    ------
    InvalidRangeError
        An item is empty, no range, or runs out of the device's memory; the message names it.
    PinningError
        A kernel is asked for, and there is none.
    VendorError
        The vendor refused to say whose memory an address is.
    """

    cdef Batch* batch
    cdef object staging  # which keeps the device while it has rings

    def __cinit__(
        self,
        device not None: MemoryDevice,
        PinnedMap on not None,
        const uint64_t[::1] dsts not None: Any,
        const uint64_t[::1] srcs not None: Any,
        const uint64_t[::1] sizes not None: Any,
        str engine: str,
        cbool has_kernel: bool,
        costs: Costs,
    ) -> None:
        cdef Items items
        items.dsts, items.srcs, items.sizes = &dsts[0], &srcs[0], &sizes[0]
        items.count = dsts.shape[0]
        items.size_step = 1 if sizes.shape[0] == dsts.shape[0] else 0
        cdef BatchLimits limits
        limits.kernel_from_items, limits.kernel_to_bytes = costs.kernel_from_items, costs.kernel_to_bytes
        limits.stage_from, limits.staging = costs.stage_to_device, limits_of(costs)
        cdef Engine chosen = ENGINES[engine]
        cdef VendorDevice* vendor = vendor_of(device)
        self.staging = staging_of(device)
        with nogil:
            self.batch = new Batch(on.map[0], vendor[0], items, chosen, has_kernel, limits)

    def __dealloc__(self):
        cdef Batch* batch = self.batch
        with nogil:
            del batch

    @property
    def written(self) -> tuple[int, int]:
        """The start and the size of a range in which all destinations lie."""
        cdef const Parts* parts = &self.batch.parts()
        return parts.written, parts.written_end - parts.written

    @property
    def counts(self) -> dict[str, int]:
        """How many parts go by ``"kernel"``, by ``"engine"``, ``"to_device"`` and ``"to_host"`` from and into pageable
        memory, and ``"on_host"``."""
        cdef const Parts* parts = &self.batch.parts()
        return {
            "kernel": parts.by_kernel.size(),
            "engine": parts.by_engine.size(),
            "to_device": parts.to_device.size(),
            "to_host": parts.to_host.size(),
            "on_host": parts.on_host.size(),
        }

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each of these."""
        cdef const Parts* parts = &self.batch.parts()
        return {
            "kernel": bytes_of(parts.by_kernel.begin(), parts.by_kernel.end()),
            "engine": bytes_of(parts.by_engine.data(), parts.by_engine.data() + parts.by_engine.size()),
            "to_device": bytes_of(parts.to_device.data(), parts.to_device.data() + parts.to_device.size()),
            "to_host": bytes_of(parts.to_host.data(), parts.to_host.data() + parts.to_host.size()),
            "on_host": bytes_of(parts.on_host.data(), parts.on_host.data() + parts.on_host.size()),
        }

    @property
    def is_direct(self) -> bool:
        """Whether the device alone moves all bytes."""
        cdef const Parts* parts = &self.batch.parts()
        return parts.to_device.empty() and parts.to_host.empty() and parts.on_host.empty()

    @property
    def plain(self) -> int:
        """How many parts of pageable memory the vendor has copied itself, because there was no ring for them, or one
        small part."""
        return self.batch.plain()

    def __call__(self, queue: pinning.plugin.VendorQueue) -> None:
        """Submit all parts. After an error what was submitted before is over."""
        cdef NativeQueue native = native_queue(queue)
        with nogil:
            self.batch.submit(native.vendor[0])


cdef uint64_t bytes_of(const Part* part, const Part* end) noexcept:
    cdef uint64_t bytes = 0
    while part != end:
        bytes += part.size
        part += 1
    return bytes

# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""A thin face of the batches of <pinning/batch.hpp>."""

cimport cython
from cython.operator cimport dereference
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from pinning.copies.work cimport CopyOperation, NativeCopy
from pinning.locking.lock cimport map_of
from pinning.map.adapters cimport vendor_of
from pinning.map.native cimport CPinnedMap
from pinning.map.pinned_map cimport unlock_orphans
from pinning.plugin.native cimport CopyItem, VendorDevice, raise_in_python
from pinning.queues.staging cimport CopyLimits, limits_of

from typing import TYPE_CHECKING

from pinning.copies.costs import costs
from pinning.queues.staging import staging_of

if TYPE_CHECKING:
    from typing import Any

    from pinning.plugin import MemoryDevice

cdef extern from "<pinning/batch.hpp>" namespace "pinning" nogil:
    cppclass PartList:
        uint64_t size() noexcept
        const CopyItem* begin() noexcept
        const CopyItem* end() noexcept

    cppclass Parts:
        PartList by_kernel
        vector[CopyItem] by_engine
        vector[CopyItem] to_device
        vector[CopyItem] to_host
        vector[CopyItem] on_host
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

    cppclass Batch(CopyOperation):
        Batch(CPinnedMap& map, VendorDevice& device, const Items& items, Engine engine, cbool has_kernel,
              const CopyLimits& limits) except +raise_in_python
        const Parts& parts() noexcept
        uint64_t plain() noexcept


cdef dict ENGINES = {"auto": Engine.automatic, "copy": Engine.copy, "kernel": Engine.kernel}


@cython.final
@cython.no_gc_clear
cdef class BatchCopy(NativeCopy):
    """Many copies as one, for a queue of `device`.

    Parameters
    ----------
    device : MemoryDevice
    dsts, srcs : array of uint64
        Addresses, one of each for an item, and at least one.
    sizes : array of uint64
        Bytes of each item, or of all of them.
    owners : tuple
        What keeps the memory.
    engine : {"auto", "copy", "kernel"}
    has_kernel : bool
        Whether its queue moves parts.

    Raises
    ------
    InvalidRangeError
        An item is empty, no range, or runs out of the device's memory; the message names it.
    PinningError
        A kernel is asked for, and there is none.
    VendorError
        The vendor refused to say whose memory an address is.
    """

    cdef Batch* batch  # that operation

    def __cinit__(
        self,
        device not None: MemoryDevice,
        const uint64_t[::1] dsts not None: Any,
        const uint64_t[::1] srcs not None: Any,
        const uint64_t[::1] sizes not None: Any,
        tuple owners not None: tuple[object, ...],
        str engine: str,
        cbool has_kernel: bool,
    ) -> None:
        cdef Items items
        items.dsts, items.srcs, items.sizes = &dsts[0], &srcs[0], &sizes[0]
        items.count = dsts.shape[0]
        items.size_step = 1 if sizes.shape[0] == dsts.shape[0] else 0
        cdef CopyLimits limits = limits_of(costs)
        cdef Engine chosen = ENGINES[engine]
        cdef VendorDevice* vendor = vendor_of(device)
        self.map, self.staging, self.owners = map_of(device), staging_of(device), owners
        try:
            with nogil:
                self.batch = new Batch(dereference(self.map.map), dereference(vendor), items, chosen, has_kernel, limits)
        finally:
            unlock_orphans()
        self.operation = self.batch
        cdef const Parts* parts = &self.batch.parts()
        self.written, self.written_size = parts.written, parts.written_end - parts.written

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
    def plain(self) -> int:
        """How many parts of pageable memory the vendor has copied itself, because there was no ring for them, or one
        small part."""
        return self.batch.plain()


cdef uint64_t bytes_of(const CopyItem* part, const CopyItem* end) noexcept:
    cdef uint64_t bytes = 0
    while part != end:
        bytes += part.size
        part += 1
    return bytes

# SPDX-License-Identifier: Apache-2.0
"""Memory that devices have allocated from their vendors: the vendor calls, and the maps that register HOST memory.

The steps around a vendor call are C, between which no signal handler runs, and so is the call of a native device. The
call of a device in Python can be interrupted anywhere; then the device is asked whether it still has the memory.
"""

from cython.operator cimport dereference
from libcpp.optional cimport optional

from pinning.map.adapters cimport vendor_of
from pinning.map.pinned_map cimport PinnedMap
from pinning.memory.allocation cimport (
    FREED,
    Allocation,
    enter,
    kind_of,
    leave,
    locked_within,
    number_of,
    size_of,
)
from pinning.map.native cimport CRegion
from pinning.plugin.native cimport CMemoryInfo, Pinned, VendorDevice
from pinning.runtime.process cimport generation, is_parents

from typing import TYPE_CHECKING

from pinning.budget.cache import give_back_for
from pinning.budget.checks import check_memory
from pinning.errors import InvalidRangeError, PinningError, StillInUseError, StillLockedError
from pinning.locking.devices import pinned_map, separate
from pinning.plugin import MemoryKindLike
from pinning.runtime.arguments import alignment as alignment_of

if TYPE_CHECKING:
    from pinning.plugin import Device, MemoryDevice

cdef enum:
    ALIGNED = 16  # bytes, as every plugin guarantees


cdef class Backing:
    """The base of `Context`: devices that own memory together, and what they have allocated."""

    def __init__(self, devices: tuple[MemoryDevice, ...]) -> None:
        if self.devices is not None:
            raise TypeError("a Context cannot be initialized again")
        self.devices = tuple(devices)
        self.live = {}
        self.made_in = generation()

    # ---- from the vendor ----

    cdef uint64_t take(self, device, uint64_t length, CMemoryKind kind, bint write_combined,
                       bint sleepable=False) except 0:
        """Allocate on a device; on failure nothing is allocated."""
        cdef uint64_t base
        cdef dict live = self.live_here()
        python_kind = kind_of(kind)
        if python_kind not in device.memory_kinds:
            has = ", ".join(sorted(each.name for each in device.memory_kinds))
            raise PinningError(f"{device.name} has no memory of kind {python_kind.name}; it has {has}")
        if write_combined and not (kind == CMemoryKind.host and hasattr(device, "allocate_write_combined")):
            raise PinningError(f"{device.name} has no write-combined memory of kind {python_kind.name}; allocate it "
                               "without")
        if sleepable and kind != CMemoryKind.device:
            raise PinningError(f"memory of kind {python_kind.name} cannot sleep, only DEVICE: allocate it without sleepable")
        if kind == CMemoryKind.host:
            check_memory(length)  # its pages are taken at once, and the kernel kills a process that takes too many
        cdef list maps = self.maps_of(kind)
        self.under_way += 1
        try:
            if self.closed:
                raise PinningError(f"{self!r} is closed; nothing can be allocated in it")
            base = allocate_by(device, length, kind, write_combined, sleepable)
            try:
                register(maps, base, length, [device_address(each.device, base) for each in maps])
                live[id(device), base] = length, kind
            except BaseException:
                free_by(device, base, kind)
                raise
        finally:
            self.under_way -= 1
        return base

    cdef int release(self, device, uint64_t base, bint* gone) except -1:
        """Undo `take`. After an error nothing has changed, unless `gone` says that the memory is gone nevertheless."""
        cdef dict live = self.live_here()
        cdef CMemoryKind kind
        cdef uint64_t length
        key = id(device), base
        if key not in live:
            raise InvalidRangeError(
                f"nothing is allocated at {base:#x} on {device.name}: it was freed through the vendor"
            )
        entry = live[key]
        length, kind = entry[0], <CMemoryKind><int>entry[1]
        cdef list maps = self.maps_of(kind)
        region = locked_within(base, length)
        if region is not None:
            raise StillLockedError(f"there is a lock in memory of {device.name}, {region!r}: unlock that first")
        # Before the free, because after it the vendor can give the same address to another thread.
        cdef list registered = unregister(maps, base, length)
        del live[key]
        try:
            free_by(device, base, kind)
        except BaseException as error:
            if isinstance(error, Exception) or (key not in live and has_still(device, base)):
                live[key] = entry
                register([each for each, _ in registered], base, length, [address for _, address in registered])
            else:
                gone[0] = True
            raise
        return 0

    cdef dict live_here(self):
        """The live allocations. In a child process after fork there are none: all belong to the parent."""
        if is_parents(self.made_in):
            self.live, self.under_way, self.made_in = {}, 0, generation()
        return self.live

    cdef list maps_of(self, CMemoryKind kind):
        """The maps to register memory in: of HOST memory those of all devices, so that every copy sees it as locked."""
        return separate(map(pinned_map, self.devices)) if kind == CMemoryKind.host else []

    def _take_back(self, Allocation memory not None):
        """Free what `whole` has made, as `Allocation.give_back`."""
        cdef bint gone = False
        leave(memory)
        try:
            self.release(memory.device, memory.base, &gone)
        except BaseException:
            if gone:
                memory.state = FREED
            else:
                enter(memory)
            raise

    # ---- for its owner ----

    def allocate(
        self, device: Device, nbytes: int, kind: MemoryKindLike, alignment: int | None = None, write_combined: bool = False,
        sleepable: bool = False,
    ) -> Allocation:
        """Allocate on one of these devices, as `pinning.alloc`."""
        cdef uint64_t size = size_of(nbytes)
        aligned = ALIGNED if alignment is None else alignment_of(alignment)
        size_of(size + aligned)
        cdef CMemoryKind number = number_of(kind)
        cdef Allocation made = whole(self, device, number, size, ALIGNED, write_combined, sleepable)
        if made.extent.ptr % <uint64_t>aligned == 0:
            return made
        made.free()
        return whole(self, device, number, size, aligned, write_combined, sleepable)

    def close(self) -> None:
        """Refuse further allocations. Frees nothing.

        Raises
        ------
        StillInUseError
            Something is still allocated, or being allocated.
        """
        cdef dict live = self.live_here()
        if live:
            ((_, base), (length, kind)), *others = live.items()
            more = f" and {len(others)} more" if others else ""
            raise StillInUseError(
                f"{self!r} still owns {length} bytes of {kind_of(kind).name} at {base:#x}{more}: "
                "free them, and close its pools, first"
            )
        if self.under_way:
            raise StillInUseError(f"another thread is allocating in {self!r}: wait for that, and free it, first")
        self.closed = True


# ---- the vendor's calls ----


cdef uint64_t allocate_by(device, uint64_t length, CMemoryKind kind, bint write_combined, bint sleepable) except 0:
    try:
        return allocate_now(device, length, kind, write_combined, sleepable)
    except InvalidRangeError:
        raise
    except Exception:
        if kind != CMemoryKind.host or not give_back_for(length):
            raise
    return allocate_now(device, length, kind, write_combined, sleepable)


cdef uint64_t allocate_now(device, uint64_t length, CMemoryKind kind, bint write_combined, bint sleepable) except 0:
    cdef VendorDevice* vendor = vendor_of(device)
    cdef uint64_t base
    with nogil:
        base = vendor.allocate_sleepable(length) if sleepable else vendor.allocate(length, kind, write_combined)
    return base


cdef int free_by(device, uint64_t base, CMemoryKind kind) except -1:
    cdef VendorDevice* vendor = vendor_of(device)
    with nogil:
        vendor.free(base, kind)
    return 0


cdef bint has_still(device, uint64_t base):
    """Whether a Python device, whose `free` was interrupted, still has it. In doubt False: leaked, not freed twice."""
    cdef VendorDevice* vendor = vendor_of(device)
    cdef optional[CMemoryInfo] info
    try:
        with nogil:
            info = vendor.memory_info(base)
    except BaseException:
        return False
    return info.has_value() and dereference(info).base == base


cdef uint64_t device_address(device, uint64_t ptr) except 0:
    """The device's address of HOST memory at `ptr`."""
    cdef VendorDevice* vendor = vendor_of(device)
    cdef optional[Pinned] pinned
    with nogil:
        pinned = vendor.is_pinned(ptr)
    if pinned.has_value():
        return dereference(pinned).device_ptr + (ptr - dereference(pinned).base)
    raise PinningError(f"{device.name} cannot reach the HOST memory at {ptr:#x}: use a context without it")


cdef int register(list maps, uint64_t base, uint64_t length, list addresses) except -1:
    """Register memory in all of these maps or in none."""
    cdef list done = []
    cdef PinnedMap on
    try:
        for on, address in zip(maps, addresses):
            on.register(base, length, address)
            done.append(on)
    except BaseException:
        for on in done:
            on.unregister(base)
        raise
    return 0


cdef list unregister(list maps, uint64_t base, uint64_t length):
    """Unregister memory from all of these maps or none. Returns those that had it, each with its device pointer."""
    cdef list done = []
    cdef PinnedMap on
    cdef optional[CRegion] region
    try:
        for on in maps:
            region = on.map.find(base, length)
            if region.has_value():  # else the map was closed
                done.append((on, dereference(region).device_ptr))
                try:
                    on.unregister(base)
                except BaseException:
                    done.pop()
                    raise
    except BaseException:
        register([each for each, _ in done], base, length, [address for _, address in done])
        raise
    return done


cdef Allocation whole(Backing owner, device, CMemoryKind kind, uint64_t size, uint64_t aligned, bint write_combined,
                      bint sleepable):
    """An allocation that has a vendor's allocation to itself."""
    cdef Allocation memory = Allocation.__new__(Allocation)
    cdef uint64_t ptr
    cdef bint gone
    memory.base = owner.take(device, size + aligned - ALIGNED, kind, write_combined, sleepable)
    try:
        ptr = (memory.base + aligned - 1) // aligned * aligned
        memory.begin(ptr, device_address(device, ptr) if kind == CMemoryKind.host else ptr, size, kind, owner, device,
                   None)
    except BaseException:
        owner.release(device, memory.base, &gone)
        raise
    return memory

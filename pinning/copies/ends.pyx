# SPDX-License-Identifier: Apache-2.0
"""The two ends of a copy.

Our own tables know whose memory an address is if we have allocated or locked it. Vendors are asked only for the rest.
"""

cimport cython
from cython.operator cimport dereference
from libcpp.optional cimport optional

from pinning.interop.memory_of cimport Bytes, Export, Kind, kind_of, may_refer, memory_of
from pinning.locking.lock cimport Lock, map_with
from pinning.map.adapters cimport vendor_of
from pinning.memory.allocation cimport Allocation, lookup
from pinning.plugin.native cimport CMemoryInfo, CMemoryKind, VendorDevice

import ctypes
import re
from typing import TYPE_CHECKING

from pinning.errors import ArgumentError, InvalidRangeError
from pinning.interop.dtypes import DEVICE_TYPES, HOST_TYPES
from pinning.interop.dtypes import VENDORS as VENDORS_OF_DLPACK
from pinning.locking import devices
from pinning.machine.populate import check_mapped
from pinning.memory.allocation import devices_used
from pinning.memory.allocation import find as find_allocation
from pinning.plugin import MemoryDevice, MemoryKind

if TYPE_CHECKING:
    from pinning.plugin import Device
    from pinning.queues import Queue
    from pinning.runtime.buffers import Buffer

cdef object plugins = devices.plugins
cdef object reports = None  # of the plugins, from which the next two are made
cdef dict devices_by_name = {}  # by vendor and index
cdef list answering = []  # devices with memory, one of each plugin: it answers for all

cdef dict VENDORS = VENDORS_OF_DLPACK
cdef int ONE_API = DEVICE_TYPES["ur"][MemoryKind.DEVICE]
cdef object TOP = 1 << 64
cdef object FIRST = 4096  # nothing is mapped below
cdef object CTYPES = ctypes.Structure.__base__  # of all its types
cdef object FIELD_NAME = re.compile(":[^:]*:")  # in the format of a structure


@cython.final
@cython.freelist(64)
@cython.no_gc_clear
cdef class End:
    """One end of a copy; ends.pxd describes its attributes."""

    def __init__(self, ptr: int, size: int | None, device: MemoryDevice | None, bint read_only, owner: object) -> None:
        self.ptr, self.bytes = ptr, 0 if size is None else size
        self.device, self.read_only, self.owner = device, read_only, owner

    @property
    def size(self) -> int | None:
        """Bytes; None for a bare address."""
        return self.bytes or None

    cpdef int check_room(self, uint64_t size) except -1:  # type: (int) -> int
        """Raise InvalidRangeError if `size` bytes from an address reach past the end of the allocation around it."""
        if self.room and size > self.room:
            raise InvalidRangeError(f"{size} bytes at {self.ptr:#x} run past the end of the allocation there, which is "
                                    f"{self.room} bytes further on: {self.owner!r}")
        return 0

    cpdef int check_reach(self, object queue) except -1:  # type: (Queue) -> int
        """Raise ArgumentError if a queue's device does not know this memory, and would take it for the host's."""
        if self.device is None or not is_foreign(self.device, queue):
            return 0
        cdef VendorDevice* vendor = vendor_of(self.device)
        cdef optional[CMemoryInfo] info
        with nogil:
            info = vendor.memory_info(self.ptr)
        if not info.has_value() or dereference(info).kind != CMemoryKind.shared:  # that is the host's too
            raise out_of_reach(self.device, queue)
        return 0

    def __repr__(self):
        where = "the host" if self.device is None else self.device.name
        return f"End({self.ptr:#x}, {self.size} bytes, memory of {where})"


def end_of(buffer: Buffer | Lock, preferred: Device | None = None) -> End:
    """Resolve an end as `copy_async` takes it, or return an `End`. An address that several know is `preferred`'s.

    Raises InvalidRangeError if it is freed, unlocked, empty, null, not contiguous, or of a device without a plugin;
    TypeError if it is not a buffer, or its elements are references to Python objects.
    """
    return resolve_end(buffer, preferred)


cdef bint is_foreign(object device, object queue) except -1:
    """Whether a device's memory is neither the host's nor of the vendor of a queue."""
    return device is not queue.device and device.vendor != queue.device.vendor and not devices.is_host(device)


cdef object out_of_reach(object device, object queue):
    return ArgumentError(f"{queue!r} cannot copy or fill memory of {device.name}, a device of another vendor: give a queue "
                         "of that device; copy_async alone also copies between devices of two vendors")


cdef End new_end(uint64_t ptr, uint64_t size, object device, bint read_only, object owner):
    cdef End end = End.__new__(End)
    end.ptr, end.bytes, end.device, end.read_only, end.owner = ptr, size, device, read_only, owner
    return end


cdef End resolve_end(object buffer, object preferred):
    cdef Bytes memory
    cdef Kind kind
    if isinstance(buffer, Allocation):
        return of_allocation(buffer)
    if isinstance(buffer, End):
        return buffer
    if isinstance(buffer, Lock):
        return of_lock(buffer)
    kind = kind_of(buffer)
    if kind.address:
        return at_address(int(buffer), preferred)
    if type(buffer) is tuple and len(<tuple>buffer) == 2:
        address, size = <tuple>buffer
        if type(address) is int and type(size) is int and size > 0:
            return at_address(address, preferred, size)
    owner = memory_of(buffer, kind, None, True, &memory)
    if owner is None:  # a pair of other integers
        return at_address(memory.ptr, preferred, memory.size)
    if not memory.contiguous:
        raise scattered(buffer)
    if memory.may_refer:
        refuse_references(<object>(<Export>owner).view.obj)
    device = None if memory.device_type == 1 else device_of(buffer, &memory, preferred)
    if device is None and memory.device_type == 0:
        check_mapped(memory.ptr, memory.size)  # the object may have outlived memory of a device
    cdef End end = new_end(memory.ptr, memory.size, device, memory.read_only == 1, owner)
    end.transposed = memory.contiguous == 2
    return end


cdef int refuse_other_order(object dst, object src, End to) except -1:
    """Raise if both are arrays, one of them in another order than C's; what is no array has no order."""
    other = src if to.transposed else dst
    if len(getattr(other, "shape", ())) > 1:
        raise InvalidRangeError(
            f"this {type(dst).__name__} and this {type(src).__name__} have their elements in different orders, and bytes are "
            "copied as they lie: copy an array of the same order, such as numpy.asarray(array, order='C'), or give nbytes"
        )
    return 0


cdef int refuse_references(object exporter) except -1:
    """Raise TypeError if elements of a buffer are or contain references to Python objects, as its exporter says."""
    if holds_references(exporter):
        raise references(exporter)
    return 0


cdef object references(object buffer):
    return TypeError(f"this {type(buffer).__name__} holds Python objects, and its bytes are references, which are not to be "
                     "copied; convert it first, as by astype")


cdef bint holds_references(object exporter) except *:
    refers = getattr(getattr(exporter, "dtype", None), "hasobject", None)
    if refers is not None:
        return refers
    if isinstance(exporter, CTYPES):
        return type_holds_references(type(exporter))
    try:
        return "O" in FIELD_NAME.sub("", memoryview(exporter).format)
    except (BufferError, ValueError):  # it exports bytes alone
        return False


cdef bint type_holds_references(object cls) except *:
    # The formats of unions and of packed structures do not tell.
    if issubclass(cls, ctypes.Array):
        return type_holds_references(cls._type_)
    if issubclass(cls, (ctypes.Structure, ctypes.Union)):
        return any([type_holds_references(field[1]) for base in cls.__mro__ for field in vars(base).get("_fields_", ())])
    return issubclass(cls, ctypes.py_object)


cdef object scattered(object buffer):
    return InvalidRangeError(f"the bytes of this {type(buffer).__name__} are not contiguous: copy a contiguous "
                             "array, or rows of an array, given whole or by its address, with copy_2d_async")


cdef End of_allocation(Allocation allocation):
    allocation.check_live()
    device = None if allocation.extent.kind == CMemoryKind.host else allocation.device
    return new_end(allocation.extent.ptr, allocation.extent.size, device, False, allocation)


cdef End of_lock(Lock lock):
    # The lock drops its owner when it is unlocked, and so the copy keeps the owner itself.
    if not lock.counted:
        raise InvalidRangeError(f"{lock!r} no longer keeps its memory alive: copy the buffer itself")
    if isinstance(lock.owner, Export) and may_refer(lock.owner):
        refuse_references(<object>(<Export>lock.owner).view.obj)
    return new_end(lock.ptr, lock.size, None, lock.read_only == 1, lock.owner)


cdef End at_address(address, object preferred, size=0):
    if not (FIRST <= address and address + (size or 1) <= TOP):
        what = f"{size} bytes" if size else "memory"
        raise InvalidRangeError(f"{address:#x} is not an address of {what}: an integer is taken for an address, which "
                                "lies between 4096 and 2**64; pass a buffer, an allocation, or its ptr")
    cdef uint64_t ptr = address
    cdef End end
    cdef Allocation allocation = lookup(ptr)
    if allocation is not None and preferred is not None and allocation.device is not preferred:
        allocation = find_allocation(address, (preferred,))  # addresses of several devices may be the same
    if allocation is not None:
        device = None if allocation.extent.kind == CMemoryKind.host else allocation.device
        end = new_end(ptr, size, device, False, allocation)
        end.room = allocation.extent.ptr + allocation.extent.size - ptr
        end.check_room(size)
        return end
    if map_with(ptr, 1) is not None:
        return new_end(ptr, size, None, False, None)
    return new_end(ptr, size, device_at(ptr, preferred), False, None)


cdef object device_of(object buffer, Bytes* memory, object preferred):
    """The device whose memory an object is; None for the host's."""
    if memory.device_type == 0:
        return device_at(memory.ptr, preferred)
    if memory.device_type in HOST_TYPES:
        return None
    vendor = VENDORS.get(memory.device_type)
    look_at_plugins()
    device = devices_by_name.get((vendor, memory.device_id))
    if device is not None and memory.device_type != ONE_API:
        return device
    place = device_at(memory.ptr, preferred if device is None else device)  # oneAPI's type covers any kind of memory
    if device is None and place is None:
        raise InvalidRangeError(
            f"this {type(buffer).__name__} is memory of device {memory.device_id} of DLPack's type {memory.device_type}, "
            "which no plugin supports"
        )
    return place


cdef object device_at(uint64_t ptr, object preferred):
    """The device whose memory holds an address that our tables may not know; None for the host's."""
    cdef Allocation allocation = lookup(ptr)
    if allocation is not None and (preferred is None or allocation.device is preferred):
        return None if allocation.extent.kind == CMemoryKind.host else allocation.device
    cdef bint known
    if preferred is not None:
        known, place = ask(preferred, ptr)
        if known:
            return place
    look_at_plugins()
    for device in (*answering, *devices_used()):
        if device is not preferred:
            known, place = ask(device, ptr)
            if known:
                return place
    return None


cdef tuple ask(object device, uint64_t ptr):
    """Whether a device knows the memory at an address, and whose memory it is."""
    cdef VendorDevice* vendor = vendor_of(device)
    cdef optional[CMemoryInfo] info
    with nogil:
        info = vendor.memory_info(ptr)
    if not info.has_value():
        return False, None
    if dereference(info).kind == CMemoryKind.host:
        return True, None
    index = dereference(info).device
    return True, device if index < 0 else sibling(device, index)


cdef object sibling(object device, int index):
    """The device with this index of the same plugin."""
    if device.index == index:
        return device
    look_at_plugins()
    return devices_by_name.get((device.vendor, index), device)


cdef look_at_plugins():
    global reports, devices_by_name, answering
    latest = plugins()
    if latest is reports:
        return
    cdef dict by_name = {}
    cdef list first_ones = []
    for report in latest:
        with_memory = [device for device in report.devices if isinstance(device, MemoryDevice)]
        first_ones.extend(with_memory[:1])
        for device in with_memory:
            by_name[device.vendor, device.index] = device
    old = devices_by_name, answering, reports  # released last, so that no other thread runs between the stores
    devices_by_name, answering, reports = by_name, first_ones, latest

# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""The two ends of a copy.

Whose memory an address is, our own tables know of what we have allocated or locked. Only for the rest vendors are asked.
"""

cimport cython
from cython.operator cimport dereference
from libc.stdint cimport uint64_t
from libcpp.optional cimport optional

from pinning.interop.exports cimport Bytes, DLTensor, Kind, dlpack_bytes, export, is_range, kind_of
from pinning.locking.lock cimport Lock, map_with
from pinning.map.adapters cimport vendor_of
from pinning.memory.allocation cimport Allocation, lookup
from pinning.plugin.native cimport CMemoryInfo, CMemoryKind, VendorDevice

from pinning.errors import InvalidRangeError, PinningError
from pinning.interop.buffers import DLPACK_PLUGINS, is_contiguous, resolve
from pinning.locking import devices
from pinning.memory.allocation import devices_used
from pinning.memory.allocation import find as find_allocation
from pinning.plugin import MemoryDevice

cdef object plugins = devices.plugins
cdef object reports = None  # of the plugins, for which the next two hold
cdef dict by_name = {}
cdef list answering = []  # devices with memory, one of each plugin: it answers for all

cdef dict PLUGINS = DLPACK_PLUGINS
cdef object TOP = 1 << 64
cdef object FIRST = 4096  # nothing is mapped below


@cython.final
@cython.freelist(64)
@cython.no_gc_clear
cdef class End:
    """One end of a copy.

    Attributes
    ----------
    ptr : int
        Its first byte: the host's address of host memory, else the device's.
    size : int or None
        Bytes; None for a bare address.
    device : MemoryDevice or None
        Whose memory it is; None for the host's.
    read_only : bool
        Whether it may not be written.
    owner : object
        What keeps the memory alive; None where the caller does.
    """

    def __init__(self, ptr, size, device, bint read_only, owner):
        self.ptr, self.bytes = ptr, 0 if size is None else size
        self.device, self.read_only, self.owner = device, read_only, owner

    @property
    def size(self):
        return self.bytes or None

    def __repr__(self):
        where = "the host" if self.device is None else self.device.name
        return f"End({self.ptr:#x}, {self.size} bytes, memory of {where})"


def end_of(buffer, preferred=None):
    """Find out what one end of a copy is.

    Parameters
    ----------
    buffer : object
        An `Allocation`, a `Lock` that is held, anything that `pinning.lock` takes and that has no gaps, an object with
        DLPack's C exchange API or ``__cuda_array_interface__``, or an address of host or device memory. An `End` is
        itself.
    preferred : Device, optional
        Whose memory an address is when several devices know it.

    Raises
    ------
    InvalidRangeError
        Freed, unlocked, empty or null; or its bytes do not follow one another.
    TypeError
        It is no buffer.
    """
    return resolve_end(buffer, preferred)


cdef End made(uint64_t ptr, uint64_t size, object device, bint read_only, object owner):
    cdef End end = End.__new__(End)
    end.ptr, end.bytes, end.device, end.read_only, end.owner = ptr, size, device, read_only, owner
    return end


cdef End resolve_end(object buffer, object preferred):
    cdef Bytes found
    cdef DLTensor tensor
    cdef Kind kind
    if isinstance(buffer, Allocation):
        return of_allocation(buffer)
    if isinstance(buffer, End):
        return buffer
    if isinstance(buffer, Lock):
        return of_lock(buffer)
    kind = kind_of(buffer)
    if kind.dlpack is not NULL:
        if dlpack_bytes(buffer, kind.dlpack, &tensor, &found) and is_range(found.ptr, found.size):
            if tensor.device_type in (1, 3, 11):
                return contiguous(buffer, &found, None, buffer)
            device = device_of_dlpack(tensor.device_type, tensor.device_id)
            if device is not None and tensor.device_type == 14:  # oneAPI's, of memory of any kind
                device = device_at(found.ptr, device)
                return contiguous(buffer, &found, device, buffer)
            if device is not None:
                return contiguous(buffer, &found, device, buffer)
    elif kind.address:
        return at_address(int(buffer), preferred)
    elif kind.buffer and not kind.interface:
        try:
            owner = export(buffer, &found)
        except (TypeError, ValueError, BufferError):
            pass  # the long way says what is wrong, or has another
        else:
            if is_range(found.ptr, found.size):
                return contiguous(buffer, &found, None, owner)
    elif type(buffer) is tuple and len(<tuple>buffer) == 2:
        address, size = <tuple>buffer
        if type(address) is int and type(size) is int and size > 0:
            return at_address(address, preferred, size)
    return by_others(buffer, kind, preferred)


cdef End contiguous(object buffer, Bytes* found, object device, object owner):
    if not found.contiguous:
        raise scattered(buffer)
    if found.may_refer and refers(buffer):
        raise TypeError(f"this {type(buffer).__name__} holds Python objects, and its bytes are references, which are "
                        "not to be copied; convert it first, as by astype")
    return made(found.ptr, found.size, device, found.read_only == 1, owner)


cdef bint refers(object buffer):
    if isinstance(buffer, memoryview):
        return "O" in (<object>buffer).format
    return getattr(getattr(buffer, "dtype", None), "hasobject", False)


cdef scattered(object buffer):
    return InvalidRangeError(f"the bytes of this {type(buffer).__name__} do not follow one another: copy a contiguous "
                             "array, or use copy_2d_async")


cdef End of_allocation(Allocation allocation):
    if allocation.error is not None:
        raise allocation.error
    if not allocation.is_live():
        raise InvalidRangeError(f"{allocation!r} cannot be copied")
    device = None if allocation.extent.kind == CMemoryKind.host else allocation.device
    return made(allocation.extent.ptr, allocation.extent.size, device, False, allocation)


cdef End of_lock(Lock lock):
    # The lock drops its owner when it is unlocked, and so the copy keeps the owner itself.
    if not lock.counted:
        raise InvalidRangeError(f"{lock!r} keeps its memory no longer: copy the buffer itself")
    return made(lock.ptr, lock.size, None, lock.read_only == 1, lock.owner)


cdef End by_others(object buffer, Kind kind, object preferred):
    """The less common protocols."""
    if kind.cupy:
        data = buffer.data
        if buffer.flags.c_contiguous or buffer.flags.f_contiguous:
            device = device_of_dlpack(2, data.device_id)
            if device is not None:
                return made(checked(data.ptr, buffer.nbytes), buffer.nbytes, device, False, buffer)
    interface = getattr(buffer, "__cuda_array_interface__", None)
    if interface is not None:
        return of_interface(buffer, interface, preferred)
    resolved = resolve(buffer)
    if not resolved.contiguous:
        raise scattered(buffer)
    if isinstance(buffer, tuple):
        return at_address(resolved.ptr, preferred, resolved.size)
    return made(resolved.ptr, resolved.size, None, resolved.read_only is True, resolved.owner)


cdef End of_interface(object buffer, object interface, object preferred):
    ptr, read_only = interface["data"]
    shape = interface["shape"]
    itemsize = int(interface["typestr"][2:])
    size = itemsize
    for length in shape:
        size *= length
    checked(ptr, size)
    strides = interface.get("strides")
    if strides is not None and not is_contiguous(tuple(shape), tuple(strides), itemsize):
        raise scattered(buffer)
    return made(ptr, size, device_at(ptr, preferred), read_only, buffer)


cdef object checked(ptr, size):
    """An address that an array tells."""
    if size == 0:
        raise InvalidRangeError("the array is empty; a copy needs at least 1 byte")
    if ptr is None or not 0 < ptr < TOP:
        raise InvalidRangeError(f"the array's address is {ptr}, which is no memory; was it freed?")
    return ptr


cdef End at_address(address, object preferred, size=0):
    if not (FIRST <= address and address + (size or 1) <= TOP):
        raise InvalidRangeError(f"{address:#x} is no address of {f'{size} bytes' if size else 'memory'}")
    cdef uint64_t ptr = address
    cdef Allocation allocation = lookup(ptr)
    if allocation is not None and preferred is not None and allocation.device is not preferred:
        allocation = find_allocation(address, (preferred,))  # addresses of several devices may be the same
    if allocation is not None:
        return made(ptr, size, None if allocation.extent.kind == CMemoryKind.host else allocation.device, False,
                    allocation)
    if map_with(ptr, 1) is not None:
        return made(ptr, size, None, False, None)
    return made(ptr, size, device_at(ptr, preferred), False, None)


cdef object device_at(uint64_t ptr, object preferred):
    """The device whose memory holds an address that our tables may not know; None for the host's."""
    cdef Allocation allocation = lookup(ptr)
    if allocation is not None and (preferred is None or allocation.device is preferred):
        return None if allocation.extent.kind == CMemoryKind.host else allocation.device
    cdef bint known
    if preferred is not None:
        known, device = ask(preferred, ptr)
        if known:
            return device
    look_at_plugins()
    for each in (*answering, *devices_used()):
        if each is not preferred:
            known, device = ask(each, ptr)
            if known:
                return device
    return None


cdef tuple ask(object device, uint64_t ptr):
    """Whether a device knows of memory there, and whose it is."""
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
    plugin, _, own = device.name.partition(":")
    if own == str(index):
        return device
    look_at_plugins()
    return by_name.get((plugin, index), device)


cdef object device_of_dlpack(int kind, int index):
    """The device that DLPack means; None where no plugin has it."""
    look_at_plugins()
    return by_name.get((PLUGINS.get(kind), index))


cdef look_at_plugins():
    global reports
    found = plugins()
    if found is reports:
        return
    by_name.clear()
    answering.clear()
    for report in found:
        with_memory = [device for device in report.devices if isinstance(device, MemoryDevice)]
        answering.extend(with_memory[:1])
        for device in with_memory:
            plugin, _, index = device.name.partition(":")
            by_name[plugin, int(index)] = device
    reports = found

# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""The common copies, recognised at once: between an allocation on a device and a buffer. The stub says more."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cython.operator cimport dereference
from libc.stdint cimport uint64_t
from libcpp.optional cimport optional

from pinning.map cimport Hold, PinnedMap
from pinning.memory.allocation cimport Allocation
from pinning.native cimport CRegion
from pinning.plugin.native cimport CMemoryKind
from pinning.queues.event cimport Event
from pinning.queues.submitter cimport Submitter

from pinning.copies.plan import Path, too_small
from pinning.devices import pinned_map
from pinning.errors import PinningError

cdef object path_direct = Path.DIRECT
cdef str reason_locked = "the host's memory is locked"

cdef object last_device = None
cdef PinnedMap last_map = None


cdef PinnedMap map_of(object device):
    """`pinned_map`, which is the same every time, of the device that was asked for last."""
    global last_device, last_map
    cdef PinnedMap found
    if device is not last_device:
        found = pinned_map(device)
        last_device, last_map = device, found
    return last_map


cdef class Copy(Event):
    def __cinit__(self):
        self.path = path_direct
        self.reason = reason_locked


cdef class WholeCopy:
    cdef Hold hold  # so that no unlock takes the memory away under the copy
    cdef Py_buffer view
    cdef bint exported
    cdef bint locked
    cdef uint64_t dst, src, size

    def __call__(self, queue):
        queue.copy(self.dst, self.src, self.size)

    def __dealloc__(self):
        self.hold = None  # before its memory may go
        if self.exported:
            PyBuffer_Release(&self.view)


def copy_whole(dst, src, Submitter queue not None, wait_for, costs):
    cdef bint to_device = isinstance(dst, Allocation)
    given, buffer = (dst, src) if to_device else (src, dst)
    if not isinstance(given, Allocation):
        return None
    cdef Allocation allocation = given
    if allocation.extent.kind != CMemoryKind.device or not allocation.is_live():
        return None
    if allocation.device is not queue.device or not PyObject_CheckBuffer(buffer):
        return None
    cdef PinnedMap on = map_of(queue.device)
    cdef WholeCopy whole = recognised(allocation, buffer, to_device, on, costs)
    if whole is None:
        return None
    cdef Copy copy = queue.submit(whole, wait_for, (whole, allocation), Copy)
    if not whole.locked:
        copy.path, copy.reason = Path.PLAIN, too_small(to_device)
    return copy


cdef WholeCopy recognised(Allocation allocation, object buffer, bint to_device, PinnedMap on, object costs):
    cdef WholeCopy copy = WholeCopy.__new__(WholeCopy)
    try:
        PyObject_GetBuffer(buffer, &copy.view, PyBUF_SIMPLE if to_device else PyBUF_WRITABLE)
    except (BufferError, ValueError):
        return None  # scattered or read only: the long way says what is wrong
    copy.exported = True
    cdef uint64_t host = <uint64_t>copy.view.buf
    copy.size = copy.view.len
    if copy.size == 0 or copy.size != allocation.extent.size:
        return None
    cdef optional[CRegion] region = on.map.find(host, copy.size)
    copy.locked = region.has_value()
    if copy.locked:
        if dereference(region).external and not dereference(region).registered:
            return None
        if dereference(region).piece < dereference(region).size:
            return None
        try:
            copy.hold = Hold(on, host, copy.size, None, None, None)
        except PinningError:  # it was unlocked just now
            return None
    elif copy.size >= <uint64_t>costs.least_worth_a_look(to_device) or on.map.overlapping(host, copy.size).size():
        return None
    if to_device:
        copy.dst, copy.src = allocation.extent.ptr, host
    else:
        copy.dst, copy.src = host, allocation.extent.ptr
    return copy

# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""The common copies, recognised at once: between an allocation on a device and a buffer. The stub says more."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cython.operator cimport dereference
from libc.stdint cimport uint64_t
from libcpp.optional cimport optional

from pinning.map cimport PinnedMap
from pinning.native cimport CRegion

from pinning.memory import Allocation
from pinning.plugin import MemoryKind

cdef object allocation_type = Allocation
cdef object device_kind = MemoryKind.DEVICE


cdef class WholeCopy:
    cdef Py_buffer view
    cdef bint exported
    cdef readonly object allocation
    cdef readonly bint locked
    cdef uint64_t dst, src, size

    def __call__(self, queue):
        queue.copy(self.dst, self.src, self.size)

    def __dealloc__(self):
        if self.exported:
            PyBuffer_Release(&self.view)


def whole_copy(dst, src, PinnedMap on not None, costs):
    cdef bint to_device = isinstance(dst, allocation_type)
    allocation, buffer = (dst, src) if to_device else (src, dst)
    if not isinstance(allocation, allocation_type) or allocation.kind is not device_kind or allocation.freed:
        return None
    if not PyObject_CheckBuffer(buffer) or allocation.device is not on.device:
        return None
    cdef WholeCopy copy = WholeCopy.__new__(WholeCopy)
    try:
        PyObject_GetBuffer(buffer, &copy.view, PyBUF_SIMPLE if to_device else PyBUF_WRITABLE)
    except (BufferError, ValueError):
        return None  # scattered or read only: the long way says what is wrong
    copy.exported = True
    cdef uint64_t host = <uint64_t>copy.view.buf
    copy.size = copy.view.len
    if copy.size == 0 or copy.size != <uint64_t>allocation.size:
        return None
    cdef optional[CRegion] region = on.map.find(host, copy.size)
    copy.locked = region.has_value()
    if copy.locked:
        if dereference(region).external and not dereference(region).registered:
            return None
        if dereference(region).piece < dereference(region).size:
            return None
    elif copy.size >= <uint64_t>costs.least_worth_a_look(to_device) or on.map.overlapping(host, copy.size).size():
        return None
    copy.allocation = allocation
    if to_device:
        copy.dst, copy.src = allocation.ptr, host
    else:
        copy.dst, copy.src = host, allocation.ptr
    return copy

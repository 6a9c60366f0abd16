# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""The common copy, recognised at once: between an allocation on a device and a locked buffer. The stub says more."""

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


cdef class DirectCopy:
    cdef Py_buffer view
    cdef bint exported
    cdef readonly object allocation
    cdef uint64_t dst, src, size

    def __call__(self, queue):
        queue.copy(self.dst, self.src, self.size)

    def __dealloc__(self):
        if self.exported:
            PyBuffer_Release(&self.view)


def direct(dst, src, PinnedMap on not None):
    cdef bint to_device = isinstance(dst, allocation_type)
    allocation, buffer = (dst, src) if to_device else (src, dst)
    if not isinstance(allocation, allocation_type) or allocation.kind is not device_kind or allocation.freed:
        return None
    if not PyObject_CheckBuffer(buffer) or allocation.device is not on.device:
        return None
    cdef DirectCopy copy = DirectCopy.__new__(DirectCopy)
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
    if not region.has_value() or (dereference(region).external and not dereference(region).registered):
        return None
    if dereference(region).piece < dereference(region).size:
        return None
    copy.allocation = allocation
    if to_device:
        copy.dst, copy.src = allocation.ptr, host
    else:
        copy.dst, copy.src = host, allocation.ptr
    return copy

# SPDX-License-Identifier: Apache-2.0
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pagetable.native cimport CPageTable


cdef class Region:
    cdef readonly uint64_t start
    cdef readonly uint64_t size
    cdef readonly int64_t id


cdef class PageTable:
    # The C++ table, for callers without the GIL; exists as long as this object.
    cdef CPageTable* table
    # The Region last returned for each id, so that a lookup need not make an object. Owned references, or null.
    cdef PyObject** made
    cdef uint32_t made_length

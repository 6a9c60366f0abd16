# SPDX-License-Identifier: Apache-2.0
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pagetable.native cimport CPageTable


cdef class Region:
    cdef readonly uint64_t start
    cdef readonly uint64_t size
    cdef readonly int64_t id


cdef class PageTable:
    # The C++ table, for callers without the GIL; lives as long as this object.
    cdef CPageTable* table
    # Regions by id, as last handed out: a lookup should not have to make an object. Owned references, or null.
    cdef PyObject** made
    cdef uint32_t made_length

# SPDX-License-Identifier: Apache-2.0
"""The C++ page table, for Cython. Compile with the include folder that ``python -m pagetable --include-dir`` prints."""

from libc.stdint cimport uint32_t, uint64_t
from libcpp cimport bool
from libcpp.optional cimport optional
from libcpp.vector cimport vector


cdef extern from "<pagetable/page_table.hpp>" namespace "pagetable" nogil:
    cppclass CRegion "pagetable::Region":
        uint64_t start
        uint64_t size
        uint32_t id
        uint64_t end() noexcept
        uint64_t last() noexcept

    cppclass CPageTable "pagetable::PageTable<>":
        CPageTable() except +
        CPageTable(bool flat) except +
        optional[CRegion] find(uint64_t address) noexcept
        optional[CRegion] find_range(uint64_t start, uint64_t size) noexcept
        bool contains(uint64_t address) noexcept
        size_t size() noexcept
        CRegion insert(uint64_t start, uint64_t size) except +
        optional[CRegion] remove(uint64_t start) except +
        vector[CRegion] overlapping(uint64_t start, uint64_t size) except +
        vector[CRegion] regions() except +

# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""Lookups from Cython, without the GIL, in a table that Python code made."""

cimport pagetable
from libc.stdint cimport uint64_t


def count_hits(pagetable.PageTable table not None, const uint64_t[::1] addresses):
    """How many of the addresses lie in a region."""
    cdef pagetable.CPageTable* index = table.table  # valid as long as `table` is referenced
    cdef Py_ssize_t i, hits = 0
    with nogil:
        for i in range(addresses.shape[0]):
            hits += index.contains(addresses[i])
    return hits


def bytes_behind(pagetable.PageTable table not None, uint64_t address):
    """Bytes from an address to the end of its region; 0 if there is none."""
    cdef pagetable.Region region = table.find(address)
    return 0 if region is None else region.start + region.size - address

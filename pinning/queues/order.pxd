# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t


cdef class Line:
    cdef readonly uint64_t reached
    cdef readonly bint ordered

    cdef void reach(self, uint64_t position) noexcept


cdef class Point:
    cdef readonly Line line
    cdef readonly uint64_t position


cdef class History:
    cdef dict found


# What an operation comes after, as a dict that nobody changes once it is shared. Line: every operation of it up to that
# position. (Line, position): this one.
cdef object key_of(Line line, uint64_t position)
cdef bint covers(dict found, Line line, uint64_t position)
cdef dict merged(dict one, dict other)
cdef Point point_at(Line line, uint64_t position)
cdef History history_of(dict found)

# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t


cdef class Timeline:
    cdef readonly uint64_t reached
    cdef readonly bint ordered

    cdef void reach(self, uint64_t position) noexcept


cdef class TimelinePoint:
    cdef readonly Timeline timeline
    cdef readonly uint64_t position


cdef class Dependencies:
    cdef dict latest


# What an operation comes after, as a dict that is not changed once it is shared. The key Timeline stands for all its
# operations up to the value, a position; the key (Timeline, position) for that operation alone.
cdef object key_of(Timeline timeline, uint64_t position)
cdef bint covers(dict latest, Timeline timeline, uint64_t position)
cdef dict merged(dict one, dict other)
cdef TimelinePoint point_at(Timeline timeline, uint64_t position)
cdef Dependencies dependencies_of(dict latest)

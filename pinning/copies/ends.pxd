# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t


cdef class End:
    cdef readonly uint64_t ptr
    cdef uint64_t bytes  # 0 if unknown
    cdef readonly object device  # type: MemoryDevice | None
    cdef readonly bint read_only
    cdef readonly bint transposed  # an array in another order than C's
    cdef readonly object owner  # type: object


cdef End resolve_end(object buffer, object preferred)
cdef int refuse_other_order(object dst, object src, End to) except -1

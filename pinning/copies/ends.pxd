# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t


cdef class End:
    cdef readonly uint64_t ptr  # its first byte: the host's address of host memory, else the device's
    cdef uint64_t bytes  # 0 if unknown
    cdef uint64_t room  # of an address in an allocation, the bytes from there to its end; 0: any
    cdef readonly object device  # type: MemoryDevice | None  # whose memory it is; None: the host's
    cdef readonly bint read_only
    cdef readonly bint transposed  # an array in another order than C's
    cdef readonly object owner  # type: object  # it keeps the memory alive; None if the caller does

    cpdef int check_room(self, uint64_t size) except -1
    cpdef int check_reach(self, object queue) except -1


cdef bint is_foreign(object device, object queue) except -1
cdef object out_of_reach(object device, object queue)  # the error
cdef End resolve_end(object buffer, object preferred)
cdef int refuse_other_order(object dst, object src, End to) except -1

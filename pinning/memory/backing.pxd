# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t

from pinning.plugin.native cimport CMemoryKind


cdef class Backing:
    cdef readonly tuple devices  # type: tuple[MemoryDevice, ...]
    cdef readonly bint closed
    cdef dict live  # (length, kind) by id of the device and first address
    cdef int under_way  # number of allocations that vendors are making now
    cdef unsigned made_in
    cdef object __weakref__

    cdef uint64_t take(self, device, uint64_t length, CMemoryKind kind, bint write_combined,
                       bint sleepable=*) except 0
    cdef int release(self, device, uint64_t base, bint* gone) except -1
    cdef dict live_here(self)
    cdef list maps_of(self, CMemoryKind kind)


cdef uint64_t device_address(device, uint64_t ptr) except 0

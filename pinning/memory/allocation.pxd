# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t

from pinning.plugin.native cimport CMemoryKind
from pinning.queues.lane cimport Freeable


cdef struct Extent:
    uint64_t ptr  # the host's address of HOST memory, else the device's
    uint64_t device_ptr
    uint64_t size
    CMemoryKind kind


cdef enum State:
    LIVE
    LEAVING  # being freed: no other thread may free it
    FREED


cdef class Allocation(Freeable):
    cdef object __weakref__
    cdef Extent extent
    cdef uint64_t base  # where the vendor's allocation begins, if it has one to itself: before `ptr` if that is aligned
    cdef State state
    cdef readonly object device  # type: MemoryDevice
    cdef readonly object context  # type: Context
    cdef readonly object pool  # type: Any
    cdef object error  # why its pool refused the memory, else None
    cdef Py_ssize_t exports  # exported buffers
    cdef unsigned made_in
    cdef unsigned long asleep  # the thread that put it to sleep, or is about to; 0: it is awake
    cdef public object _parked  # type: Any  # its contents in the host while it sleeps; dropped when it is freed

    cdef int raise_error(self) except -1
    cdef bint is_live(self) noexcept  # whether it has memory that this process can use
    cdef int begin(self, uint64_t ptr, uint64_t device_ptr, uint64_t size, CMemoryKind kind, context, device,
                   pool) except -1
    cdef int claim(self) except -1
    cdef int check_unused(self) except -1
    cdef int check_unexported(self) except -1
    cdef int check_unlocked(self) except -1
    cdef int check_bytes(self) except -1
    cdef void count_export(self, int change) noexcept
    cdef int give_back(self) except -1


# The allocation that holds the byte at an address, or None: a few nanoseconds.
cdef Allocation lookup(uint64_t ptr)

cdef int enter(Allocation allocation) except -1
cdef int leave(Allocation allocation) except -1
cdef object locked_within(uint64_t ptr, uint64_t size)  # a Region with a lock there, or None
cdef int check_part_unlocked(Allocation part) except -1  # `check_unlocked` for a part of what is locked as a whole
cdef uint64_t size_of(object nbytes) except 0
cdef object kind_of(CMemoryKind kind)
cdef CMemoryKind number_of(object kind) except *

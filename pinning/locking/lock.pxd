# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t
from libcpp.optional cimport optional

from pinning.interop.memory_of cimport Bytes
from pinning.map.native cimport CRegion, PacedPieces
from pinning.map.pinned_map cimport Hold, PinnedMap


cdef struct Call:
    void* code  # of the function that calls; null if it is not known
    int at  # in the code


cdef class Pace:
    """How a lock is cut into pieces."""
    cdef PacedPieces* pieces

cdef class Lock(Hold):
    cdef readonly uint64_t ptr
    cdef readonly uint64_t size
    cdef object owner  # of the memory; None once unlocked, or if the caller keeps it
    cdef signed char read_only  # as in Bytes
    cdef dict __dict__
    cdef uint64_t serial  # the older the smaller; 0 if it has not been entered
    cdef bint cached  # its unlock caches the region, whatever owns the memory
    cdef bint ending  # in a destructor, where the owner must not be revived
    cdef Call made_by

    cdef enter(self)
    cdef void leave(self) noexcept


cdef Pace pace_of(uint64_t largest, Lock lock, object piece, object unit, object stall_ms)
cdef Lock unlocked(object buffer, object size, Bytes* found)  # not locked yet
cdef PinnedMap map_of(object device)
cdef bint is_decided(uint64_t ptr, uint64_t size, PinnedMap pinned_map) noexcept
cdef bint check_anew(uint64_t ptr, uint64_t size, PinnedMap pinned_map, bint resident) except -1
# The first map with a region that contains the whole range, and that region; or None.
cdef PinnedMap map_with(uint64_t ptr, uint64_t size, optional[CRegion]* region=*)
cdef tuple description_of(object buffer)
cdef void show(Lock lock, tuple description) noexcept  # in the process's status page
cdef Call this_call()
cdef warn_of_drop(object handle, Call made_by, str text)  # in its destructor
cdef Lock held_within(uint64_t ptr, uint64_t size)  # a held lock of any of these bytes, or None

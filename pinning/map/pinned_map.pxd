# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint32_t, uint64_t

from cpython.object cimport PyObject

from pinning.map.native cimport (
    CHold, CPinnedMap, CRegion, MappedLocks, Pieces, PythonRegistrar, SharedMap,
)
from pinning.plugin.native cimport Coherence, Locker, LockOptions


cdef class Region:
    cdef readonly uint64_t start
    cdef readonly uint64_t size
    cdef readonly uint64_t whole
    cdef readonly uint64_t device_ptr
    cdef readonly uint64_t piece
    cdef readonly uint32_t references
    cdef readonly bint external
    cdef readonly bint registered
    cdef readonly bint idle
    cdef Coherence coherence
    cdef readonly object device  # type: Any


cdef class PinnedMap:
    # The C++ map, for callers without the GIL. A forked child has another one.
    cdef CPinnedMap* map
    cdef MappedLocks* mapped
    cdef object adapter  # of the device
    cdef SharedMap* shared  # null for a private map
    cdef PyObject* holds  # the first of a linked list of the Holds that count a lock here
    cdef uint64_t largest
    cdef bint fine
    cdef bint coarse
    cdef list registrars
    cdef object __weakref__
    cdef readonly object device  # type: Any
    cdef readonly bint closed
    cdef unsigned made_in

    cdef _make(self)
    cdef restart(self)
    cdef _let_go(self)
    cdef _remove_registrars(self, bint wait)
    cdef uint64_t holds_in(self, uint64_t region)
    cdef bint is_being_locked(self, uint64_t ptr) except -1
    cdef Locker* locker(self) noexcept
    cdef give_back(self, uint64_t start)  # the idle region there
    cdef CHold hold(self, ptr, size, read_only, piece, coherent) except *
    # In `pieces`, or if that is null in pieces of `piece` bytes.
    cdef CHold hold_range(
        self, uint64_t ptr, uint64_t size, LockOptions options, uint64_t piece, Pieces* pieces
    ) except *
    cdef CHold hold_listed(
        self, uint64_t ptr, uint64_t size, LockOptions options, uint64_t piece, Pieces* pieces
    ) except *
    cdef check_open(self)
    cdef uint64_t step(self, uint64_t size, uint64_t piece) noexcept


cdef Region wrap(const CRegion& native, object device)


cdef class Registrar:
    cdef readonly PinnedMap map
    cdef readonly str name
    cdef object on_register
    cdef object on_unregister
    cdef PythonRegistrar* native  # null once it is removed
    cdef unsigned made_in

    cdef take_out(self, bint wait)


cdef LockOptions lock_options(object read_only, object coherent) except *


cdef class Hold:
    cdef PinnedMap map
    cdef CHold hold
    cdef bint counted
    cdef bint keep  # whether the last unlock of the region is to keep it idle
    cdef unsigned made_in
    cdef bint linked
    cdef PyObject* previous_hold
    cdef PyObject* next_hold
    cdef object __weakref__

    cdef bint try_take(self, PinnedMap map, uint64_t ptr, uint64_t size, Coherence wanted) noexcept
    cdef take(self, PinnedMap map, ptr, size, read_only, piece, coherent)
    cdef take_in_pieces(self, PinnedMap map, uint64_t ptr, uint64_t size, LockOptions options, Pieces* pieces)
    cdef void own(self, PinnedMap map, CHold hold) noexcept
    cdef bint is_held(self) noexcept
    cdef bint release(self) except *
    cdef void release_last(self) noexcept
    cdef bint is_in_map(self) noexcept
    cdef void link(self) noexcept
    cdef void unlink(self) noexcept


cdef unlock_orphans()  # after each call that may have run a device's own Python code

# SPDX-License-Identifier: Apache-2.0
"""The registration cache: regions that stay registered after their last unlock, given back least recently used first.

The maps cache regions within the budget (`map/idle.hpp`, `budget.hpp`); public names call them idle. This module keeps
the owners of their memory, which stays in place meanwhile, and empties the cache: of regions whose memory has no other
user, when memory is short, and when a lock finds no room.
"""

from cpython.object cimport PyObject
from cpython.weakref cimport PyWeakref_GetObject
from cython.operator cimport dereference
from libcpp cimport bool as cbool
from libcpp.optional cimport optional
from libcpp.vector cimport vector

from pinning.interop.memory_of cimport Bytes, Export, export
from pinning.map.native cimport Budget, CPinnedMap, CRegion, process_budget, process_watcher

import mmap
from contextlib import suppress
from weakref import ref

import numpy

from pinning.errors import PinningError
from pinning.machine.pressure import Pressure
from pinning.map.pinned_map import _maps
from pinning.runtime.process import LONGEST, at_exit, at_fork, look_after

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject* thing)

cdef enum:
    MOST_VIEWS = 64  # nested ones that are followed to their owner

NO_LIMIT: int = 2**64 - 1

cdef Budget* budget = &process_budget()
cdef dict owners = {}  # of cached regions, by map and start
cdef bint watched = False  # whether the service thread checks them
cdef object pressure = None
cdef tuple WHOLE = (bytes, bytearray, mmap.mmap)
cdef object ARRAY = numpy.ndarray


cdef class Owner:
    """The owner of a region's memory, which cannot be freed, resized or closed while this exists."""

    cdef object map  # a weak reference
    cdef uint64_t start
    cdef uint64_t size
    cdef object root
    cdef Export export  # of `root`

    cdef bint is_orphan(self, Py_ssize_t times) noexcept:
        """Whether only the cache refers to `root`: each of `times` owners has a reference, and its export another."""
        return Py_REFCNT(<PyObject*>self.root) <= 2 * times


cdef bint keep_owner(PinnedMap pinned_map, uint64_t ptr, object buffer) except -1:
    if not budget.keeps(1) or not isinstance(buffer, Export):
        return False
    cdef optional[CRegion] region = pinned_map.map.find(ptr, 1)
    if not region.has_value() or dereference(region).external:
        return False
    cdef uint64_t start = dereference(region).start, size = dereference(region).size
    key = (<uint64_t><void*>pinned_map, start)
    cdef Owner owner = owners.get(key)
    if owner is not None and owner.size == size and PyWeakref_GetObject(owner.map) == <PyObject*>pinned_map:
        return True
    root = root_of(<object>(<Export>buffer).view.obj)
    if root is None:
        return False
    cdef Bytes whole
    owner = Owner.__new__(Owner)
    try:
        owner.export = export(root, &whole)
    except (TypeError, ValueError, BufferError):  # a type that exports its views but not itself
        return False
    if whole.ptr != start or whole.size != size:
        return False
    if type(root) is mmap.mmap and not whole.read_only:  # `madvise` can discard its pages despite any export
        if not dereference(region).watched and not process_watcher().hears_of_calls():
            return False
    owner.map, owner.start, owner.size, owner.root = ref(pinned_map), start, size, root
    owners[key] = owner
    watch()
    return True


cdef watch():
    global watched
    if not watched:
        look_after(_look, pause=LONGEST)
        watched = True


cdef object root_of(object buffer):
    """The object that owns the memory of a buffer and cannot lose it while it is exported; None if not known.

    Only of types that have no references of their own: otherwise an owner in a reference cycle would stay forever.
    """
    cdef int i
    for i in range(MOST_VIEWS):
        if type(buffer) in WHOLE:
            return buffer
        if type(buffer) is memoryview:
            buffer = buffer.obj
        elif isinstance(buffer, ARRAY):
            if buffer.base is None:
                return buffer if type(buffer) is ARRAY and buffer.flags.owndata and not buffer.dtype.hasobject else None
            buffer = buffer.base
        else:
            return None
    return None


def collect() -> None:
    """Give back cached regions whose memory has no other user, and drop the owners of regions that are gone."""
    cdef Owner owner
    cdef PinnedMap pinned_map
    cdef dict times = {}  # how often an owner is kept, for several devices
    for owner in list(owners.values()):
        times[<uint64_t><void*>owner.root] = times.get(<uint64_t><void*>owner.root, 0) + 1
    for key, owner in list(owners.items()):
        referent = owner.map()
        if referent is not None:
            pinned_map = <PinnedMap>referent
            if owner.is_orphan(times.get(<uint64_t><void*>owner.root, 1)):
                give_back_one(pinned_map, owner.start)
            if pinned_map.map.serial_at(owner.start):  # an unlock in progress needs the memory too
                continue
        if owners.get(key) is owner:
            del owners[key]


cdef bint give_back_one(PinnedMap pinned_map, uint64_t start) noexcept:
    """Give one region back; return whether the vendor refused. The next `collect` tries again."""
    try:
        pinned_map.give_back(start)
    except Exception:
        return True
    return False


def clear_up() -> None:
    """Make room: unlock invalidated regions, and cached regions whose memory has no other user."""
    for pinned_map in _maps:
        with suppress(PinningError):
            pinned_map.drain_invalidations()
    collect()


def ended() -> int:
    """How many unlocks have ended: read it before looking for room, for `wait_for_an_end`."""
    return budget.ended()


def wait_for_an_end(uint64_t before) -> bool:
    """Whether an unlock has ended since `ended`; waits while another thread has one in progress."""
    cdef cbool found
    with nogil:
        found = budget.wait_for_an_end(before)
    return found


def cached(device: object) -> int:
    """Bytes of the regions that are cached for a device."""
    cdef PinnedMap pinned_map
    return sum([
        region.size for pinned_map in _maps if pinned_map.device is device and pinned_map.map.has_idle()
        for region in pinned_map.overlapping(1, NO_LIMIT, idle=True) if region.idle
    ])


def give_back_crossing(PinnedMap pinned_map not None, ptr: int, size: int) -> bool:
    """Give back cached regions that overlap a range and differ from it; return whether the range itself is registered.

    Raises what the vendor raises.
    """
    registered = False
    for region in pinned_map.overlapping(ptr, size, idle=True):
        if (region.start, region.size) == (ptr, size):
            registered = True
        elif region.idle:
            pinned_map.give_back(region.start)
    return registered


def give_back_for(uint64_t nbytes) -> bool:
    """If a vendor refuses for lack of room: give back `nbytes` of the cache; return whether any were given back."""
    cdef uint64_t given
    with nogil:
        given = budget.give_back(nbytes).bytes
    collect()
    return given != 0


def make_room(uint64_t size) -> None:
    """If the budget has no room for `size` bytes, `clear_up`, before a lock takes cached regions that have users."""
    cdef Budget.Figures now = budget.figures()
    cdef uint64_t taken = now.locked + now.external
    if now.limit != NO_LIMIT and (taken > now.limit or size > now.limit - taken):
        clear_up()


def check(uint64_t size) -> None:
    """Raise LockLimitError if `size` more bytes could not be locked even with an empty cache."""
    with nogil:
        budget.check(size)


def figures() -> tuple[int, int, int, int, int]:
    """Limit, bytes locked, cached and pinned by others, and the most that may be cached."""
    cdef Budget.Figures now = budget.figures()
    return now.limit, now.locked, now.idle, now.external, now.idle_limit


def set_limits(limit: int | None, idle_limit: int | None) -> None:
    """Set the most bytes that may be locked, and the most that may be cached; the excess in the cache is given back.

    None leaves a limit as it is: another thread may be setting it.
    """
    cdef optional[uint64_t] most, most_idle
    if limit is not None:
        most = <uint64_t>limit
    if idle_limit is not None:
        most_idle = <uint64_t>idle_limit
    try:
        with nogil:
            budget.set(most, most_idle)
    finally:
        collect()


def replace_limit(uint64_t before, uint64_t limit) -> bool:
    """Set the most bytes that may be locked if they are still `before`; return whether they were."""
    cdef cbool replaced
    try:
        with nogil:
            replaced = budget.replace_limit(before, limit)
    finally:
        collect()
    return replaced


def give_back(uint64_t nbytes) -> int:
    """Unlock cached regions, least recently used first, until `nbytes` are given back; return how many were."""
    cdef uint64_t given
    try:
        with nogil:
            given = budget.trim(nbytes)
    finally:
        collect()
    return given


def _look():
    """Called ten times a second while anything is cached."""
    global watched, pressure
    with suppress(Exception):  # such as MemoryError; the next call is soon
        collect()
        if pressure is None:
            pressure = Pressure()
        elif pressure.is_high():
            relieve()
    watched = bool(owners) or budget.figures().idle != 0
    if not watched:
        pressure = None
    return watched


cdef relieve():
    """Give back half of the cache, because memory is short."""
    cdef uint64_t cached = budget.figures().idle
    if cached:
        with suppress(PinningError):
            give_back(cached // 2 + 1)


def _begin_anew_in_child():
    global watched
    owners.clear()
    watched = False


def _end():
    set_limits(None, 0)


at_fork(_begin_anew_in_child)
at_exit(_end)

# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""Owners of memory that stays registered when nobody has a lock of it."""

from cpython.object cimport PyObject
from cpython.weakref cimport PyWeakref_GetObject
from cython.operator cimport dereference
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.optional cimport optional
from libcpp.vector cimport vector

from pinning.interop.memory_of cimport Bytes, Export, export
from pinning.map.native cimport Budget, CPinnedMap, CRegion, process_budget, process_watcher
from pinning.map.pinned_map cimport PinnedMap

import mmap
from contextlib import suppress
from weakref import ref

import numpy

from pinning.budget.watch import Watch
from pinning.errors import PinningError
from pinning.map.pinned_map import _maps
from pinning.runtime.process import Part, at_exit, in_child

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject* thing)

cdef enum:
    MOST_VIEWS = 64  # of one another that are followed to their owner

NO_LIMIT = 2**64 - 1

cdef Budget* budget = &process_budget()
cdef dict kept = {}  # by map and start of the region
cdef tuple WHOLE = (bytes, bytearray, mmap.mmap)
cdef object ARRAY = numpy.ndarray


cdef class Kept:
    """The owner of a region's memory, which cannot be freed, resized or closed while this is there."""

    cdef object map  # a weak reference
    cdef uint64_t start
    cdef uint64_t size
    cdef object root
    cdef Export export  # of `root`

    cdef bint is_orphan(self, Py_ssize_t times) noexcept:
        """Whether nobody else has the owner, kept so many times: each has a reference, and its export another."""
        return Py_REFCNT(<PyObject*>self.root) <= 2 * times


cdef bint keeps(PinnedMap on, uint64_t ptr, object owner) except -1:
    if not budget.keeps(1) or not isinstance(owner, Export):
        return False
    cdef optional[CRegion] region = on.map.find(ptr, 1)
    if not region.has_value() or dereference(region).external:
        return False
    cdef uint64_t start = dereference(region).start, size = dereference(region).size
    key = (<uint64_t><void*>on, start)
    cdef Kept known = kept.get(key)
    if known is not None and known.size == size and PyWeakref_GetObject(known.map) == <PyObject*>on:
        return True
    root = root_of(<object>(<Export>owner).view.obj)
    if root is None:
        return False
    cdef Bytes found
    cdef Kept one = Kept.__new__(Kept)
    try:
        one.export = export(root, &found)
    except (TypeError, ValueError, BufferError):  # a type that has its views exported and not itself
        return False
    if found.ptr != start or found.size != size:
        return False
    if type(root) is mmap.mmap and not found.read_only:  # `madvise` takes its pages away, whoever has exported it
        if not dereference(region).watched and not process_watcher().hears_of_calls():
            return False
    one.map, one.start, one.size, one.root = ref(on), start, size, root
    kept[key] = one
    watch.wake()
    return True


cdef object root_of(object found):
    """What owns the memory of a buffer and cannot lose it while it is exported; None where that is not known.

    Of types that have no references of their own: else an owner in a cycle with itself would stay for ever.
    """
    cdef int i
    for i in range(MOST_VIEWS):
        if type(found) in WHOLE:
            return found
        if type(found) is memoryview:
            found = found.obj
        elif isinstance(found, ARRAY):
            if found.base is None:
                return found if type(found) is ARRAY and found.flags.owndata and not found.dtype.hasobject else None
            found = found.base
        else:
            return None
    return None


def look():
    """Give back idle regions whose memory nobody else has any more, and let go of the owners of what is gone."""
    cdef Kept one
    cdef PinnedMap on
    cdef dict times = {}  # that an owner is kept, by several devices
    for one in list(kept.values()):
        times[<uint64_t><void*>one.root] = times.get(<uint64_t><void*>one.root, 0) + 1
    for key, one in list(kept.items()):
        there = one.map()
        if there is not None:
            on = <PinnedMap>there
            if one.is_orphan(times.get(<uint64_t><void*>one.root, 1)):
                give_back_one(on, one.start)
            if on.map.serial_at(one.start):  # whoever is unlocking it just now needs the memory too
                continue
        if kept.get(key) is one:
            del kept[key]


cdef void give_back_one(PinnedMap on, uint64_t start) noexcept:
    """A vendor that refuses is asked again at the next look."""
    try:
        on.give_back(start)
    except Exception:
        pass


def clear_up():
    """Where there is no room: unlock what has left, and what is idle and can be used by nobody any more."""
    for each in _maps:
        with suppress(PinningError):
            each.undo_left()
    look()


def unlocks():
    """How many have ended: for `give_way`, from before its caller has looked for room."""
    return budget.ended()


def give_way(device, uint64_t needed, uint64_t unlocks):
    """Give back the longest idle region of a device, where so many bytes are idle there.

    Where they are not, wait for an unlock that another thread is in the middle of.

    Returns
    -------
    bool
        Whether there may be more room now.
    """
    cdef PinnedMap on
    cdef CPinnedMap* map
    cdef vector[CRegion] found
    cdef CRegion region
    cdef list idle = []
    cdef uint64_t most = NO_LIMIT
    cdef cbool ended
    for on in _maps:
        if on.device is not device or not on.map.has_idle():
            continue
        map = on.map
        with nogil:
            found = map.overlapping(1, most, True)
        idle += [(region.serial, region.start, region.size, on) for region in found if region.idle]
    if sum([each[2] for each in idle]) >= needed:
        for _, start, _, on in sorted(idle):  # no two serials are equal
            give_back_one(on, start)
            if not on.map.serial_at(start):  # else the vendor has refused
                look()
                return True
    with nogil:
        ended = budget.wait_for_an_end(unlocks)
    return ended


def give_back_for(uint64_t nbytes):
    """Where a vendor refuses for want of room: give back so many bytes of what is idle; whether that gave any."""
    cdef uint64_t given
    with nogil:
        given = budget.give_back(nbytes)
    look()
    return given != 0


def make_room(uint64_t size):
    """Where the budget has no room for so many bytes: `clear_up`, for a lock takes others' idle regions only then."""
    cdef Budget.Figures now = budget.figures()
    cdef uint64_t taken = now.locked + now.external
    if now.limit != NO_LIMIT and (taken > now.limit or size > now.limit - taken):
        clear_up()


def check(uint64_t size):
    """Raise LockLimitError where so many bytes more cannot be locked, even if all that is idle went."""
    with nogil:
        budget.check(size)


def figures():
    """Limit, bytes locked, idle and pinned by others, and how many may be idle."""
    cdef Budget.Figures now = budget.figures()
    return now.limit, now.locked, now.idle, now.external, now.idle_limit


def set_limits(uint64_t limit, uint64_t idle_limit):
    """Set the most bytes that may be locked, and be idle; what is idle beyond that is given back."""
    try:
        with nogil:
            budget.set(limit, idle_limit)
    finally:
        look()


def give_back(uint64_t nbytes):
    """Unlock what is idle, the longest idle first, until so many bytes are given back; how many that were."""
    cdef uint64_t given
    try:
        with nogil:
            given = budget.trim(nbytes)
    finally:
        look()
    return given


def _relieve():
    """Half of what is idle goes while memory is short."""
    cdef uint64_t idle = budget.figures().idle
    if idle:
        with suppress(PinningError):
            give_back(idle // 2 + 1)


def _any():
    return bool(kept)


watch = Watch(look, _relieve, _any)


def _begin_anew_in_child():
    kept.clear()
    watch.begin_anew()


def _end():
    watch.end()
    set_limits(budget.figures().limit, 0)


in_child(Part.IDLE, _begin_anew_in_child)
at_exit(Part.IDLE, _end)

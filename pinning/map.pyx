# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""The pinned map for Python: a thin face of the C++ one. The stub says what each method does."""

cimport cython
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from cython.operator cimport dereference
from libc.stdint cimport uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.optional cimport optional
from libcpp.vector cimport vector

from pinning.native cimport (
    CHold,
    CPinnedMap,
    CRegion,
    LockMapped,
    MappedLocks,
    Pieces,
    PythonLocker,
    destroy,
    device_calls,
    process_budget,
    process_watcher,
    shared_map,
)
from pinning.plugin.native cimport Access, Grain, Locker, NativeDevice, Wish

from collections import deque
from contextlib import suppress

from pinning.errors import AlreadyPinnedError, InvalidRangeError, NotLockedError, PinningError
from pinning.lifecycle import Living, Part, at_exit, in_child


cdef class Region:
    @property
    def end(self):
        return int(self.start) + self.size

    @property
    def borders(self):
        return tuple(range(int(self.start) + self.piece, int(self.start) + self.whole, self.piece))

    @property
    def coherent(self):
        return None if self.grain == Grain.unknown else self.grain == Grain.fine

    def __contains__(self, ptr):
        return self.start <= ptr < self.end

    def in_one_piece(self, ptr, size):
        return (ptr - self.start) // self.piece == (ptr - self.start + size - 1) // self.piece

    def device_ptr_of(self, ptr):
        if ptr not in self:
            raise InvalidRangeError(f"{ptr:#x} is not in {self!r}")
        return self.device_ptr + (ptr - self.start)

    def __eq__(self, other):
        if not isinstance(other, Region):
            return NotImplemented
        return fields(self) == fields(other)

    def __hash__(self):
        return hash(fields(self))

    def __repr__(self):
        return (
            f"Region(start={self.start:#x}, size={self.size}, device_ptr={self.device_ptr:#x}, "
            f"references={self.references}, external={bool(self.external)}, "
            f"coherent={self.coherent})"
        )


cdef tuple fields(Region region):
    return (region.start, region.size, region.whole, region.device_ptr, region.piece, region.references, region.external,
            region.registered, region.idle, region.coherent, id(region.device))


cdef Region wrap(const CRegion& found, object device):
    cdef Region region = Region.__new__(Region)
    region.start = found.start
    region.size = found.size
    region.whole = found.whole
    region.device_ptr = found.device_ptr
    region.piece = found.piece
    region.references = found.references
    region.external = found.external
    region.registered = found.registered
    region.idle = found.idle
    region.grain = found.grain
    region.device = device
    return region


cdef uint64_t word(object value, str what) except? 0xFFFFFFFFFFFFFFFF:
    try:
        return PyNumber_Index(value)
    except OverflowError:
        raise InvalidRangeError(f"{what} {value} is not in [0, 2**64)") from None


cdef Wish wish(object read_only, object coherent) except *:
    cdef Wish made
    if coherent is not None and coherent is not True and coherent is not False:
        raise TypeError(f"coherent is {coherent!r}; it must be True, False, or None where it makes no difference")
    made.access = Access.unknown if read_only is None else Access.read_only if read_only else Access.writable
    made.grain = Grain.unknown if coherent is None else Grain.fine if coherent else Grain.coarse
    return made


def watch_problem():
    return process_watcher().problem().decode() or None


_POLICIES = {"off": <int>LockMapped.off, "on": <int>LockMapped.on, "mandatory": <int>LockMapped.mandatory}


@cython.no_gc_clear
cdef class PinnedMap:
    def __cinit__(self, device, *, bint shared=False):
        for method in ("data_lock", "data_unlock", "is_pinned_ptr"):
            if not callable(getattr(device, method, None)):
                raise TypeError(f"a device needs a method {method}; {device!r} has none")
        self.device = device
        self.largest = min(getattr(device, "largest_lock", 2**64 - 1), 2**64 - 1)
        coherence = getattr(device, "coherence", ())
        self.fine, self.coarse = True in coherence, False in coherence
        if shared:
            if not isinstance(device, NativeDevice):
                raise TypeError(f"only a native device has a map that native code shares; {device!r} is none")
            self.shared = &shared_map((<NativeDevice>device).vendor[0])
        self._make()
        _maps.add(self)

    cdef _make(self):
        cdef Locker* locker
        if self.shared is not NULL:
            if self.shared.map is NULL:
                raise MemoryError("there was no memory for the map of a device in this child of fork")
            self.map, self.mapped = self.shared.map, self.shared.mapped
            return
        if isinstance(self.device, NativeDevice):
            locker = (<NativeDevice>self.device).vendor
        else:
            locker = self.locker = new PythonLocker(<PyObject*>self.device, <PyObject*>AlreadyPinnedError, self.fine,
                                                    self.coarse)
        self.map = new CPinnedMap(dereference(locker), &process_watcher(), False, &process_budget())
        self.mapped = new MappedLocks(dereference(self.map))

    def __del__(self):
        # Here and not in __dealloc__: a device in a reference cycle with its map is still whole.
        if self.map is not NULL and self.shared is NULL:
            try:
                self.close()
            except Exception:  # nobody is there to hear
                pass

    def __dealloc__(self):
        if self.shared is NULL:
            destroy(self.mapped, self.map, self.locker)

    def lock(self, ptr, size, read_only=None, *, piece=None, coherent=None):
        return self.hold(ptr, size, read_only, piece, coherent).device_ptr

    cdef CHold hold(self, ptr, size, read_only, piece, coherent) except *:
        cdef uint64_t first = word(ptr, "address")
        cdef uint64_t count = word(size, "size")
        cdef uint64_t each = 0 if piece is None else word(piece, "piece")
        cdef Wish wanted = wish(read_only, coherent)
        self.check_open()
        cdef optional[CHold] held = self.map.try_lock(first, count, wanted.grain)
        if held.has_value():
            return dereference(held)
        if piece is not None and each == 0:
            raise InvalidRangeError("piece 0 locks nothing; give at least one byte, or None for one piece")
        return self.hold_range(first, count, wanted, self.step(count, each), NULL)

    cdef CHold hold_range(self, uint64_t ptr, uint64_t size, Wish wanted, uint64_t piece, Pieces* pieces) except *:
        cdef CPinnedMap* map = self.map
        cdef CHold made
        self.check_open()
        try:
            with nogil:
                if pieces is NULL:
                    made = map.lock(ptr, size, wanted, piece)
                else:
                    made = map.lock(ptr, size, wanted, dereference(pieces))
        finally:
            unlock_orphans()
        if self.closed:  # meanwhile, and perhaps without having seen this lock
            with nogil:
                map.unlock(made, False)
            self.check_open()
        return made

    cdef check_open(self):
        if self.closed:
            raise PinningError(f"the map of {self.device} is closed; nothing can be locked or registered in it")

    cdef uint64_t step(self, uint64_t size, uint64_t piece) noexcept:
        return self.largest if size > self.largest and (piece == 0 or piece > self.largest) else piece

    def unlock(self, ptr):
        cdef uint64_t at = word(ptr, "address")
        cdef CPinnedMap* map = self.map
        if not map.try_unlock(at):
            try:
                with nogil:
                    map.unlock(at)
            finally:
                unlock_orphans()

    def lock_mapped(self, ptr, size, policy, read_only=None):
        cdef uint64_t first = word(ptr, "address")
        cdef uint64_t count = word(size, "size")
        if policy not in _POLICIES:
            raise PinningError(f"the policy {policy!r} is none; give one of {', '.join(map(repr, _POLICIES))}")
        cdef LockMapped chosen = <LockMapped><int>_POLICIES[policy]
        if self.closed:
            if chosen == LockMapped.mandatory:
                self.check_open()
            return None
        cdef Wish wanted = wish(read_only, None)
        cdef uint64_t each = self.step(count, 0)
        cdef MappedLocks* mapped = self.mapped
        cdef optional[uint64_t] device_ptr
        try:
            with nogil:
                device_ptr = mapped.lock_mapped(first, count, chosen, wanted, each)
        finally:
            unlock_orphans()
        if self.closed:  # meanwhile, and perhaps without having seen this lock
            with nogil:
                mapped.unlock_unmapped(first)
            if chosen == LockMapped.mandatory:
                self.check_open()
            return None
        return dereference(device_ptr) if device_ptr.has_value() else None

    def unlock_unmapped(self, ptr):
        cdef uint64_t at = word(ptr, "address")
        cdef MappedLocks* mapped = self.mapped
        try:
            with nogil:
                mapped.unlock_unmapped(at)
        finally:
            unlock_orphans()

    def hold_if_locked(self, ptr, size):
        cdef Hold hold = Hold.__new__(Hold)
        cdef uint64_t first = word(ptr, "address")
        cdef uint64_t count = word(size, "size")
        if hold.try_take(self, first, count, Grain.unknown) or hold.try_track(self, first, count):
            return hold
        return None

    def refresh(self):
        cdef CPinnedMap* map = self.map
        cdef vector[CRegion] gone
        cdef CRegion region
        try:
            with nogil:
                gone = map.refresh()
        finally:
            unlock_orphans()
        return [wrap(region, self.device) for region in gone]

    def undo_left(self):
        cdef CPinnedMap* map = self.map
        try:
            with nogil:
                map.undo_left()
        finally:
            unlock_orphans()

    def register(self, ptr, size, device_ptr):
        cdef uint64_t first = word(ptr, "address")
        cdef uint64_t count = word(size, "size")
        cdef uint64_t device = word(device_ptr, "device pointer")
        cdef CPinnedMap* map = self.map
        self.check_open()
        with nogil:
            map.register_pinned(first, count, device)
        if self.closed:  # meanwhile, and perhaps without having seen this
            try:
                map.unregister(first)
            except NotLockedError:
                pass
            self.check_open()

    def unregister(self, ptr):
        self.map.unregister(word(ptr, "address"))

    def find(self, ptr, size=1):
        cdef uint64_t first, count
        try:
            first = PyNumber_Index(ptr)
            count = PyNumber_Index(size)
        except OverflowError:
            return None
        cdef optional[CRegion] found = self.map.find(first, count)
        return wrap(dereference(found), self.device) if found.has_value() else None

    def overlapping(self, ptr, size, *, bint idle=False):
        cdef uint64_t first = word(ptr, "address")
        cdef uint64_t count = word(size, "size")
        cdef CPinnedMap* map = self.map
        cdef vector[CRegion] found
        with nogil:
            found = map.overlapping(first, count, idle)
        cdef CRegion region
        return [wrap(region, self.device) for region in found]

    def __contains__(self, ptr):
        cdef uint64_t at
        try:
            at = PyNumber_Index(ptr)
        except OverflowError:
            return False
        except TypeError:
            raise TypeError(
                f"a map is asked for addresses, not for a {type(ptr).__name__}; pinning.is_locked takes buffers"
            ) from None
        return self.map.find(at, 1).has_value()

    def __len__(self):
        return self.map.size()

    def __iter__(self):
        cdef CPinnedMap* map = self.map
        cdef vector[CRegion] found
        with nogil:
            found = map.regions(False)
        cdef CRegion region
        return iter([wrap(region, self.device) for region in found])

    def close(self, *, wait=True):
        cdef CPinnedMap* map = self.map
        cdef cbool waits = wait
        if self.shared is not NULL:
            self._let_go()
            self.closed = True
            return
        self.closed = True  # first, so that nobody locks meanwhile
        try:
            with nogil:
                map.clear(waits)
        except BaseException:
            self.closed = False
            raise

    cdef _let_go(self):
        # Only what Python holds: the map and the other locks in it are the native code's that has made it.
        cdef Hold hold
        first_error = None
        cdef list held = []
        cdef PyObject* each = self.holds
        while each is not NULL:
            hold = <Hold>each
            held.append(hold)
            each = hold.next_hold
        for hold in held:
            try:
                hold.unlock()
            except BaseException as error:
                first_error = first_error or error
        for region in self.overlapping(1, 2**64 - 1, idle=True):
            try:
                self.give_back(region.start)
            except BaseException as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    cdef give_back(self, uint64_t start):
        cdef CPinnedMap* map = self.map
        with nogil:
            map.give_back_idle(start)

    def _after_fork_in_child(self):
        # The old map may have been in the middle of anything, and its locks are the parent's: it is never destroyed.
        cdef CPinnedMap* parents = self.map
        self.holds = NULL
        self._make()
        self.generation += 1
        if self.shared is NULL:
            parents.abandon()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __repr__(self):
        name = getattr(self.device, "name", self.device)
        return f"<PinnedMap of {name}: {'closed' if self.closed else f'{len(self)} regions'}>"


@cython.no_gc_clear
cdef class Hold:
    # In C, because Ctrl-C may raise between any two steps in Python: a lock just counted must have an owner already.

    def __init__(self, PinnedMap map not None, ptr, size, read_only, piece, coherent):
        if self.map is not None:
            raise TypeError("a Hold is made once")
        self.take(map, ptr, size, read_only, piece, coherent)

    cdef bint try_take(self, PinnedMap map, uint64_t ptr, uint64_t size, Grain wish) noexcept:
        """`take` where a region holds the range already and nobody need be asked."""
        if map.closed:
            return False
        cdef optional[CHold] held = map.map.try_lock(ptr, size, wish)
        if held.has_value():
            self.own(map, dereference(held))
        return held.has_value()

    cdef bint try_track(self, PinnedMap map, uint64_t ptr, uint64_t size) except -1:
        """`take` where the range is locked already, or someone else has pinned it."""
        if map.closed:
            return False
        cdef Wish any_kind = wish(None, None)
        cdef CPinnedMap* native = map.map
        cdef optional[CHold] held
        try:
            with nogil:
                held = native.track(ptr, size, any_kind)
        finally:
            unlock_orphans()
        if held.has_value():
            self.own(map, dereference(held))
        return held.has_value()

    cdef take(self, PinnedMap map, ptr, size, read_only, piece, coherent):
        self.own(map, map.hold(ptr, size, read_only, piece, coherent))

    cdef take_in_pieces(self, PinnedMap map, uint64_t ptr, uint64_t size, Wish wanted, Pieces* pieces):
        self.own(map, map.hold_range(ptr, size, wanted, 0, pieces))

    cdef void own(self, PinnedMap map, CHold hold) noexcept:
        self.map = map
        self.generation = map.generation
        self.hold = hold
        self.counted = True
        if map.shared is not NULL:
            self.link()

    @property
    def device_ptr(self):
        return self.hold.device_ptr

    @property
    def held(self):
        return self.is_held()

    cdef bint is_held(self) noexcept:
        return self.counted and self.is_in_map()

    cdef bint is_in_map(self) noexcept:
        return not self.map.closed and self.generation == self.map.generation and self.map.map.holds(self.hold)

    cdef void link(self) noexcept:
        """Into the list of those that the map has to give up at exit; the GIL guards it."""
        self.next_hold = self.map.holds
        if self.next_hold is not NULL:
            (<Hold>self.next_hold).previous_hold = <PyObject*>self
        self.map.holds = <PyObject*>self
        self.linked = True

    cdef void unlink(self) noexcept:
        if not self.linked or self.generation != self.map.generation:
            return
        self.linked = False
        if self.previous_hold is NULL:
            self.map.holds = self.next_hold
        else:
            (<Hold>self.previous_hold).next_hold = self.next_hold
        if self.next_hold is not NULL:
            (<Hold>self.next_hold).previous_hold = self.previous_hold
        self.next_hold = self.previous_hold = NULL

    def unlock(self):
        return self.give_up()

    cdef bint give_up(self) except *:
        if not self.counted:
            return False
        self.counted = False  # first, so that of two threads only one unlocks
        cdef CPinnedMap* map = self.map.map
        try:
            if self.is_in_map() and not map.try_unlock(self.hold, self.keep):
                try:
                    with nogil:
                        map.unlock(self.hold, self.keep)
                finally:
                    unlock_orphans()
        except BaseException:
            self.counted = True
            raise
        self.unlink()
        return True

    def drop(self, owner):
        # The garbage collector may call this in the middle of a device's own code, with the device's own mutexes held:
        # then the unlock waits until that call has ended.
        if device_calls > 0:
            _orphans.append((self, owner))
        else:
            self.give_up()

    def __dealloc__(self):
        if self.counted:
            self.give_up()
        if self.map is not None:
            self.unlink()


_orphans = deque()  # of Holds, each with the owner of its memory


cdef unlock_orphans():
    while device_calls == 0 and _orphans:
        try:
            hold, owner = _orphans.popleft()
        except IndexError:  # another thread was quicker
            return
        unlock_orphan(hold)


cdef void unlock_orphan(Hold hold) noexcept:  # as in a destructor, nobody is there to hear of an error
    hold.give_up()


_maps = Living()


def _begin_anew_in_child():
    for each in _maps:
        each._after_fork_in_child()


def _close_all():
    for each in _maps:
        with suppress(Exception):  # the others still want closing, and nobody is left to hear
            each.close(wait=False)


in_child(Part.MAPS, _begin_anew_in_child)
at_exit(Part.MAPS, _close_all)

# SPDX-License-Identifier: Apache-2.0
"""The pinned map for Python: a thin wrapper of the C++ one."""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.number cimport PyNumber_Index
from cython.operator cimport dereference
from libcpp cimport bool as cbool
from libcpp.optional cimport optional
from libcpp.vector cimport vector

from pinning.map.adapters cimport adapter_of, add_registrar, is_in_device_call, vendor_of
from pinning.map.native cimport LockMapped, destroy, process_budget, process_watcher, shared_map
from pinning.plugin.native cimport Access, VendorDevice
from pinning.runtime.process cimport generation, is_parents

from collections import deque
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING

from pinning.errors import ArgumentError, InvalidRangeError, NotLockedError, PinningError, RegistrarError
from pinning.runtime.arguments import byte_count, describe, is_one_of
from pinning.runtime.handles import refuse_copy
from pinning.runtime.process import WeakRegistry, at_exit, at_fork, defer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Literal, SupportsIndex

    from pinning.plugin import LockDevice


cdef class Region:
    """A snapshot of a locked region.

    Attributes
    ----------
    start, end, size : int
        The half-open byte range ``[start, end)`` that is locked.
    whole : int
        Bytes from `start` that the map reserves for it: `size`, but more while a lock in pieces is in progress, or if
        that was cut short and stayed because others had locked some of it.
    device_ptr : int
        Device-accessible address of `start`.
    piece : int
        Vendor calls have locked multiples of this many bytes; `size` if one call locked all.
    references : int
        Locks held. 0 for a registration without locks.
    external : bool
        Pinned by another owner, and so never unlocked by this map.
    registered : bool
        Entered by `PinnedMap.register`: external, and stays without locks.
    idle : bool
        Still registered with the vendor although no lock is held, see `pinning.budget`; lookups do not find it.
    coherent : bool or None
        Whether the host and a running kernel see each other's writes. None if unknown: the vendor promises nothing, or
        another owner has pinned it and the vendor has both kinds.
    device : Device
    """

    def __init__(self):
        raise TypeError("a Region comes from pinning.find and pinning.regions, or from a map")

    @property
    def end(self) -> int:
        return int(self.start) + self.size

    @property
    def borders(self) -> tuple[int, ...]:
        """Host addresses where one vendor registration may end and the next begin, which no single copy may cross.

        Those of the whole lock, including the part that is not locked yet.
        """
        return tuple(range(int(self.start) + self.piece, int(self.start) + self.whole, self.piece))

    @property
    def coherent(self) -> bool | None:
        return None if self.coherence == Coherence.unknown else self.coherence == Coherence.fine

    def __contains__(self, ptr: int) -> bool:
        return self.start <= address_of(ptr) < self.end

    def in_one_piece(self, ptr: int, size: int) -> bool:
        """Whether ``[ptr, ptr + size)``, inside the region, crosses none of the `borders`.

        Parameters
        ----------
        ptr, size : int
            Host address and bytes.
        """
        address, nbytes = address_of(ptr), byte_count(size, "size")
        if not (self.start <= address and address + nbytes <= self.end):
            raise InvalidRangeError(f"{nbytes} bytes at {address:#x} are not in {self!r}")
        first = address - self.start
        return first // self.piece == (first + nbytes - 1) // self.piece

    def device_ptr_of(self, ptr: int) -> int:
        """The device-accessible address of host address `ptr`.

        Raises
        ------
        InvalidRangeError
            `ptr` is not in the region.
        """
        address = address_of(ptr)
        if not self.start <= address < self.end:
            raise InvalidRangeError(f"{address:#x} is not in {self!r}")
        return self.device_ptr + (address - self.start)

    def __eq__(self, other):
        if not isinstance(other, Region):
            return NotImplemented
        return fields(self) == fields(other)

    def __hash__(self) -> int:
        return hash(fields(self))

    def __repr__(self):
        return (
            f"Region(start={self.start:#x}, size={self.size}, device_ptr={self.device_ptr:#x}, "
            f"references={self.references}, "
            f"{'registered=True' if self.registered else f'external={bool(self.external)}'}, "
            f"coherent={self.coherent})"
        )


cdef tuple fields(Region region):
    return (region.start, region.size, region.whole, region.device_ptr, region.piece, region.references,
            region.external, region.registered, region.idle, region.coherent, id(region.device))


cdef Region wrap(const CRegion& native, object device):
    cdef Region region = Region.__new__(Region)
    region.start = native.start
    region.size = native.size
    region.whole = native.whole
    region.device_ptr = native.device_ptr
    region.piece = native.piece
    region.references = native.references
    region.external = native.external
    region.registered = native.registered
    region.idle = native.idle
    region.coherence = native.coherence
    region.device = device
    return region


cdef object address_of(object ptr):
    try:
        return PyNumber_Index(ptr)
    except TypeError:
        raise no_word(ptr, "address") from None


cdef uint64_t word(object value, str what) except? 0xFFFFFFFFFFFFFFFF:
    if value is True or value is False:
        raise no_word(value, what)
    try:
        return PyNumber_Index(value)
    except OverflowError:
        raise InvalidRangeError(f"{what} {value} is not in [0, 2**64)") from None
    except TypeError:
        raise no_word(value, what) from None


cdef object no_word(object value, str what):
    return TypeError(
        f"{what} is {describe(value)}; a map takes integers, and buffers are for pinning.lock and pinning.is_locked"
    )


cdef LockOptions lock_options(object read_only, object coherent) except *:
    cdef LockOptions options
    if read_only is not None and read_only is not True and read_only is not False:
        raise TypeError(f"read_only is {describe(read_only)}; it must be True, False, or None to follow the buffer")
    if coherent is not None and coherent is not True and coherent is not False:
        raise TypeError(
            f"coherent is {describe(coherent)}; it must be True, False, or None if either will do"
        )
    options.access = Access.unknown if read_only is None else Access.read_only if read_only else Access.writable
    options.coherence = Coherence.unknown if coherent is None else Coherence.fine if coherent else Coherence.coarse
    return options


def watch_problem() -> str | None:
    """Why the kernel does not report memory that is unmapped, moved or discarded; None if it does."""
    return process_watcher().problem().decode() or None


def hears_of_calls() -> bool:
    """Whether a preloaded library informs the maps of the program's libc calls that unmap, move or discard memory."""
    return process_watcher().hears_of_calls()


_POLICIES = {"off": <int>LockMapped.off, "on": <int>LockMapped.on, "mandatory": <int>LockMapped.mandatory}


@cython.no_gc_clear
cdef class PinnedMap:
    """PinnedMap(device, *, shared=False)\n--\n\nThe locked host memory of a device, with counted locks.

    Lookups take no lock. The device is called with no lock held: a slow call delays neither lookups nor locks of other
    ranges, and threads that lock the same range at once make one call. In a forked child the map is empty.

    Parameters
    ----------
    device : object
        Anything with ``data_lock(ptr, size, read_only)``, ``data_unlock(ptr)`` and ``is_pinned_ptr(ptr)``, see
        `pinning.plugin.Device`. Their exceptions reach the caller unchanged. An attribute ``coherence`` says what
        locked memory can be, see `pinning.plugin.Device`.
    shared : bool
        Whether this is the map that native code of this process has under the device's name, see
        ``<pinning/pinning.h>``: only for a `pinning.plugin.native.NativeDevice`. It lives as long as the process, and
        `close` gives up only the locks of Python's `Lock` handles. Devices of one registration domain share its
        regions: what one of them locks is locked for all.

    Attributes
    ----------
    device : object
        The device for which memory is locked.
    closed : bool
        Whether `close` was called; then nothing can be locked.
    """

    def __cinit__(self, device: LockDevice, *, bint shared=False) -> None:
        for method in ("data_lock", "data_unlock", "is_pinned_ptr"):
            if not callable(getattr(device, method, None)):
                raise TypeError(f"a device needs a method {method}, which {describe(device)} lacks; pinning.device "
                                "finds one by its name")
        self.device = device
        self.largest = min(getattr(device, "largest_lock", 2**64 - 1), 2**64 - 1)
        coherence = getattr(device, "coherence", ())
        self.fine, self.coarse = True in coherence, False in coherence
        self.registrars = []
        self.adapter = adapter_of(device)
        if shared:
            if not vendor_of(device).is_permanent():
                raise TypeError(f"only a native device has a map that native code shares; {device!r} is none")
            self.shared = &shared_map(dereference(vendor_of(device)))
        self._make()
        self.made_in = generation()
        _maps.add(self)

    cdef _make(self):
        if self.shared is not NULL:
            if self.shared.map is NULL:
                raise MemoryError("there was no memory for the map of a device in this forked child")
            self.map, self.mapped = self.shared.map, self.shared.mapped
            return
        cdef VendorDevice* vendor = vendor_of(self.device)
        self.map = new CPinnedMap(dereference(vendor), &process_watcher(), False, &process_budget())
        self.mapped = new MappedLocks(dereference(self.map))

    def __del__(self):
        # Not in __dealloc__: here a device in a reference cycle with its map is still intact.
        if self.map is not NULL and self.shared is NULL:
            try:
                self.close()
            except Exception:  # a destructor: nothing can be reported
                pass

    def __dealloc__(self):
        if self.shared is NULL:
            destroy(self.mapped, self.map)

    def lock(
        self,
        ptr: int,
        size: int = ...,  # so that a buffer alone is refused by what it is
        read_only: bool | None = None,
        *,
        piece: int | None = None,
        coherent: bool | None = None,
    ) -> int:
        """Count one more lock of ``[ptr, ptr + size)``, locking it first if no region contains it.

        Parameters
        ----------
        ptr, size : int
            Host address and bytes, of any alignment.
        read_only : bool, optional
            Whether the mapping may be read only; None if unknown.
        piece : int, optional
            Bytes that one vendor call may take.
        coherent : bool, optional
            Whether the host and a running kernel must see each other's writes. True: required. None: if the vendor
            offers it. False: not needed, so the lock is coarse-grained if the vendor offers that.

        Returns
        -------
        int
            The device-accessible address of `ptr`.

        Raises
        ------
        InvalidRangeError
            Null, empty, negative or past the top of the address space.
        PartialOverlapError
            It shares bytes with a region of this map without lying inside it; nothing was locked. Or the device says
            that another owner has pinned a part of it.
        StillLockedError
            It overlaps a half unlocked region, whose unlock the device refused: unlock that again first. Or it must be
            coherent and lies in a region that is not, or for which that is unknown.
        PinningError
            The map is closed, the pieces' device pointers are not contiguous, or coherence is required of a device that
            does not promise it.

        Exceptions of the device are raised as well. After any error nothing has changed, unless the device also refused
        to undo the pieces before the one that failed; these are then a half unlocked region.
        """
        if size is ...:
            word(ptr, "address")
            raise TypeError("size is missing; a map locks the bytes at an address: lock(address, size)")
        return self.hold(ptr, size, read_only, piece, coherent).device_ptr

    cdef CHold hold(self, ptr, size, read_only, piece, coherent) except *:
        cdef uint64_t start = word(ptr, "address")
        cdef uint64_t nbytes = word(size, "size")
        cdef uint64_t piece_bytes = 0 if piece is None else byte_count(piece, "piece")
        cdef LockOptions options = lock_options(read_only, coherent)
        self.check_open()
        cdef optional[CHold] held = self.map.try_lock(start, nbytes, options.coherence)
        if held.has_value():
            return dereference(held)
        return self.hold_range(start, nbytes, options, self.step(nbytes, piece_bytes), NULL)

    cdef CHold hold_range(
        self, uint64_t ptr, uint64_t size, LockOptions options, uint64_t piece, Pieces* pieces
    ) except *:
        self.check_open()
        options.locker = self.locker()
        entry = (<uint64_t>self.map, get_ident(), ptr, size)
        _being_locked.append(entry)
        try:
            return self.hold_listed(ptr, size, options, piece, pieces)
        finally:
            if entry in _being_locked:  # not in a forked child
                _being_locked.remove(entry)  # last: from here to `own` no other thread runs

    cdef CHold hold_listed(
        self, uint64_t ptr, uint64_t size, LockOptions options, uint64_t piece, Pieces* pieces
    ) except *:
        """`hold_range`, whose range `is_being_locked` meanwhile."""
        cdef CPinnedMap* map = self.map
        cdef CHold hold
        try:
            with nogil:
                if pieces is NULL:
                    hold = map.lock(ptr, size, options, piece)
                else:
                    hold = map.lock(ptr, size, options, dereference(pieces))
        finally:
            unlock_orphans()
        try:
            self.check_open()  # `close` may have missed this lock
            PyErr_CheckSignals()  # after Ctrl-C the caller does not get it
        except BaseException:
            with suppress(Exception):  # then it stays locked, for `unlock`
                with nogil:
                    map.unlock(hold, False)
            unlock_orphans()
            raise
        return hold

    cdef bint is_being_locked(self, uint64_t ptr) except -1:
        """Whether another thread is locking a range with `ptr`, for any device that shares the map."""
        cdef uint64_t domain, thread, start, size
        me = get_ident()
        for domain, thread, start, size in list(_being_locked):
            if domain == <uint64_t>self.map and thread != me and start <= ptr and ptr - start < size:
                return True
        return False

    cdef Locker* locker(self) noexcept:
        """Which is to lock, of those of a shared map; null for the only one."""
        return <Locker*>NULL if self.shared is NULL else &self.shared.locker

    cdef check_open(self):
        self.restart()
        if self.closed:
            raise PinningError(f"the map of {self.device} is closed; nothing can be locked or registered in it")

    cdef uint64_t step(self, uint64_t size, uint64_t piece) noexcept:
        return self.largest if size > self.largest and (piece == 0 or piece > self.largest) else piece

    def unlock(self, ptr: int) -> None:
        """Release one lock of the region around `ptr`; the last one unlocks it.

        Raises
        ------
        NotLockedError
            No lock is held there.

        Exceptions of the device are raised as well; the count is then as before, and `unlock` can be called again.
        """
        cdef uint64_t at = word(ptr, "address")
        cdef CPinnedMap* map = self.map
        if not map.try_unlock(at):
            try:
                with nogil:
                    map.unlock(at)
            finally:
                unlock_orphans()

    def lock_mapped(
        self, ptr: int, size: int, policy: Literal["off", "on", "mandatory"], read_only: bool | None = None
    ) -> int | None:
        """Lock a range that a runtime maps, as `policy` says; `pinning.locking.mapped.lock_mapped` has the rules.

        Parameters
        ----------
        ptr, size : int
            Host address and bytes.
        policy : {"off", "on", "mandatory"}
            Whether to lock, and whether failing to lock is an error.
        read_only : bool, optional
            Whether the memory cannot be written.

        Returns
        -------
        int or None
            The device-accessible address of `ptr`; None if it is not locked now.

        Raises
        ------
        InvalidRangeError
            Null, empty, negative or past the top of the address space.
        ArgumentError
            There is no such policy.

        With the policy "mandatory" also what `lock` raises.
        """
        cdef uint64_t start = word(ptr, "address")
        cdef uint64_t nbytes = word(size, "size")
        if not is_one_of(policy, *_POLICIES):
            raise ArgumentError(f"policy is {describe(policy)}; it must be one of {', '.join(map(repr, _POLICIES))}")
        cdef LockMapped chosen = <LockMapped><int>_POLICIES[policy]
        self.restart()
        if self.closed:
            if chosen == LockMapped.mandatory:
                self.check_open()
            return None
        cdef LockOptions options = lock_options(read_only, None)
        options.locker = self.locker()
        cdef uint64_t piece = self.step(nbytes, 0)
        cdef MappedLocks* mapped = self.mapped
        cdef optional[uint64_t] device_ptr
        try:
            with nogil:
                device_ptr = mapped.lock_mapped(start, nbytes, chosen, options, piece)
        finally:
            unlock_orphans()
        if self.closed:  # meanwhile, and `close` may have missed this lock
            with nogil:
                mapped.unlock_unmapped(start)
            if chosen == LockMapped.mandatory:
                self.check_open()
            return None
        try:
            PyErr_CheckSignals()
        except BaseException:
            with suppress(Exception):
                self.unlock_unmapped(ptr)
            raise
        return dereference(device_ptr) if device_ptr.has_value() else None

    def unlock_unmapped(self, ptr: int) -> None:
        """Undo one `lock_mapped` of `ptr`, if it locked anything. After an error of the device, call it again."""
        cdef uint64_t at = word(ptr, "address")
        cdef MappedLocks* mapped = self.mapped
        try:
            with nogil:
                mapped.unlock_unmapped(at)
        finally:
            unlock_orphans()

    def refresh(self) -> list[Region]:
        """Query the device for each external region, and remove those that their owner has unpinned, even if locked.

        Registrations are not queried. After an error of the device nothing has changed.

        Returns
        -------
        list of Region
            Those removed, as they were.
        """
        cdef CPinnedMap* map = self.map
        cdef vector[CRegion] gone
        cdef CRegion region
        try:
            with nogil:
                gone = map.refresh()
        finally:
            unlock_orphans()
        return [wrap(region, self.device) for region in gone]

    def drain_invalidations(self) -> None:
        """Have the device unlock the invalidated regions; returns when that is done.

        A thread does so soon for a shared map, otherwise the next lock or unlock there; memory that is handed to the
        vendor as pageable cannot wait for that.
        """
        cdef CPinnedMap* map = self.map
        try:
            with nogil:
                map.drain_invalidations()
        finally:
            unlock_orphans()

    @property
    def _domain(self) -> int:
        """The same for the maps of devices that share their regions."""
        return <uint64_t>self.map

    def _changes(self) -> int:
        """How often the locked regions have changed, for `_changed_since`."""
        return self.map.changes()

    def _changed_since(self, uint64_t changes, uint64_t ptr, uint64_t size) -> bool:
        """Whether they have changed since; if not, waits for changes in progress in ``[ptr, ptr + size)`` first."""
        cdef CPinnedMap* map = self.map
        cdef cbool changed
        with nogil:
            changed = map.changed_since(changes, ptr, size)
        return changed

    def register(self, ptr: int, size: int, device_ptr: int) -> None:
        """Enter memory that its owner has pinned: found like any other, never unlocked by this map.

        Parameters
        ----------
        ptr, size : int
            Host address and bytes.
        device_ptr : int
            The device-accessible address of `ptr`.

        Raises
        ------
        InvalidRangeError, PartialOverlapError
            As for `lock`; any byte that is in the map already is an overlap.
        StillLockedError
            It overlaps a region that is half unlocked.
        PinningError
            The map is closed.
        """
        cdef uint64_t first = word(ptr, "address")
        cdef uint64_t count = word(size, "size")
        cdef uint64_t device = word(device_ptr, "device pointer")
        cdef CPinnedMap* map = self.map
        self.check_open()
        with nogil:
            map.register_pinned(first, count, device)
        if self.closed:  # meanwhile, and `close` may have missed this region
            try:
                map.unregister(first)
            except NotLockedError:
                pass
            self.check_open()

    def unregister(self, ptr: int) -> None:
        """Undo the `register` of the region around `ptr`.

        Raises
        ------
        NotLockedError
            No registered region holds `ptr`.
        StillLockedError
            There is a lock in it; nothing has changed.
        """
        cdef uint64_t first = word(ptr, "address")
        cdef CPinnedMap* map = self.map
        with nogil:  # it waits for a thread that is removing it
            map.unregister(first)

    def add_registrar(
        self,
        register: Callable[[int, int], object],
        unregister: Callable[[Any], object],
        *,
        piece: int | None = None,
        name: str | None = None,
    ) -> Registrar:
        """Report all memory that this map locks to another library, such as a network library.

        From now on `register` is called once for each region: before its first lock is returned, or now if it is locked
        already. `unregister` is called after its last lock was given up, before the vendor unlocks it. A region that
        stays registered while idle stays so here as well. Memory that others have pinned, or that `PinnedMap.register`
        has entered, is not reported.

        Parameters
        ----------
        register : callable
            ``register(ptr, size)`` with the host address and the bytes of a region, or of a piece of it. Its result is
            passed to `unregister`. Called from any thread, with no lock held; it must not lock in the same range.
        unregister : callable
            ``unregister(handle)``. If it raises, the region stays as it was, and the next unlock tries again.
        piece : int, optional
            The most bytes of one call.
        name : str, optional
            Its name in error messages; by default that of `register`.

        Returns
        -------
        Registrar
            It stays until it is removed, or the map is closed.

        Raises
        ------
        RegistrarError
            `register` has raised. All regions are unregistered, and it is not added. A lock raises it too, after it has
            undone the registrars before it, and the vendor's lock.
        InvalidRangeError
            `piece` is 0, negative or too large.
        PinningError
            The map is closed.
        """
        for what, function in (("register", register), ("unregister", unregister)):
            if not callable(function):
                raise TypeError(f"{what} is {describe(function)}; it must be a function")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name is {describe(name)}; it must be a string, or None for the function's own")
        cdef uint64_t piece_bytes = 0 if piece is None else byte_count(piece, "piece")
        self.check_open()
        cdef Registrar registrar = Registrar.__new__(Registrar)
        registrar.map, registrar.made_in = self, generation()
        registrar.on_register, registrar.on_unregister = register, unregister
        registrar.name = name if name is not None else getattr(register, "__qualname__", None) or repr(register)
        cdef CPinnedMap* map = self.map
        self.registrars.append(registrar)  # first, to keep it alive
        try:
            registrar.native = add_registrar(map, registrar, piece_bytes)
        except BaseException:
            self.registrars = [other for other in self.registrars if other is not registrar]
            raise
        finally:
            unlock_orphans()
        if self.closed:  # meanwhile
            registrar.remove()
            self.check_open()
        return registrar

    cdef _remove_registrars(self, bint wait):
        cdef Registrar registrar
        first_error = None
        for registrar in list(self.registrars):
            try:
                registrar.take_out(wait)
            except BaseException as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def find(self, ptr: SupportsIndex, size: SupportsIndex = 1) -> Region | None:
        """The region that holds every byte of ``[ptr, ptr + size)``; None when `size` is 0.

        Parameters
        ----------
        ptr, size : int
            Host address and bytes.

        Returns
        -------
        Region or None
            A snapshot; None if no region contains all of them.
        """
        cdef uint64_t start, nbytes
        if ptr is True or ptr is False:
            raise no_word(ptr, "address")
        try:
            start = PyNumber_Index(ptr)
            nbytes = PyNumber_Index(size)
        except OverflowError:
            return None
        except TypeError:
            word(ptr, "address")
            word(size, "size")
            raise
        cdef optional[CRegion] region = self.map.find(start, nbytes)
        return wrap(dereference(region), self.device) if region.has_value() else None

    def overlapping(self, ptr: SupportsIndex, size: SupportsIndex, *, bint idle=False) -> list[Region]:
        """The regions that overlap ``[ptr, ptr + size)``, or will once they are locked completely.

        Parameters
        ----------
        ptr, size : int
            Host address and bytes.
        idle : bool
            Also idle regions, which are registered and not locked, see `pinning.budget`.

        Returns
        -------
        list of Region
            In address order and disjoint. Regions that are added or removed during the call may or may not be included.

        Raises
        ------
        InvalidRangeError
            `size` is 0, or the range does not lie within ``[0, 2**64)``.
        """
        cdef uint64_t start = word(ptr, "address")
        cdef uint64_t nbytes = word(size, "size")
        cdef CPinnedMap* map = self.map
        cdef vector[CRegion] regions
        with nogil:
            regions = map.overlapping(start, nbytes, idle)
        cdef CRegion region
        return [wrap(region, self.device) for region in regions]

    def __contains__(self, ptr: SupportsIndex) -> bool:
        cdef uint64_t address
        if ptr is True or ptr is False:
            raise no_word(ptr, "address")
        try:
            address = PyNumber_Index(ptr)
        except OverflowError:
            return False
        except TypeError:
            raise no_word(ptr, "address") from None
        return self.map.find(address, 1).has_value()

    def __len__(self) -> int:
        return self.map.size()

    def __iter__(self) -> Iterator[Region]:
        """All regions in address order, as `overlapping` reports them."""
        cdef CPinnedMap* map = self.map
        cdef vector[CRegion] regions
        with nogil:
            regions = map.regions(False)
        cdef CRegion region
        return iter([wrap(region, self.device) for region in regions])

    def close(self, *, wait: bool = True) -> None:
        """Unlock everything, however often it is locked; then nothing more can be locked.

        Parameters
        ----------
        wait : bool
            Whether to wait for ranges that other threads are locking or unlocking, or to skip them.

        Raises
        ------
        Exception
            The first exception of the device. The other regions are unlocked; the map stays open.
        """
        cdef CPinnedMap* map = self.map
        cdef cbool waits = wait
        if self.shared is not NULL:
            self._let_go()
            self._remove_registrars(waits)
            self.closed = True
            return
        self.closed = True  # first, so that nothing is locked meanwhile
        try:
            with nogil:
                map.clear(waits)
        except BaseException:
            self.closed = False
            raise
        self._remove_registrars(waits)

    cdef _let_go(self):
        # Only what Python holds: the map and the other locks in it belong to native code.
        cdef Hold hold
        first_error = None
        cdef list held = []
        cdef PyObject* following = self.holds
        while following is not NULL:
            hold = <Hold>following
            held.append(hold)
            following = hold.next_hold
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

    cdef uint64_t holds_in(self, uint64_t region):
        """The number of holds that count a lock of the region with this serial, for any device that shares the map."""
        cdef uint64_t number = 0
        cdef PinnedMap other
        cdef PyObject* each
        for other in _maps:
            each = other.holds if other.map is self.map else NULL
            while each is not NULL:
                number += (<Hold>each).counted and (<Hold>each).hold.serial == region
                each = (<Hold>each).next_hold
        return number

    cdef give_back(self, uint64_t start):
        cdef CPinnedMap* map = self.map
        with nogil:
            map.give_back_idle(start)

    cdef restart(self):
        """In a forked child, once: earlier locks and registrars belong to the parent."""
        if not is_parents(self.made_in):  # a handler that ran before has locked something
            return
        cdef CPinnedMap* parents = self.map
        self._make()
        if self.shared is NULL:
            parents.abandon()  # never destroyed: a thread may have been in the middle of changing it
        self.holds = NULL
        self.registrars = []
        self.made_in = generation()

    def __enter__(self) -> Self:
        if self.shared is not NULL:  # the end of the block would close it for the whole process
            raise TypeError(f"{self!r} is the map that this whole process has: use it without a `with` block, or "
                            "lock with `with pinning.lock(...)`")
        self.check_open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self):
        refuse_copy(self, "use pinning.pinned_map(device) where it is needed")

    def __repr__(self):
        name = getattr(self.device, "name", self.device)
        return f"<PinnedMap of {name}: {'closed' if self.closed else f'{len(self)} regions'}>"


@cython.no_gc_clear
cdef class Registrar:
    """A library to which a map reports all memory that it locks; returned by `PinnedMap.add_registrar`.

    Attributes
    ----------
    map : PinnedMap
    name : str
    """

    def __init__(self):
        raise TypeError("a Registrar comes from a map's add_registrar")

    def _add(self, ptr, size):
        try:
            return self.on_register(ptr, size)
        except Exception as error:
            raise RegistrarError(
                f"the registrar {self.name} refused [{ptr:#x}, {ptr + size:#x}) ({size} bytes): {error}"
            ) from error

    def _remove(self, handle):
        try:
            self.on_unregister(handle)
        except Exception as error:
            raise RegistrarError(f"the registrar {self.name} did not give {handle!r} back: {error}") from error

    def remove(self) -> None:
        """Unregister all regions, and report no more; does nothing the second time, or in a forked child.

        Raises
        ------
        RegistrarError
            The first error of `unregister`, which was called for all regions; the registrar is removed nevertheless.
        PinningError
            Called by a device or a registrar that the map has called: the removal would wait for that.
        """
        if is_in_device_call():
            raise PinningError(f"{self!r} cannot be removed within a call of a device or a registrar, for which that waits: "
                               "remove it afterwards")
        self.take_out(True)

    cdef take_out(self, bint wait):
        cdef PythonRegistrar* native = self.native
        cdef CPinnedMap* map = self.map.map
        if native is NULL or is_parents(self.made_in):
            return
        self.native = NULL  # first, so that of two threads only one removes it
        try:
            with nogil:
                map.remove_registrar(dereference(native), wait)
        finally:
            self.map.registrars = [other for other in self.map.registrars if other is not self]
            unlock_orphans()

    def __dealloc__(self):
        if self.native is not NULL:
            self.native.let_go()

    def __reduce__(self):
        refuse_copy(self, "add another, with PinnedMap.add_registrar")

    def __repr__(self):
        removed = self.native is NULL or is_parents(self.made_in)
        return f"<Registrar {self.name} of {self.map!r}{', removed' if removed else ''}>"


@cython.no_gc_clear
cdef class Hold:
    """One counted lock of a map, taken when made and given up by `unlock`, or when it is collected."""

    # In C, because Ctrl-C may raise between any two steps in Python: a lock just counted must have an owner already.

    def __init__(
        self,
        PinnedMap map not None,
        ptr: int,
        size: int,
        read_only: bool | None,
        piece: int | None,
        coherent: bool | None,
    ) -> None:
        if self.map is not None:
            raise TypeError("a Hold cannot be initialized again")
        self.take(map, ptr, size, read_only, piece, coherent)

    cdef bint try_take(self, PinnedMap map, uint64_t ptr, uint64_t size, Coherence wanted) noexcept:
        """`take`, but only if a region contains the range already and the vendor need not be called."""
        if map.closed or is_parents(map.made_in):
            return False
        cdef optional[CHold] held = map.map.try_lock(ptr, size, wanted)
        if held.has_value():
            self.own(map, dereference(held))
        return held.has_value()

    cdef take(self, PinnedMap map, ptr, size, read_only, piece, coherent):
        self.own(map, map.hold(ptr, size, read_only, piece, coherent))

    cdef take_in_pieces(self, PinnedMap map, uint64_t ptr, uint64_t size, LockOptions options, Pieces* pieces):
        self.own(map, map.hold_range(ptr, size, options, 0, pieces))

    cdef void own(self, PinnedMap map, CHold hold) noexcept:
        self.map = map
        self.made_in = generation()
        self.hold = hold
        self.counted = True
        self.link()

    @property
    def device_ptr(self) -> int:
        return self.hold.device_ptr

    @property
    def held(self) -> bool:
        """Whether the memory is still locked by this handle, in this process.

        False for memory pinned by another owner, once the map knows that its owner has unpinned it.
        """
        return self.is_held()

    cdef bint is_held(self) noexcept:
        return self.counted and self.is_in_map()

    cdef bint is_in_map(self) noexcept:
        return not self.map.closed and not is_parents(self.made_in) and self.map.map.holds(self.hold)

    cdef void link(self) noexcept:
        """Add to the map's list of holds; the GIL guards it."""
        self.next_hold = self.map.holds
        if self.next_hold is not NULL:
            (<Hold>self.next_hold).previous_hold = <PyObject*>self
        self.map.holds = <PyObject*>self
        self.linked = True

    cdef void unlink(self) noexcept:
        if not self.linked or is_parents(self.made_in):
            return
        self.linked = False
        if self.previous_hold is NULL:
            self.map.holds = self.next_hold
        else:
            (<Hold>self.previous_hold).next_hold = self.next_hold
        if self.next_hold is not NULL:
            (<Hold>self.next_hold).previous_hold = self.previous_hold
        self.next_hold = self.previous_hold = NULL

    def unlock(self) -> bool:
        """Give up the lock; False if that has been done, or another thread is doing it.

        Nothing is unlocked if its region is no longer in the map, even if another one is at the same place.
        """
        return self.release()

    cdef bint release(self) except *:
        if not self.counted:
            return False
        self.counted = False  # first, so that of two threads only one unlocks
        cdef CPinnedMap* map = self.map.map
        try:
            # Also while the map is being closed, which may fail.
            if not is_parents(self.made_in) and map.holds(self.hold) and not map.try_unlock(self.hold, self.keep):
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

    def _drop(self) -> None:
        """Give up the lock from a destructor: now, or when the device call that this thread is in has ended."""
        # The garbage collector may call this in the middle of a device's own code, with the device's own mutexes held:
        # then the unlock waits until that call has ended.
        if is_in_device_call():
            _orphans.append(self)
            defer(_unlock_orphans)  # unless the map call that has called the device does so first
        else:
            self.release()

    cdef void release_last(self) noexcept:
        """Unlock in a deallocator, for the last time: a refusal is printed. Not listed any more: `close` would revive it."""
        self.unlink()
        if self.counted:
            try:
                self.release()
            finally:
                self.counted = False

    def __dealloc__(self):
        self.release_last()


_orphans = deque()  # of Holds


cdef unlock_orphans():
    while not is_in_device_call() and _orphans:
        try:
            hold = _orphans.popleft()
        except IndexError:  # another thread was quicker
            return
        unlock_orphan(hold)


def _unlock_orphans():
    unlock_orphans()


cdef void unlock_orphan(Hold hold) noexcept:  # as in a destructor: no error can be reported
    hold.release()


_maps = WeakRegistry()
cdef list _being_locked = []  # map, thread, address and bytes of the locks in progress


def _begin_anew_in_child():
    cdef PinnedMap each
    _being_locked.clear()
    for each in _maps:
        each.restart()


def _close_all():
    for each in _maps:
        with suppress(Exception):  # the others are still to be closed; nothing can be reported at exit
            each.close(wait=False)


at_fork(_begin_anew_in_child)
at_exit(_close_all)

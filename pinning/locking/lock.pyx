# SPDX-License-Identifier: Apache-2.0
"""`pinning.lock` and its handles: locks of any buffer, which keep the buffer alive."""

cimport cython
from cpython.object cimport PyObject
from cpython.weakref cimport PyWeakref_GetObject
from cython.operator cimport dereference
from libcpp cimport bool as cbool

from pinning.budget.cache cimport keep_owner, watch
from pinning.interop.memory_of cimport Export, host_memory_of, kind_of
from pinning.map.native cimport CPinnedMap, Nanoseconds
from pinning.map.pinned_map cimport lock_options, wrap
from pinning.runtime.process cimport is_parents

import sys
import time
import warnings
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING

from pinning.budget.limits import check_lock
from pinning.errors import ArgumentError, InvalidRangeError, LockLimitError, NotLockedError
from pinning.interop.memory_of import host_buffer
from pinning.locking import devices
from pinning.machine.populate import is_resident, populate
from pinning.runtime.arguments import byte_count, describe, integer, number
from pinning.runtime.handles import Block, refuse_copy
from pinning.runtime.settings import is_switched_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from pinning.interop.memory_of import HostBuffer
    from pinning.map.pinned_map import Region
    from pinning.plugin import Device, LockDevice
    from pinning.runtime.buffers import Buffer

cdef extern from "<pinning/status_page.hpp>" namespace "pinning":
    void describe_in_status(uint64_t start, uint64_t size, const char* owner, const char* site) noexcept

cdef extern from "Python.h":
    ctypedef struct Type "PyTypeObject":
        const char* tp_name
    ctypedef struct Frame "PyFrameObject"
    Type* Py_TYPE(object thing)
    Frame* PyEval_GetFrame() noexcept
    object PyFrame_GetCode "(PyObject *) PyFrame_GetCode"(Frame* frame)
    int PyFrame_GetLasti(Frame* frame) noexcept
    PyObject* PyDict_GetItem(object dictionary, object key)

cdef extern from "<pinning/open_locks.hpp>" namespace "pinning":
    cppclass OpenLocks:
        void enter(const void* map, uint64_t ptr, uint64_t size, uint64_t region, uint64_t serial, PyObject* lock) except +
        void leave(const void* map, uint64_t ptr, uint64_t size, uint64_t region, uint64_t serial) noexcept
        PyObject* of_bytes(const void* map, uint64_t ptr, uint64_t size, uint64_t before) noexcept
        PyObject* of_region(const void* map, uint64_t region, uint64_t before) noexcept
        PyObject* within(const void* map, uint64_t ptr, uint64_t size, cbool (*is_meant)(PyObject*) noexcept) noexcept


cdef bint tells_sites = is_switched_on("PINNING_LOCK_SITES")
cdef OpenLocks* open_locks = new OpenLocks()  # the GIL guards it; never destroyed: locks may be dropped at exit
cdef uint64_t last_serial = 0

cdef dict maps = devices.maps.by_id  # weak references
cdef object pinned_maps = devices.pinned_maps
cdef object plugins = devices.plugins
cdef object reports = None  # of the plugins, for which `default_map` is valid
cdef PinnedMap default_map = None
cdef dict loaded = devices.loaded  # the plugins for which `named` is valid
cdef dict named = {}


cdef PinnedMap map_of(object device):
    """`pinned_map`, without a search of the devices every time."""
    global reports, default_map, loaded
    cdef PyObject* cached
    if device is not None and not isinstance(device, str):
        cached = PyDict_GetItem(maps, <uint64_t><void*>device)
        pinned_map = None if cached is NULL else <object>PyWeakref_GetObject(<object>cached)
        return devices.pinned_map(device) if pinned_map is None else <PinnedMap>pinned_map
    if device is None:
        present = plugins()
        if present is not reports:
            reports, default_map = present, None
        if default_map is None:
            default_map = devices.pinned_map()
        return default_map
    if devices.loaded is not loaded:
        loaded = devices.loaded
        named.clear()
    cached = PyDict_GetItem(named, device)
    if cached is NULL:
        named[device] = devices.pinned_map(device)
        return named[device]
    return <PinnedMap>cached


cdef bint range_at(object buffer, object size, Bytes* found) except -1:
    """The bytes of a buffer, without an owner; a bare address is one byte by default. False if not in [0, 2**64)."""
    cdef bint address = kind_of(buffer).address
    if not address:
        host_memory_of(buffer, size, found)
        return True
    if size is not None and type(size) is not int:
        size = integer(size, "size")
    try:
        found.ptr = int(buffer)
        found.size = 1 if size is None else size
    except OverflowError:
        return False
    return True


LEAST = 16 << 20  # bytes of a piece: below that, the overhead of a call shows
STALL_MS = 3.0


cdef class Pace:
    def __dealloc__(self):
        del self.pieces


cdef Pace pace_of(uint64_t largest, Lock lock, object piece, object unit, object stall_ms):
    cdef uint64_t size = lock.size
    if piece is not None and (unit is not None or stall_ms is not None):
        raise ArgumentError(f"piece {piece} says how large each piece is; give either that, or unit and stall_ms")
    cdef uint64_t least = 0
    cdef long long longest = 0
    if piece is not None:
        least = byte_count(piece, "piece")
    elif unit is not None or stall_ms is not None:
        if isinstance(stall_ms, bool):
            raise TypeError(f"stall_ms is {describe(stall_ms)}; it must be a number of milliseconds")
        stall = STALL_MS if stall_ms is None else number(stall_ms, "stall_ms", "a number of milliseconds")
        if not 0 < stall < 1e9:
            raise InvalidRangeError(f"stall_ms is {stall_ms}; it must be above 0 and below 1e9, in milliseconds")
        longest = <long long>(1e6 * stall)
        least = 1 if unit is None else byte_count(unit, "unit")
        element = (<Export>lock.owner).view.itemsize if isinstance(lock.owner, Export) else 1
        if unit is not None and element > 1 and least % element:
            raise InvalidRangeError(f"unit is {unit}; it must be a multiple of the buffer's elements, {element} bytes, or "
                                    "a border between pieces would cut one")
        least *= max(<uint64_t>LEAST // least, <uint64_t>1)
    if least > largest or (least == 0 and size > largest):
        least = largest
    cdef Pace pace = Pace.__new__(Pace)
    pace.pieces = new PacedPieces(least, largest, Nanoseconds(longest))
    return pace


@cython.no_gc_clear
cdef class Lock(Hold):
    """One lock of one buffer. Made by `lock`; a context manager, which unlocks at the end.

    While it is held the buffer's owner is kept alive, and cannot be resized or closed. A lock that is dropped while
    held unlocks and warns: RuntimeWarning if the statement that locked did not keep it, else ResourceWarning. In a
    forked child it is not held: page locks stay with the parent.

    Attributes
    ----------
    ptr, device_ptr : int
        Where the buffer's first byte is, for the host and for the device.
    size : int
        Bytes.
    device : Device
        Where it is locked.
    """

    def __init__(self):
        raise TypeError("a Lock comes from pinning.lock")

    def __reduce__(self):
        refuse_copy(self, "it stands for one lock; lock the buffer once more")

    @property
    @cython.nonecheck(True)  # of an object that is being made
    def device(self) -> Device:
        return self.map.device

    @property
    def region(self) -> Region | None:
        """The locked region that holds the buffer, perhaps larger than it; None once unlocked."""
        return self.map.find(self.ptr, self.size) if self.is_held() else None

    def unlock(self) -> None:  # type: ignore[override]  # a Hold says whether it was held
        """Give up this lock; the last one of its region unlocks the memory. Nothing happens the second time.

        Raises
        ------
        VendorError
            The vendor refused; the lock is still held and can be unlocked again.
        """
        self.release()

    cdef bint release(self) except *:
        self.keep = self.counted and not self.ending and (
            self.cached or keep_owner(self.map, self.ptr, self.owner)
        )
        if not Hold.release(self):
            return False
        self.leave()
        owner = self.owner  # replaced before it is destroyed: see docs/concurrency.md
        self.owner = None
        return True

    cdef enter(self):
        """Add to the locks that are held; gives this lock up if that fails."""
        global last_serial
        try:
            open_locks.enter(<void*>self.map, self.ptr, self.size, self.hold.serial, last_serial + 1, <PyObject*>self)
        except MemoryError:
            self.release()
            raise
        last_serial += 1
        self.serial = last_serial

    cdef void leave(self) noexcept:
        """Remove from the locks that are held."""
        if self.serial:
            open_locks.leave(<void*>self.map, self.ptr, self.size, self.hold.serial, self.serial)
            self.serial = 0

    def __enter__(self) -> Self:
        if not self.is_held():
            raise NotLockedError(f"{self!r} is not held, so nothing would be locked: use `with pinning.lock(buffer)`")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self):
        self.ending = True
        if not self.is_held():
            return
        try:
            warn_of_drop(self, self.made_by, "was dropped while held; unlock it, or use `with`")
        finally:
            self._drop()

    def __dealloc__(self):
        self.ending = True
        self.leave()
        self.release_last()  # while the memory is still there; the base class's comes too late for that

    def __repr__(self):
        if self.map is None:
            return "<Lock that is being made>"
        state = "" if self.is_held() else ", unlocked"
        if state and self.counted and not self.map.closed and not is_parents(self.made_in):
            state = ", held no more: its memory has left, or its owner has unpinned it; lock it again"
        device = getattr(self.map.device, "name", self.map.device)
        end = int(self.ptr) + self.size
        return f"<Lock of [{self.ptr:#x}, {end:#x}), {self.size} bytes, on {device}{state}>"


def lock(
    buffer: Buffer,
    size: int | None = None,
    *,
    device: LockDevice | str | None = None,
    read_only: bool | None = None,
    piece: int | None = None,
    unit: int | None = None,
    stall_ms: float | None = None,
    coherent: bool | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Lock:
    """Lock a buffer's memory for a device, or count one more lock if it is already locked.

    Before the vendor is called, limits are checked and pages are populated in steps, so that Ctrl-C works meanwhile and
    leaves nothing locked.

    Parameters
    ----------
    buffer : object
        What to lock: anything with the buffer protocol (bytes, bytearray, memoryview, mmap, array, NumPy arrays of any
        strides), SharedMemory, CPU tensors, DLPack on the CPU, ``__array_interface__``, ``(address, size)``, or an
        address with `size`. A view with gaps is locked from its lowest to its highest byte.
    size : int, optional
        Only the first `size` bytes.
    device : Device or str, optional
        Such as ``"cuda:0"``; by default the default device.
    read_only : bool, optional
        Whether the device may only read the memory; by default this follows the buffer and its mapping.
    piece : int, optional
        Lock in pieces of this many bytes. A GPU stalls while memory is locked, 18 to 54 ms per GiB: pieces bound that.
        But copies by other libraries that cross a border between pieces then fail.
    unit : int, optional
        Lock in pieces whose sizes are multiples of this many bytes, counted from the start of the buffer: no copy of
        such a unit crosses a border. `lock_async` does the same in the background.
    stall_ms : float, optional
        How long a GPU may stall for one piece, in milliseconds; 3 by default if `unit` is given.
    coherent : bool, optional
        Whether the host and a running kernel must see each other's writes. By default they do if the vendor offers it.
        True: required. False: not needed; coarse-grained memory, which may be faster, is acceptable.
    progress : callable, optional
        ``progress(done, total)``, in bytes, while pages are populated.

    Returns
    -------
    Lock
        Keep it: dropping it unlocks.

    Raises
    ------
    TypeError
        The object is not a buffer.
    InvalidRangeError
        Empty, null, closed, freed or device memory.
    PartialOverlapError
        It overlaps a locked region without lying inside it.
    StillLockedError
        It overlaps a half unlocked region, whose unlock the vendor refused: unlock that again first. Or it must be
        coherent and lies in a region that is not, or for which that is unknown.
    PinningError
        Coherence is required and the device does not offer it.
    LockLimitError
        It exceeds a limit; the message names it.
    PluginUnavailableError
        There is no such device.
    VendorError
        The vendor refused.

    Examples
    --------
    >>> array = numpy.ones(1000)
    >>> with pinning.lock(array) as lock:
    ...     lock.size, lock.held
    (8000, True)
    """
    cdef Bytes found
    cdef Lock handle = unlocked(buffer, size, &found)
    cdef PinnedMap pinned_map = map_of(device)
    cdef Pace pace = None
    if progress is not None and not callable(progress):
        raise TypeError(
            f"progress is {describe(progress)}; it must be a function of two integers, bytes done and total"
        )
    if unit is not None or stall_ms is not None:
        pace = pace_of(pinned_map.largest, handle, piece, unit, stall_ms)
    if not handle.try_take(pinned_map, found.ptr, found.size, lock_options(read_only, coherent).coherence):
        if read_only is None and found.read_only >= 0:
            read_only = bool(found.read_only)
        bring_in(found.ptr, found.size, pinned_map, progress)
        if pace is None:
            handle.take(pinned_map, found.ptr, found.size, read_only, piece, coherent)
        else:
            handle.take_in_pieces(pinned_map, found.ptr, found.size, lock_options(read_only, coherent), pace.pieces)
        show(handle, description_of(buffer))
        handle.made_by = this_call()
    handle.enter()
    return handle


cdef Lock unlocked(object buffer, object size, Bytes* found):
    cdef Lock handle = Lock.__new__(Lock)
    handle.owner = host_memory_of(buffer, size, found)
    handle.ptr, handle.size, handle.read_only = found.ptr, found.size, found.read_only
    return handle


cdef Call this_call():
    """The call that the program is in; not for a lock in locked memory, which would take twice as long."""
    cdef Call call
    cdef Frame* frame = PyEval_GetFrame()
    call.code, call.at = NULL, 0
    if frame is not NULL:
        code = PyFrame_GetCode(frame)
        call.code, call.at = <void*>code, PyFrame_GetLasti(frame)
    return call


cdef bint is_result_of(Call call):
    """Whether the instruction that is dropping an object drops the result of this call, which nothing else has kept.

    It is then the one after the call. One that stores the result drops an earlier one, which had been kept.
    """
    cdef Frame* frame = PyEval_GetFrame()
    if call.code is NULL or frame is NULL:
        return False
    code = PyFrame_GetCode(frame)
    if <void*>code is not call.code:
        return False
    import opcode

    cdef int at = PyFrame_GetLasti(frame)
    cdef bytes instructions = code.co_code
    return (
        call.at < at
        and not any(instructions[call.at + 2 : at : 2])  # only its caches are between
        and opcode.opname[instructions[at]] in ("POP_TOP", "LOAD_ATTR")
    )


cdef warn_of_drop(object handle, Call made_by, str text):
    if is_result_of(made_by):
        warnings.warn(f"{handle!r} is unlocked at once, because this line does not keep it: assign it, or use `with`; "
                      "for calls in pairs there are pinning.pinned_map(device).lock(address, size) and unlock(address)",
                      RuntimeWarning)
    else:
        warnings.warn(f"{handle!r} {text}", ResourceWarning, source=handle)


cdef tuple description_of(object buffer):
    """For the process's status page: the type of a buffer, and, if wanted, the line that locks it."""
    return <bytes>Py_TYPE(buffer).tp_name, call_site().encode(errors="replace") if tells_sites else b""


cdef void show(Lock lock, tuple description) noexcept:
    describe_in_status(lock.ptr, lock.size, <bytes>description[0], <bytes>description[1])


cdef str call_site():
    """The line of the program that called this package."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "pinning":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def make_ready(
    buffer: HostBuffer, PinnedMap pinned_map not None, progress: Callable[[int, int], object] | None = None
) -> None:
    """Prepare for a vendor's lock: check that there is room, and populate the pages. Raises as `lock`."""
    bring_in(buffer.ptr, buffer.size, pinned_map, progress)


cdef bring_in(uint64_t ptr, uint64_t size, PinnedMap pinned_map, progress):
    if pinned_map.closed or is_decided(ptr, size, pinned_map):
        return
    resident = is_resident(ptr, size)
    if check_anew(ptr, size, pinned_map, resident):
        populate(ptr, size, progress=progress, resident=resident)


cdef bint is_decided(uint64_t ptr, uint64_t size, PinnedMap pinned_map) noexcept:
    """Whether either end is in a locked region: then the map decides, one more lock or an overlap."""
    return pinned_map.map.find(ptr, 1).has_value() or pinned_map.map.find(ptr + size - 1, 1).has_value()


cdef bint check_anew(uint64_t ptr, uint64_t size, PinnedMap pinned_map, bint resident) except -1:
    """`check_lock`; False if it finds no room because another thread has just locked the range: the map decides."""
    cdef CPinnedMap* map = pinned_map.map
    try:
        check_lock(size, pinned_map.device, resident)
        return True
    except LockLimitError:
        if not map.is_changing(ptr, size) and not is_decided(ptr, size, pinned_map):
            raise
    with nogil:
        map.await_changes(ptr, size)
    if is_decided(ptr, size, pinned_map):
        return False
    check_lock(size, pinned_map.device, resident)
    return True


def unlock_cached(Lock lock not None) -> None:
    """Give up a lock; the last one of its region puts it into the registration cache, if the budget has room.

    The caller must keep the memory in place until the region is gone. Raises as `Lock.unlock`.
    """
    lock.cached = True
    lock.release()
    watch()


def unlock(buffer: Buffer | Lock, *, device: LockDevice | str | None = None) -> None:
    """Give up the youngest lock of a buffer: of exactly its bytes, or else of any in the same region.

    Parameters
    ----------
    buffer : object
        A `Lock`, anything that `lock` takes, or an address.
    device : Device or str, optional
        Where it is locked; anywhere by default.

    Raises
    ------
    NotLockedError
        It is not locked.
    VendorError
        The vendor refused; it is still locked.

    Examples
    --------
    >>> array = numpy.ones(1000)
    >>> lock = pinning.lock(array)
    >>> pinning.unlock(array)
    >>> lock.held
    False
    """
    cdef Bytes found
    cdef PinnedMap pinned_map
    if isinstance(buffer, Lock):
        if device is not None and map_of(device) is not (<Lock>buffer).map:
            raise NotLockedError(f"{buffer!r} is not a lock for {map_of(device).device.name}: leave device out")
        (<Lock>buffer).release()
        return
    if range_at(buffer, None, &found):
        pinned_map = map_with(found.ptr, 1) if device is None else None
        if pinned_map is not None and unlock_youngest(pinned_map, &found):  # the usual case, without a list of all maps
            return
        for pinned_map in pinned_maps() if device is None else (map_of(device),):
            if unlock_youngest(pinned_map, &found):
                return
            if pinned_map.is_being_locked(found.ptr):  # that lock has its owner once it is taken
                while pinned_map.is_being_locked(found.ptr):
                    time.sleep(0.001)
                if unlock_youngest(pinned_map, &found):
                    return
            if is_only_held(pinned_map, found.ptr):
                continue
            try:
                pinned_map.unlock(found.ptr)  # locked through the map itself
            except NotLockedError:
                continue
            return
        where = "" if device is None else f" on {map_of(device).device.name}"
        region = next((each for each in devices.regions(device, idle=True) if found.ptr in each), None)
        if region is not None and not region.idle:
            raise NotLockedError(f"{found.ptr:#x} is locked{where} by its owner, an arena, an allocation or a registration: "
                                 "close, free or unregister that")
        why = (
            "pinning.regions() lists what is locked, and one lock allows one unlock" if region is None
            else "only the registration cache has it: pinning.give_back_idle() gives it back"
        )
        raise NotLockedError(f"no locked region{where} holds {found.ptr:#x}; {why}")
    raise NotLockedError(f"no locked region holds {int(buffer):#x}, which is not in [0, 2**64)")


cdef bint unlock_youngest(PinnedMap pinned_map, Bytes* found) except -1:
    cdef uint64_t region = pinned_map.map.serial_at(found.ptr)
    cdef uint64_t before = last_serial + 1
    cdef PyObject* youngest
    cdef bint exact
    cdef Lock lock
    for exact in (True, False):
        while True:
            youngest = (open_locks.of_bytes(<void*>pinned_map, found.ptr, found.size, before) if exact
                        else open_locks.of_region(<void*>pinned_map, region, before))
            if youngest is NULL:
                break
            lock = <Lock>youngest
            before = lock.serial
            if lock.is_held() and lock.release():
                return True
        before = last_serial + 1
    return False


cdef bint is_only_held(PinnedMap pinned_map, uint64_t ptr) except -1:
    """Whether all locks of the region that contains `ptr` belong to holds, such as an arena's."""
    cdef optional[CRegion] region = pinned_map.map.find(ptr, 1)
    cdef uint64_t held = pinned_map.holds_in(pinned_map.map.serial_at(ptr))
    return region.has_value() and held > 0 and dereference(region).references <= held


def locked(
    *buffers: Buffer, device: LockDevice | str | None = None, read_only: bool | None = None, coherent: bool | None = None
) -> AbstractContextManager[tuple[Lock, ...]]:
    """Lock several buffers for the duration of a ``with`` block: all of them or none. Raises what `lock` does.

    They may overlap one another: those that do are in one region.

    Parameters
    ----------
    *buffers : object
        Each as for `lock`; an address goes in as a pair ``(address, size)``.
    device, read_only, coherent
        As for `lock`, for all of them.

    Returns
    -------
    context manager
        It yields a tuple with one `Lock` for each buffer.

    Examples
    --------
    >>> weights, bias = numpy.ones(1000), numpy.ones(10)
    >>> with pinning.locked(weights, bias):
    ...     pinning.is_locked(weights), pinning.is_locked(bias)
    (True, True)
    """
    if len(buffers) == 1 and isinstance(buffers[0], (list, tuple)) and not all([kind_of(each).address for each in buffers[0]]):
        raise TypeError(f"locked takes buffers one by one, not a {type(buffers[0]).__name__} of them: locked(*buffers)")
    cdef Bytes found
    for each in buffers:
        host_memory_of(each, None, &found)  # refused by this call rather than at the `with`
    lock_options(read_only, coherent)
    options = dict(device=map_of(device).device, read_only=read_only, coherent=coherent)
    return Block(lambda: _locked(buffers, options), "pinning.locked")


@contextmanager
def _locked(tuple buffers, dict options):
    unions = overlaps_of([host_buffer(each) for each in buffers])
    with ExitStack() as stack:
        with ExitStack() as until_all_are_locked:
            for each in unions:
                until_all_are_locked.enter_context(lock(each, **options))
            locks = tuple([stack.enter_context(lock(each, **options)) for each in buffers])
        yield locks


cdef list overlaps_of(list buffers):
    """Address and size of what buffers form together that overlap."""
    cdef list ranges = []
    for each in sorted(buffers, key=attrgetter("ptr")):
        start, end, several = each.ptr, each.ptr + each.size, False
        if ranges and start < ranges[-1][1]:
            start, before, _ = ranges.pop()
            end, several = max(before, end), True
        ranges.append((start, end, several))
    return [(start, end - start) for start, end, several in ranges if several]


def is_locked(buffer: Buffer, size: int | None = None, *, device: LockDevice | str | None = None) -> bool:
    """Whether `find` finds a region: whether all of a buffer (or of the bytes at an address) is locked as one.

    Parameters
    ----------
    buffer : object
        Anything that `lock` takes, or an address.
    size : int, optional
        Bytes from its start; 1 by default if an address is given.
    device : Device or str, optional
        Where to look; in the maps of all devices by default.

    Returns
    -------
    bool
        False, and no error, for memory that is not locked.

    Examples
    --------
    >>> array = numpy.ones(1000)
    >>> with pinning.lock(array[:500]):
    ...     pinning.is_locked(array[100:200]), pinning.is_locked(array)
    (True, False)
    """
    cdef Bytes found
    if not range_at(buffer, size, &found):
        return False
    if device is not None:
        return map_of(device).map.find(found.ptr, found.size).has_value()
    return map_with(found.ptr, found.size) is not None


cdef PinnedMap map_with(uint64_t ptr, uint64_t size, optional[CRegion]* region=NULL):
    cdef object reference, pinned_map
    cdef optional[CRegion] found
    for reference in maps.values():
        pinned_map = <object>PyWeakref_GetObject(reference)
        if pinned_map is None:
            continue
        found = (<PinnedMap>pinned_map).map.find(ptr, size)
        if found.has_value():
            if region is not NULL:
                region[0] = found
            return pinned_map
    return None


def find(buffer: Buffer, size: int | None = None, *, device: LockDevice | str | None = None) -> Region | None:
    """The locked region that contains all of a buffer, or all `size` bytes (1 by default) at an address.

    `regions` are all regions; `memory_info` also knows memory that is not locked, and asks the vendors, which takes longer.

    Parameters
    ----------
    buffer : object
        Anything that `lock` takes, or an address.
    size : int, optional
        Bytes from its start.
    device : Device or str, optional
        Where to look; in the maps of all devices by default.

    Returns
    -------
    Region or None
        A snapshot; None if no region contains them all.

    Examples
    --------
    >>> array = numpy.ones(1000)
    >>> with pinning.lock(array):
    ...     region = pinning.find(array[100:200])
    >>> region.size, region.references
    (8000, 1)
    """
    cdef Bytes found
    if not range_at(buffer, size, &found):
        return None
    if device is not None:
        return map_of(device).find(found.ptr, found.size)
    cdef optional[CRegion] region
    cdef PinnedMap pinned_map = map_with(found.ptr, found.size, &region)
    return None if pinned_map is None else wrap(dereference(region), pinned_map.device)


cdef Lock held_within(uint64_t ptr, uint64_t size):
    cdef PyObject* lock
    for pinned_map in pinned_maps():
        lock = open_locks.within(<void*>pinned_map, ptr, size, &is_still_held)
        if lock is not NULL:
            return <Lock>lock
    return None


cdef cbool is_still_held(PyObject* lock) noexcept:
    return lock.ob_refcnt > 0 and (<Lock>lock).is_held()  # not dropped just now, nor of memory that has gone


def range_of(buffer: Buffer) -> tuple[int, int]:
    """Address and bytes of a buffer; a bare address is one byte."""
    cdef Bytes found
    if kind_of(buffer).address:
        return int(buffer), 1
    host_memory_of(buffer, None, &found)
    return found.ptr, found.size

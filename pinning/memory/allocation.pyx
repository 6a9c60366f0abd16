# SPDX-License-Identifier: Apache-2.0
"""Allocations: their owner, how they are freed, and which one holds an address.

All state here changes in C while the GIL is held, in steps between which no signal handler runs.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.weakref cimport PyWeakref_GetObject
from libcpp.optional cimport optional
from libcpp.vector cimport vector
from cython.operator cimport dereference

from pagetable.native cimport CRegion as CTaken
from pinning.locking.lock cimport held_within
from pinning.map.native cimport CRegion
from pinning.map.pinned_map cimport PinnedMap
from pinning.runtime.process cimport generation, is_parents

import operator
import os
import warnings
from contextlib import suppress
from weakref import ref
from typing import TYPE_CHECKING

from pinning.errors import (
    ArgumentError,
    InvalidRangeError,
    PinningError,
    StillInUseError,
    StillLockedError,
    VendorError,
)
from pinning.locking import devices
from pinning.plugin import MemoryKind
from pinning.queues.pending import uses
from pinning.runtime.arguments import MOST_BYTES, byte_count, describe
from pinning.runtime.handles import refuse_copy
from pinning.runtime.process import LONGEST, at_exit, at_fork, defer, look_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Any, SupportsIndex

    from pinning.memory.context import Context
    from pinning.plugin import Device, MemoryDevice

cdef extern from "<pinning/owners.hpp>" namespace "pinning" nogil:
    cppclass Owners:
        Owners() except +
        optional[CTaken] enter(uint64_t start, uint64_t size, const void* device, void* allocation) except +
        void leave(uint64_t start, const void* allocation) except +
        void* find(uint64_t address, const void* device) noexcept

cdef enum:
    MOST_REFUSALS = 10  # by the vendor, of what was dropped; then it is lost with its device

cdef tuple KINDS = tuple(MemoryKind)  # in the order of CMemoryKind
cdef dict NUMBERS = {kind: number for number, kind in enumerate(KINDS)}

cdef object LARGEST = MOST_BYTES
cdef dict maps = devices.maps.by_id  # weak references
cdef Owners* owners = new Owners()
cdef dict known_devices = {}  # weak references by id, in the order of their first use
cdef bint ended = False  # whether the program has ended: what is left goes with the process


def _at_exit():
    global ended
    ended = True


def _in_child():
    # Memory belongs to the process that allocated it. The old table is intact, because it changes only under the GIL.
    global owners
    del owners
    owners = new Owners()


at_exit(_at_exit)
at_fork(_in_child)


cdef object kind_of(CMemoryKind kind):
    return KINDS[<int>kind]


cdef CMemoryKind number_of(object kind) except *:
    return <CMemoryKind><int>NUMBERS[kind_named(kind)]


def kind_named(kind: object) -> MemoryKind:
    """Convert a kind, or its value such as ``"host"``, to a MemoryKind. Raises ArgumentError or TypeError."""
    try:
        return MemoryKind(kind)
    except ValueError:
        wrong = ArgumentError if isinstance(kind, str) else TypeError
        raise wrong(
            f"kind is {describe(kind)}; it must be a MemoryKind, or one of {[each.value for each in KINDS]}. A device "
            "is named by device="
        ) from None


cdef uint64_t size_of(object nbytes) except 0:
    return nbytes if type(nbytes) is int and 1 <= nbytes <= LARGEST else byte_count(nbytes)


# ---- which allocation holds an address ----


cdef int enter(Allocation allocation) except -1:
    cdef Extent extent = allocation.extent
    reference = known_devices.get(id(allocation.device))
    if reference is None or PyWeakref_GetObject(reference) is not <PyObject*>allocation.device:
        known_devices.pop(id(allocation.device), None)
        known_devices[id(allocation.device)] = ref(allocation.device)
    cdef optional[CTaken] taken = owners.enter(extent.ptr, extent.size, <void*>allocation.device, <void*>allocation)
    if taken.has_value():
        start, end = dereference(taken).start, int(dereference(taken).start) + dereference(taken).size
        raise PinningError(
            f"{allocation.device.name} has allocated [{extent.ptr:#x}, {int(extent.ptr) + extent.size:#x}), but "
            f"[{start:#x}, {end:#x}) is allocated already: it was freed through the vendor; use pinning.free"
        )
    return 0


cdef int leave(Allocation allocation) except -1:
    owners.leave(allocation.extent.ptr, <void*>allocation)
    return 0


cdef Allocation found_at(void* found):
    # One that is being deallocated, while callbacks of its weak references run, must not be returned.
    if found is NULL or (<PyObject*>found).ob_refcnt == 0:
        return None
    return <Allocation><PyObject*>found


cdef Allocation lookup(uint64_t ptr):
    return found_at(owners.find(ptr, NULL))


def find(ptr: SupportsIndex, first: Iterable[Device] = ()) -> Allocation | None:
    """The allocation that holds the byte at an address, on these devices or else on any.

    Devices of different vendors may use the same address.
    """
    cdef uint64_t address
    try:
        address = operator.index(ptr)
    except OverflowError:
        return None
    for device in first:
        found = found_at(owners.find(address, <void*>device))
        if found is not None:
            return found
    return lookup(address)


def devices_used() -> list[Device]:
    """The devices on which something has been allocated, in the order of their first use."""
    return [device for known in list(known_devices.values()) if (device := known()) is not None]


cdef object locked_within(uint64_t ptr, uint64_t size):
    cdef PyObject* there
    cdef PinnedMap on
    cdef vector[CRegion] regions
    cdef CRegion region
    for known in list(maps.values()):
        there = PyWeakref_GetObject(known)
        if there is <PyObject*>None or (<PinnedMap>there).map.size() == 0:
            continue
        on = <PinnedMap>there
        regions = on.map.overlapping(ptr, size, False)
        for region in regions:
            if region.references > 0:
                return on.find(region.start)
    return None


cdef int check_part_unlocked(Allocation part) except -1:
    # A region covers the whole, so its count only says whether a closer look is needed.
    if locked_within(part.extent.ptr, part.extent.size) is not None:
        lock = held_within(part.extent.ptr, part.extent.size)
        if lock is not None:
            raise StillLockedError(f"there is a lock in {part!r}, {lock!r}: unlock that first")
    return 0


# ---- the allocation ----


cdef class Allocation(Freeable):
    """Memory of one kind, made by `alloc` or by a queue's ``alloc``; a context manager, which frees it at the end.

    An allocation that is dropped without being freed warns (ResourceWarning) and is freed soon afterwards. In a forked
    child it counts as freed: memory belongs to the process that allocated it.

    HOST and SHARED memory is a writable buffer of bytes for `memoryview`, NumPy, ``torch.frombuffer`` and DLPack. It
    cannot be freed while such a buffer is exported.

    Attributes
    ----------
    ptr : int
        The first byte's address: the host's of HOST memory, else the device's.
    device_ptr : int
        The same byte's address for `device`.
    size, nbytes : int
        Bytes, exactly as requested.
    kind : MemoryKind
    context : Context
        Its owner.
    device : MemoryDevice
        Where it was allocated.
    pool : Pool or None
        The pool that it came from, if any.
    """

    def __init__(self):
        raise TypeError("an Allocation comes from pinning.alloc or from a queue's alloc")

    def __cinit__(self):
        self.state = FREED  # until it has memory
        self.made_in = generation()

    cdef int begin(self, uint64_t ptr, uint64_t device_ptr, uint64_t size, CMemoryKind kind, context, device,
                   pool) except -1:
        self.extent.ptr, self.extent.device_ptr = ptr, device_ptr
        self.extent.size, self.extent.kind = size, kind
        self.context, self.device, self.pool = context, device, pool
        enter(self)
        self.state = LIVE
        return 0

    # ---- what it is ----

    @property
    def ptr(self) -> int:
        self.raise_error()
        return self.extent.ptr

    @property
    def device_ptr(self) -> int:
        self.raise_error()
        return self.extent.device_ptr

    @property
    def size(self) -> int:
        return self.extent.size

    @property
    def nbytes(self) -> int:
        return self.extent.size

    @property
    def kind(self) -> MemoryKind:
        return kind_of(self.extent.kind)

    @property
    def read_only(self) -> bool:
        """Whether its pool promises that devices only read it."""
        return self.pool is not None and self.pool.read_only

    @property
    def freed(self) -> bool:
        """Whether it is freed, or of another process."""
        return not self.is_live()

    cdef int raise_error(self) except -1:
        if self.error is not None:
            raise self.error.with_traceback(None)  # else each call would lengthen the traceback of the same error
        return 0

    cdef bint is_live(self) noexcept:
        return self.state == LIVE and not is_parents(self.made_in)

    cdef int check_live(self) except -1:
        self.raise_error()
        if not self.is_live():
            raise InvalidRangeError(f"{self!r} no longer has any bytes to copy or fill: use it before it is freed, or "
                                    "allocate another")
        if self.asleep != 0 and self.asleep != PyThread_get_thread_ident():
            raise InvalidRangeError(f"{self!r} is asleep: wake it first")
        return 0

    def _set_asleep(self, bint asleep) -> bool:
        """Refuse other threads' copies and fills, or take them again. Returns whether a thread is submitting such work."""
        self.asleep = PyThread_get_thread_ident() if asleep else 0
        return self.submissions > 0

    # ---- its end ----

    def free(self) -> None:
        """Free the memory. Work submitted outside of this package's queues must be complete.

        Raises
        ------
        InvalidRangeError
            It is freed already.
        StillInUseError
            A queue still uses it, or a buffer of its bytes is exported.
        StillLockedError
            There is a lock in it.
        VendorError
            The vendor refused.

        After any error but the first it is as before and can be freed again. In a child process after fork nothing
        happens.
        """
        if is_parents(self.made_in):
            return
        self.claim()
        try:
            self.check_unused()
            self.check_unlocked()
            self.check_unexported()
            self.give_back()
        except BaseException:
            if self.state == LEAVING:
                self.state = LIVE
            raise
        self.state = FREED
        self._parked = None

    cdef int claim(self) except -1:
        """Begin to free it. If two threads do, one is refused."""
        self.raise_error()
        if is_parents(self.made_in):
            raise PinningError(f"{self!r} belongs to the process that allocated it, and this is a fork of it, process "
                               f"{os.getpid()}")
        if self.state != LIVE:
            raise InvalidRangeError(f"{self!r} cannot be freed again")
        if self.submissions > 0:
            raise StillInUseError(f"{self!r} is in use by work that another thread is submitting: wait for that first")
        self.state = LEAVING
        return 0

    cdef int check_unused(self) except -1:
        if uses(self):
            raise StillInUseError(f"{self!r} is in use by work of a queue: wait for that first")
        return 0

    cdef int check_unexported(self) except -1:
        if self.exports > 0:
            raise StillInUseError(f"{self!r} has {self.exports} exported {"buffer" if self.exports == 1 else "buffers"}, such as memoryviews and NumPy arrays of "
                                  "its bytes: release them first, with `del` or release()")
        return 0

    cdef int check_unlocked(self) except -1:
        region = locked_within(self.extent.ptr, self.extent.size)
        if region is not None:
            raise StillLockedError(f"there is a lock in {self!r}, by {region!r}: unlock that first")
        return 0

    cdef int give_back(self) except -1:
        """Return the memory to where it came from. After an error nothing has changed, unless `state` is FREED."""
        self.context._take_back(self)
        return 0

    def __enter__(self) -> Self:
        if self.error is None and not self.is_live():
            raise InvalidRangeError(f"{self!r} cannot be used: allocate again")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.is_live():
            return
        if error is None:
            self.free()
            return
        with suppress(StillInUseError, StillLockedError):  # the block's error is raised; memory is freed when dropped
            self.free()

    def __del__(self):
        if ended or not self.is_live():
            return
        try:
            warnings.warn(f"{self!r} was dropped; free it, or use `with`", ResourceWarning, stacklevel=1, source=self)
        finally:
            # Deferred, because the garbage collector may run this at any point, under any lock.
            defer(end_dropped, self.free)

    def __dealloc__(self):
        if self.state != FREED and not is_parents(self.made_in):  # the vendor did not take it back: it is lost
            owners.leave(self.extent.ptr, <void*>self)

    def __array__(self, dtype=None, copy=None):
        # Called only if there is no host buffer. Without this method NumPy would make an array of one object.
        raise TypeError(f"{self!r} is not memory that NumPy can read: copy it into an array with pinning.copy(array, memory)")

    def __reduce__(self):
        refuse_copy(self, "its memory has one owner; allocate more, and copy the bytes with pinning.copy")

    def __repr__(self):
        if self.error is not None:
            return f"<Allocation of {self.extent.size} bytes, refused: {self.error}>"
        state = "" if self.state != FREED and not is_parents(self.made_in) else ", freed"
        ptr, size = int(self.extent.ptr), self.extent.size
        return f"<Allocation [{ptr:#x}, {ptr + size:#x}), {size} bytes, {self.kind.name} of {self.device.name}{state}>"

    # ---- its bytes ----

    cdef int check_bytes(self) except -1:
        if self.extent.kind == CMemoryKind.device:
            raise BufferError("memory of kind DEVICE is not the host's: copy it")
        if not self.is_live():
            raise InvalidRangeError(f"{self!r} no longer has any bytes")
        return 0

    def __getbuffer__(self, Py_buffer* view, int flags):
        self.check_bytes()
        PyBuffer_FillInfo(view, self, <void*>self.extent.ptr, self.extent.size, False, flags)
        self.count_export(1)

    def __releasebuffer__(self, Py_buffer* view):
        self.count_export(-1)

    cdef void count_export(self, int change) noexcept:
        self.exports += change

    @property
    def __array_interface__(self) -> dict[str, Any]:
        try:
            self.check_bytes()
        except BufferError as error:
            raise AttributeError(str(error)) from None
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.ptr, False), "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        self.check_bytes()
        return 1, 0  # the CPU

    def __dlpack__(self, **how: Any) -> Any:
        import numpy

        return numpy.frombuffer(self, numpy.uint8).__dlpack__(**how)


def end_dropped(end: Callable[[], None], int refusals=0) -> None:
    """Free or close what was dropped; if that is refused, as while its queue is captured, again a moment later."""
    try:
        end()
        return
    except InvalidRangeError:  # it is freed already
        return
    except VendorError:
        refusals += 1
        if refusals == MOST_REFUSALS:
            raise
    except PinningError:
        pass
    look_after(defer, end_dropped, end, refusals, pause=LONGEST)

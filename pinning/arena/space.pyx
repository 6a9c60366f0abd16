# SPDX-License-Identifier: Apache-2.0
"""Which bytes of an arena are allocated.

All state here is changed in C while the GIL is held, in steps between which no signal handler runs.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uint64_t

from pinning.memory.allocation cimport FREED, Allocation, check_part_unlocked, leave
from pinning.plugin.native cimport CMemoryKind
from pinning.runtime.process cimport generation, is_parents

import os
import threading
from typing import TYPE_CHECKING

from pinning.errors import InvalidRangeError, PinningError, StillInUseError
from pinning.runtime.arguments import alignment as alignment_of
from pinning.runtime.arguments import integer, integers
from pinning.runtime.handles import refuse_copy

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVarTuple, Unpack

    import numpy
    from numpy.typing import DTypeLike, NDArray

    from pinning.arena.arena import Arena
    from pinning.arena.memory import Memory
    from pinning.plugin import Device

    Arguments = TypeVarTuple("Arguments")

cdef extern from "<pinning/extents.hpp>" namespace "pinning" nogil:
    cppclass Extents:
        cppclass Extent:
            uint64_t start
            uint64_t size
        Extents() except +
        void add(uint64_t start, uint64_t size) except +
        Extent* take(uint64_t size, uint64_t step, bint in_stretch) except +
        void give_back(Extent* extent) noexcept
        uint64_t largest() noexcept

ctypedef Extents.Extent* ExtentPointer

cdef enum:
    CACHE_LINE = 64


cdef class Space:
    """The bytes of an arena, and which allocation has which of them."""

    cdef Extents* extents
    cdef object memory_  # owns the bytes
    cdef uint64_t start, bytes, grain
    cdef uint64_t given, given_upto, taken  # allocatable bytes, where they end, and bytes in allocations
    cdef Py_ssize_t allocations, exports
    cdef bint shut  # nothing can be allocated or exported any more
    cdef object changing  # a lock: one thread at a time changes the locks, or closes the arena
    cdef unsigned made_in

    def __cinit__(self):
        self.extents = new Extents()
        self.shut = True
        self.changing = threading.RLock()
        self.made_in = generation()

    def __dealloc__(self):
        del self.extents

    def _alone(self, function: Callable[[Unpack[Arguments]], None], *arguments: Unpack[Arguments]) -> None:
        """Call a function while no other thread is in such a call. Ctrl-C cannot leave the lock held: C acquires it."""
        with self.changing:
            return function(*arguments)

    def _alone_in_child(self) -> None:
        """In a forked child: replace the lock, which a thread of the parent may have held. The allocations are the parent's."""
        self.changing = threading.RLock()
        self.allocations = self.taken = 0

    def _begin(self, memory: Memory, uint64_t nbytes, uint64_t unit) -> None:
        self.memory_, self.start, self.bytes, self.grain = memory, memory.ptr, nbytes, unit
        self.shut = False

    def _give(self, uint64_t offset, uint64_t nbytes) -> None:
        """Make bytes allocatable. A second call does nothing."""
        if offset < self.given_upto:
            return
        self.extents.add(self.start + offset, nbytes)
        self.given += nbytes
        self.given_upto = offset + nbytes
        self.bytes = max(self.bytes, offset + nbytes)

    def _take(self, uint64_t size, alignment: int | None, device: Device) -> ArenaAllocation | None:
        cdef ArenaAllocation made = ArenaAllocation.__new__(ArenaAllocation)
        cdef uint64_t step = CACHE_LINE
        cdef bint in_units = alignment is None and self.grain > 0
        if alignment is not None:
            step = alignment_of(alignment)
        elif in_units:
            step = self.grain
        self._check()
        if is_parents(self.made_in):
            raise PinningError(f"the allocations of {self!r} are those of the process that made it, and this is a fork "
                               f"of it, process {os.getpid()}: use asarray, or an arena of its own")
        cdef ExtentPointer extent = self.extents.take(size, step, in_units)
        if extent is NULL:
            return None
        made.extent_, made.space = extent, self
        self.allocations += 1
        self.taken += extent.size
        made.begin(extent.start, extent.start, size, CMemoryKind.host, None, device, None)
        return made

    def _claim(self) -> None:
        """Refuse allocations and exports from now on. Raises StillInUseError if there are any."""
        if self.allocations:
            raise StillInUseError(f"{self!r} has {self.allocations} {"allocation" if self.allocations == 1 else "allocations"}, of {self.taken} bytes: free them first")
        if self.exports:
            raise StillInUseError(f"{self!r} has {self.exports} exported {"buffer" if self.exports == 1 else "buffers"}, such as memoryviews and NumPy arrays of its "
                                  "bytes: release them first, with `del` or release()")
        self.shut = True

    def _unclaim(self) -> None:
        self.shut = False

    cdef bint gone(self):
        return self.shut or not self.memory_.here

    cpdef _check(self):  # type: () -> None
        if self.gone():
            raise PinningError(f"{self!r} is closed, or of another process: make another")

    @property
    def _ends(self) -> bool:
        """Whether it is closed, or being closed."""
        return self.gone()

    @property
    def _is_parents(self) -> bool:
        return is_parents(self.made_in)

    @property
    def nbytes(self) -> int:
        """Bytes, exactly as requested."""
        return self.bytes

    @property
    def ptr(self) -> int:
        """The host address of the first byte."""
        self._check()
        return self.start

    @property
    def allocated(self) -> int:
        """Bytes in allocations."""
        return self.taken

    @property
    def available(self) -> int:
        """Bytes that are left for allocations."""
        return 0 if self.gone() else self.given - self.taken

    @property
    def largest_available(self) -> int:
        """Bytes of the largest free block."""
        return 0 if self.gone() else self.extents.largest()

    # ---- its bytes ----

    def __getbuffer__(self, Py_buffer* view, int flags):
        self._check()
        PyBuffer_FillInfo(view, self, <void*>self.start, self.bytes, False, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.exports -= 1

    @property
    def __array_interface__(self) -> dict[str, Any]:
        self._check()
        return {"shape": (self.bytes,), "typestr": "|u1", "data": (self.start, False), "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        self._check()
        return 1, 0  # the CPU

    def __dlpack__(self, **how: Any) -> Any:
        import numpy

        return numpy.frombuffer(self, numpy.uint8).__dlpack__(**how)

    def asarray(
        self, shape: int | tuple[int, ...] | None = None, dtype: DTypeLike = "u1", offset: int = 0
    ) -> NDArray[Any]:
        """Its bytes as an array, without a copy. The arena cannot be closed while the array exists.

        Parameters
        ----------
        shape : int or tuple of int, optional
            In elements; by default as many as fit.
        dtype : dtype, optional
            Of an element, bytes by default.
        offset : int, optional
            Of the first element, in bytes.

        Raises
        ------
        InvalidRangeError
            The array does not fit, or a length is negative.
        PinningError
            The arena is closed.
        TypeError
            The shape or the offset is no integer, or it is not a dtype, or one with Python objects.
        """
        return array_of(self, shape, dtype, offset)

    def __reduce__(self):
        refuse_copy(self, "its memory has one owner; make another, or attach to its name in another process")


@cython.no_gc_clear
cdef class ArenaAllocation(Allocation):
    """Bytes of an arena, allocated by `Arena.allocate`. HOST memory, freed by the rules of `pinning.alloc`.

    Attributes
    ----------
    arena : Arena
        The arena of these bytes; it cannot be closed before this is freed.
    """

    cdef ExtentPointer extent_
    cdef Space space

    def __dealloc__(self):
        self.put()

    cdef void put(self) noexcept:
        if self.extent_ is not NULL and not is_parents(self.made_in):
            self.space.allocations -= 1
            self.space.taken -= self.extent_.size
            self.space.extents.give_back(self.extent_)
        self.extent_ = NULL

    cdef void count_export(self, int change) noexcept:
        Allocation.count_export(self, change)
        self.space.exports += change  # a forked child closes the arena though there are allocations

    @property
    def arena(self) -> Arena:
        return self.space

    @property
    def device_ptr(self) -> int:
        """The first byte's address for `device`. Waits until it is locked; raises as `Arena.device_ptr_of`."""
        self.check_bytes()
        return self.space.device_ptr_of(self.extent.ptr, self.extent.size, self.device)

    def asarray(
        self, shape: int | tuple[int, ...] | None = None, dtype: DTypeLike = "u1", offset: int = 0
    ) -> NDArray[numpy.generic]:
        """Its bytes as an array, without a copy; see `Arena.asarray`. This cannot be freed while the array exists.

        Parameters
        ----------
        shape, dtype, offset
            As for `Arena.asarray`.
        """
        return array_of(self, shape, dtype, offset)

    cdef int check_unlocked(self) except -1:
        return check_part_unlocked(self)

    cdef int give_back(self) except -1:
        leave(self)
        self.put()
        self.state = FREED
        return 0


cdef array_of(owner, shape, dtype, offset):
    import numpy

    from pinning.interop.dtypes import usable_dtype

    kind = usable_dtype(dtype)
    start = integer(offset, "offset")
    lengths = None if shape is None else integers(shape, "shape", "a number of elements")
    # `numpy.ndarray` keeps no buffer of what it is given, but `frombuffer` does. It raises if there are no bytes any more.
    whole = numpy.frombuffer(owner, numpy.uint8)
    if not 0 <= start <= whole.nbytes:
        raise InvalidRangeError(f"offset is {start}; it must lie between 0 and {whole.nbytes}")
    if lengths is None:
        lengths = ((whole.nbytes - start) // kind.itemsize,)
    if any([length < 0 for length in lengths]):
        raise InvalidRangeError(f"shape is {lengths}; nothing in it can be negative")
    try:
        return numpy.ndarray(lengths, kind, whole, start)
    except (TypeError, ValueError) as error:
        raise InvalidRangeError(f"no array of shape {lengths} and dtype {kind} at offset {start} of {owner!r}, which has "
                                f"{whole.nbytes} bytes: {error}") from None

# SPDX-License-Identifier: Apache-2.0
"""One piece of memory, its owner, and its end."""

from __future__ import annotations

import _thread
import operator
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pinning.errors import InvalidRangeError, PinningError, StillInUseError
from pinning.memory import owned
from pinning.plugin import MemoryDevice, MemoryKind

if TYPE_CHECKING:
    from pinning.memory.context import Context


class Allocation:
    """Memory of one kind, made by `alloc` or by a queue's ``alloc``; a context manager, which frees it at the end.

    What is dropped without being freed warns (ResourceWarning) and is freed soon after. In a child process after fork
    it counts as freed: memory belongs to the process that allocated it.

    HOST and SHARED memory has ``__array_interface__``, as bytes: ``numpy.asarray(allocation)`` is the memory itself and
    keeps the allocation, though not from being freed.

    Attributes
    ----------
    ptr : int
        The first byte's address: the host's of HOST memory, else the device's.
    device_ptr : int
        The same byte's address for `device`.
    size : int
        Bytes, exactly as asked for.
    kind : MemoryKind
    context : Context
        Who owns it.
    device : MemoryDevice
        Where it was allocated.
    pool : Pool or None
        Where it came from.
    """

    __slots__ = ("__weakref__", "_ended", "_process", "context", "device", "device_ptr", "kind", "pool", "ptr", "size")

    def __init__(
        self,
        ptr: int,
        device_ptr: int,
        size: int,
        kind: MemoryKind,
        context: Context,
        device: MemoryDevice,
        pool: Any = None,
    ) -> None:
        self.ptr = ptr
        self.device_ptr = device_ptr
        self.size = size
        self.kind = kind
        self.context = context
        self.device = device
        self.pool = pool
        self._process = owned.process
        self._ended = False

    @property
    def read_only(self) -> bool:
        """Whether its pool promises that devices only read it."""
        return self.pool is not None and bool(self.pool.read_only)

    @property
    def freed(self) -> bool:
        """Whether it is freed, or of another process."""
        return self._ended or self._process != owned.process

    def free(self) -> None:
        """Give the memory back. Work that was submitted elsewhere than in our queues must be done.

        Raises
        ------
        InvalidRangeError
            It is freed already.
        StillInUseError
            A queue still uses it.
        StillLockedError
            Someone holds a lock in it.
        VendorError
            The vendor refused.

        After any error but the first it is as before and can be freed again. In a child process after fork nothing
        happens.
        """
        if self._process != owned.process:
            return
        self.claim()
        try:
            if self.busy():
                raise StillInUseError(f"{self!r} is in use by work of a queue: wait for that first")
            self.give_back()
        except BaseException:
            self.unclaim()
            raise

    def claim(self) -> None:
        """Mark it freed, once: of two threads that free it one is refused."""
        if self._process != owned.process:
            raise PinningError(f"{self!r} belongs to process {self._process}, of which this is a fork")
        if self._ended:
            raise InvalidRangeError(f"{self!r} cannot be freed again")
        self._ended = True  # nothing was called since the look, so no other thread ran

    def unclaim(self) -> None:
        """It could not be freed after all."""
        self._ended = False

    def busy(self) -> bool:
        """Whether it cannot be freed now, because of work in a queue that uses it."""
        return any(find(self) for find in uses)

    def give_back(self) -> None:
        """Return the memory to where it came from; on failure nothing has changed."""
        raise NotImplementedError

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.kind is MemoryKind.DEVICE:
            raise AttributeError("memory of kind DEVICE is not the host's: copy it")
        if self.freed:
            raise InvalidRangeError(f"{self!r} has no bytes any more")
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.ptr, False), "version": 3}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.freed:
            self.free()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # this module may be gone by then
        if is_finalizing() or getattr(self, "_ended", True) or self.freed:  # half made, freed, or all is ending
            return
        try:
            warnings.warn(f"{self!r} was dropped; free it, or use `with`", ResourceWarning, stacklevel=2, source=self)
        finally:
            # Not here: the garbage collector runs this in the middle of anything, under any lock.
            _thread.start_new_thread(self._free_dropped, ())

    def _free_dropped(self) -> None:
        with suppress(PinningError):  # nobody is there to hear
            self.free()

    def __repr__(self) -> str:
        state = ", freed" if self.freed else ""
        kind, device = self.kind.name, self.device.name
        return f"<Allocation [{self.ptr:#x}, {self.ptr + self.size:#x}), {self.size} bytes, {kind} of {device}{state}>"


def size_of(nbytes: int) -> int:
    """The number of bytes that somebody asks for.

    Raises
    ------
    InvalidRangeError
        It is below 1, or more than there are addresses.
    """
    size = operator.index(nbytes)
    if not 1 <= size <= sys.maxsize:
        raise InvalidRangeError(f"size is {size}; an allocation has at least 1 byte and at most {sys.maxsize}")
    return size


uses: list[Callable[[object], Sequence[object]]] = []  # ask for the work that uses an object; queues are not known here

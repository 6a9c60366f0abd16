# SPDX-License-Identifier: Apache-2.0
"""Brings new memory of an arena in and locks it, in the background."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from pinning.arena.memory import Memory
from pinning.errors import LockLimitError
from pinning.map import Hold, PinnedMap

PIECE = 16 << 20  # bytes to bring in at a time
_THREADS = 16  # at most; more did not help where it was measured
_WORTH_A_THREAD = 4 * PIECE

_MADV_POPULATE_WRITE = 23
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Ready:
    """A part of an arena on its way to be locked for some devices: for all of them or, after an error, for none.

    Parameters
    ----------
    memory : Memory
        Kept until it is done.
    start, size : int
        Which bytes, counted from the first of the memory.
    maps : iterable of PinnedMap
        Of the devices.
    piece : int or None
        Bytes that a vendor locks at a time.
    cpus : collection of int
        The processors that bring the pages in, and so whose node they come from.
    """

    def __init__(
        self,
        memory: Memory,
        start: int,
        size: int,
        maps: Iterable[PinnedMap],
        piece: int | None,
        cpus: Collection[int],
    ) -> None:
        self.memory, self.start, self.size = memory, start, size
        self.maps, self.piece, self.cpus = tuple(maps), piece, cpus
        self.locked = 0
        self.error: BaseException | None = None
        self.over = threading.Event()
        self.stopped = False
        self._turn = [None]  # who pops it does the work

    def begin(self) -> None:
        """Start a thread for it, unless that has been done. Raises RuntimeError where no thread is to be had."""
        if self._turn:
            threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """Have it end soon, unless it has ended."""
        if not self.over.is_set():
            self.stopped = True
            self.begin()  # its thread says that it is over

    def again(self) -> Ready:
        """Itself, or the same anew if it was stopped before it was locked."""
        if self.locked or not self.stopped:
            return self
        return Ready(self.memory, self.start, self.size, self.maps, self.piece, self.cpus)

    def _run(self) -> None:
        try:
            self._turn.pop()
        except IndexError:
            return
        holds: list[Hold] = []
        try:
            first = self.memory.ptr + self.start
            bring_in(first, self.size, self.cpus, lambda: self.stopped)
            for each in self.maps:
                if self.stopped:
                    return
                holds.append(Hold(each, first, self.size, None, self.piece, None))
            self.memory.holds.extend(holds)
            self.locked = self.size
        except BaseException as error:
            self.error = error
        finally:
            if not self.locked:
                for hold in holds:
                    with suppress(Exception):
                        hold.unlock()
            self.over.set()


def bring_in(ptr: int, size: int, cpus: Collection[int], stopped: Callable[[], bool]) -> None:
    """Have threads on these processors bring pages in that may be written to; contents stay as they are.

    Raises
    ------
    LockLimitError
        Memory ran out.
    """
    end = ptr + size
    pieces = iter(range(ptr & -mmap.PAGESIZE, end, PIECE))  # to take the next one is one step
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with suppress(OSError):  # not allowed here: pages come from wherever this thread is
                os.sched_setaffinity(0, cpus)  # of this thread alone
            for start in pieces:
                if errors or stopped():
                    return
                _touch(start, min(PIECE, end - start))
        except BaseException as error:
            errors.append(error)

    # Threads even if it is one: the caller's processors stay as they are.
    count = max(1, min(_THREADS, len(cpus), size // _WORTH_A_THREAD))
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
    finally:
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    if errors:
        raise errors[0]


def _touch(start: int, size: int) -> None:
    while _libc.madvise(start, size, _MADV_POPULATE_WRITE) != 0:
        code = ctypes.get_errno()
        if code == errno.EINVAL:  # Linux before 5.14: the lock brings them in
            return
        if code in (errno.ENOMEM, errno.EFAULT):
            raise LockLimitError(
                f"memory ran out while [{start:#x}, {start + size:#x}) of an arena was brought in "
                f"({os.strerror(code)}): make a smaller one"
            )
        if code not in (errno.EAGAIN, errno.EINTR):
            raise OSError(code, os.strerror(code), "madvise")

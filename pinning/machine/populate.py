# SPDX-License-Identifier: Apache-2.0
"""Populate the pages of a range before it is locked.

Most of the time that a lock of fresh memory takes is spent on populating it. Done here, in pieces, that can be
interrupted and its progress reported; done by the lock, it cannot.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from array import array
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pinning.errors import InvalidRangeError, LockLimitError
from pinning.machine.mappings import mappings
from pinning.machine.room import file_system

# A registration that begins meanwhile waits for the call that populates a piece, and so does the GPU: beside an arena
# of 32 GiB a tiny kernel waited at most 4 ms with 2 MiB, 8 with 4 and up to 57 with 16 (H200). 2 MiB took no longer.
PIECE = 2 << 20
_PAGE = mmap.PAGESIZE
_WINDOWS, _WINDOW = 16, 16 * _PAGE  # one mincore takes 4 us plus 70 ns for each page
_HUGE_PAGE = 2 << 20
_THREADS = 4  # more did not help in any measurement
_MADV_HUGEPAGE, _MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 14, 22, 23
_IOV_MAX = 1024
_MS_ASYNC = 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
_libc.msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.process_vm_readv.argtypes = (ctypes.c_int, *(ctypes.c_void_p, ctypes.c_ulong) * 2, ctypes.c_ulong)


class _Mapping(NamedTuple):
    start: int
    end: int
    access: bytes
    anonymous: bool


def populate(
    ptr: int,
    size: int,
    *,
    progress: Callable[[int, int], object] | None = None,
    piece: int = PIECE,
    resident: bool | None = None,
) -> None:
    """Populate the pages of a range, as huge pages if the system allows that; their contents do not change.

    Returns at once if the pages seem to be in memory (`resident`; if None, `is_resident`). Other threads may use the
    memory meanwhile. `progress(done, total)` is called after each piece. Between two pieces KeyboardInterrupt can be
    raised; pages populated until then stay populated. Raises InvalidRangeError if the range is not mapped, not readable
    or past the end of its file, LockLimitError if memory ran out.
    """
    if piece < 1:
        raise ValueError(f"piece is {piece}; it must be at least 1 byte")
    if not (is_resident(ptr, size) if resident is None else resident):
        start, end = _pages(ptr, size)
        step = -(-piece // _PAGE) * _PAGE
        for mapping in _mappings(start, end):
            _ask_for_huge_pages(mapping)
            for low in range(mapping.start, mapping.end, step):
                high = min(low + step, mapping.end)
                _touch(low, high, mapping.access)
                if progress and high < end:
                    progress(high - ptr, size)
    if progress:
        progress(size, size)


class Populating:
    """Populates a range in several threads, from its start on. The range must stay mapped until `stop` returns.

    Any of the threads calls ``reached(done)``, in bytes from `ptr` on, or ``reached(None)`` after an error, which is
    then in `error`. The threads run on `cpus`, so the pages come from their node. Raises InvalidRangeError if part of
    the range is not mapped.
    """

    def __init__(
        self,
        ptr: int,
        size: int,
        reached: Callable[[int | None], object],
        *,
        threads: int | None = None,
        cpus: Collection[int] | None = None,
        huge_pages: bool = True,
    ) -> None:
        start, end = _pages(ptr, size)
        self.error: BaseException | None = None
        self._ptr, self._size, self._reached = ptr, size, reached
        found = _mappings(start, end)
        self._cpus = cpus
        for each in found if huge_pages else ():
            _ask_for_huge_pages(each)
        self._parts = [
            (low, min(low + PIECE, each.end), each.access)
            for each in found
            for low in range(each.start, each.end, PIECE)
        ]
        self._next = iter(range(len(self._parts)))  # taking the next one is one step in C
        self._turn = threading.Lock()
        self._touched: set[int] = set()  # parts that were finished out of order
        self._done = 0
        self._stopped = False
        most = min(_THREADS, len(os.sched_getaffinity(0))) if threads is None else threads
        self._ended, self._running = threading.Semaphore(0), 0
        workers = [
            threading.Thread(target=self._work_there, name="pinning populate", daemon=True)
            for _ in range(min(most, len(self._parts)))
        ]
        try:
            for thread in workers:
                thread.start()
                self._running += 1
        except RuntimeError:  # no more threads can be started
            if not self._running:
                self._work()

    def stop(self) -> None:
        """End the threads, each after its current piece, and wait for them."""
        self._stopped = True
        for _ in range(self._running):
            self._ended.acquire()  # join would register a foreign calling thread in `threading` permanently
            self._running -= 1

    def _work_there(self) -> None:
        if self._cpus is not None:
            with suppress(OSError):  # not allowed here: pages come from the node where this thread runs
                os.sched_setaffinity(0, self._cpus)  # of this thread only
        try:
            self._work()
        finally:
            self._ended.release()

    def _work(self) -> None:
        for number in self._next:
            if self._stopped or self.error is not None:
                return
            try:
                _touch(*self._parts[number])
            except BaseException as error:
                self.error = error
                self._reached(None)
                return
            with self._turn:
                self._touched.add(number)
                while self._done in self._touched:
                    self._touched.discard(self._done)
                    self._done += 1
                last = self._done == len(self._parts)
                done = self._size if last else max(self._parts[self._done][0] - self._ptr, 0)
                self._reached(done)


def is_resident(ptr: int, size: int) -> bool:
    """Whether the pages of a range seem to be in memory; of a large range only samples are checked.

    Pages of a file count as soon as they are cached, even if a private mapping has yet to copy them. The kernel reports
    a file that this user may not write as cached entirely. Raises InvalidRangeError if the range is not mapped.
    """
    start, end = _pages(ptr, size)
    if end - start <= _WINDOWS * _WINDOW:
        return _window_is_resident(start, end - start)
    last = (end - start - _WINDOW) // _PAGE
    windows = (start + last * window // (_WINDOWS - 1) * _PAGE for window in range(_WINDOWS))
    return all(_window_is_resident(window, _WINDOW) for window in windows)


def check_mapped(ptr: int, size: int) -> None:
    """Raise InvalidRangeError if part of a range is not mapped."""
    start, end = _pages(ptr, size)
    if _libc.msync(start, end - start, _MS_ASYNC) and ctypes.get_errno() == errno.ENOMEM:  # it does nothing else
        raise _not_mapped(start, end)


def huge_page_mode(setting: Path = Path("/sys/kernel/mm/transparent_hugepage/enabled")) -> str:
    """When the kernel uses huge pages for ordinary memory: ``"always"``, ``"madvise"`` (if asked to) or ``"never"``."""
    try:
        modes = setting.read_text("utf-8")
    except OSError:
        return "never"
    return modes.partition("[")[2].partition("]")[0]


def ask_for_huge_pages(ptr: int, size: int) -> None:
    """Request huge pages for the untouched part of a mapped range; the system may decline."""
    for mapping in _mappings(*_pages(ptr, size)):
        _ask_for_huge_pages(mapping)


def _pages(ptr: int, size: int) -> tuple[int, int]:
    return ptr & -_PAGE, (ptr + size + _PAGE - 1) & -_PAGE


def _window_is_resident(start: int, size: int) -> bool:
    residence = ctypes.create_string_buffer(size // _PAGE)
    if _libc.mincore(start, size, residence) == 0:
        return b"\0" not in residence.raw
    if ctypes.get_errno() == errno.ENOMEM:
        raise _not_mapped(start, start + size)
    return False  # mincore is not permitted here, such as in a sandbox.


def _not_mapped(start: int, end: int) -> InvalidRangeError:
    return InvalidRangeError(f"not mapped: some of [{start:#x}, {end:#x}); was its owner freed?")


def _mappings(start: int, end: int) -> list[_Mapping]:
    """The mappings that make up a range, each clipped to it."""
    found = []
    reached = start
    try:
        for each in mappings(start, end):
            if each.start > reached:
                break
            found.append(_Mapping(reached, min(each.end, end), each.access, each.inode == 0))
            reached = found[-1].end
    except OSError:  # /proc cannot be read: assume that the range is readable
        return [_Mapping(start, end, b"r--s", False)]
    if reached < end:
        raise _not_mapped(start, end)
    return found


def _ask_for_huge_pages(mapping: _Mapping) -> None:
    if mapping.anonymous and mapping.end - mapping.start >= _HUGE_PAGE:
        _libc.madvise(mapping.start, mapping.end - mapping.start, _MADV_HUGEPAGE)  # A hint: it may fail.


def _touch(start: int, end: int, access: bytes) -> None:
    # A lock breaks copy-on-write, so private pages are touched by a write, which makes the copy. Shared pages are
    # only read: a write would make the kernel write the whole file back.
    private_writable = access[1:2] == b"w" and access[3:4] == b"p"
    if _libc.madvise(start, end - start, _MADV_POPULATE_WRITE if private_writable else _MADV_POPULATE_READ) == 0:
        return
    code = ctypes.get_errno()
    if code == errno.ENOMEM:
        _window_is_resident(start, end - start)  # raises if a page is not mapped
        raise LockLimitError(f"memory ran out while [{start:#x}, {end:#x}) was brought in; free some, or lock less")
    if code == errno.EFAULT:
        _check_file_system(start, end)
    if code == errno.EFAULT or access.startswith(b"--"):
        raise InvalidRangeError(
            f"some of [{start:#x}, {end:#x}) cannot be brought into memory: it is not readable, its file is "
            "shorter than the mapping, or its file system was full"
        )
    # Linux before 5.14, or a mapping that refuses. If a read would not make the copy, leave it to the lock.
    if not private_writable:
        _read_each_page(start, end)


def _check_file_system(start: int, end: int) -> None:
    """Raise LockLimitError if the file of these pages is long enough, but its file system has no room for them."""
    with suppress(OSError):
        for mapping in mappings(start, start + 1):
            if not mapping.file:
                return
            path = Path(mapping.file)
            with suppress(OSError):  # the file has no name any more
                status = path.stat()
                if status.st_ino == mapping.inode and status.st_size <= mapping.offset + end - mapping.start - _PAGE:
                    return
            room = file_system(path.parent)
            if room.free < end - start:
                raise LockLimitError(
                    f"some of [{start:#x}, {end:#x}) cannot be brought into memory: {room.name} has {room.limit} "
                    f"bytes, of which {room.free} are free; remove what else is there, or {room.remedy}"
                )


def _read_each_page(start: int, end: int) -> None:
    # The kernel reads, so a page that cannot be read ends the call instead of raising a signal.
    sink = ctypes.create_string_buffer(_IOV_MAX)
    into = array("Q", (ctypes.addressof(sink), _IOV_MAX))
    for low in range(start, end, _IOV_MAX * _PAGE):
        pages = range(low, min(low + _IOV_MAX * _PAGE, end), _PAGE)
        each = array("Q", (word for page in pages for word in (page, 1)))
        _libc.process_vm_readv(os.getpid(), into.buffer_info()[0], 1, each.buffer_info()[0], len(pages), 0)

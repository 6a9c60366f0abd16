# SPDX-License-Identifier: Apache-2.0
"""The device ``host:0``."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from bisect import insort
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pinning.errors import NotLockedError
from pinning.plugin import AutomaticLocking, Device, LockLimit, MemoryConnection, MemoryInfo, MemoryKind, PinnedInfo
from pinning_host import kernel
from pinning_host.memory import Memory
from pinning_host.page_counts import PageCounts
from pinning_host.queue import HostQueue, Queues


class HostDevice(AutomaticLocking):
    """Host memory, locked by mlock.

    mlock works on whole pages and does not nest: one munlock undoes every mlock of a page. So the locks on each page
    are counted, and a page is unlocked when its last one goes. The pages of a process are shared by all of it, so
    there is one such device.

    A change of a range waits for a change of the same pages to end, and for no other; what is counted changes only
    after the kernel has done its part.
    """

    description = "host memory (mlock)"
    largest_lock = sys.maxsize
    coherence = frozenset({True})
    memory_kinds = frozenset(MemoryKind)

    def __init__(self, name: str) -> None:
        self.name = name
        self._hold_nothing()
        # A child inherits no page locks, and perhaps a mutex that no thread of its own will release.
        os.register_at_fork(after_in_child=self._hold_nothing)

    def _hold_nothing(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._changing: list[tuple[int, int]] = []
        self._counts = PageCounts()
        self._held: dict[int, list[int]] = {}  # base: the sizes locked there, ascending
        self._memory = Memory(self)
        self._queues = Queues()  # the threads of a parent's are not in its child

    def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int:
        """Lock the pages of ``[ptr, ptr + size)``; the device pointer is `ptr` itself.

        Raises
        ------
        VendorError
            The kernel refused; what was locked before still is, and nothing else.
        """
        pages = kernel.page_range(ptr, size)
        try:
            with self._change(pages):
                self._lock_all(pages)
                with self._changed:
                    self._counts.add(*pages)
                    insort(self._held.setdefault(ptr, []), size)
        except OSError as error:
            raise kernel.vendor_error("mlock", error, self._mlock_advice(pages)) from None
        return ptr

    def data_unlock(self, ptr: int) -> None:
        """Undo one `data_lock` of the range that starts at `ptr`; pages that other locks hold stay locked.

        Raises
        ------
        NotLockedError
            No range that starts at `ptr` is locked.
        VendorError
            The kernel refused; everything is still locked.
        """
        try:
            with self._claim(ptr) as size:
                pages = kernel.page_range(ptr, size)
                with self._change(pages):
                    self._unlock_last_held(pages)
                    with self._changed:
                        self._counts.remove(*pages)
        except OSError as error:
            raise kernel.vendor_error("munlock", error, "the range is still locked; try again") from None

    def is_pinned_ptr(self, ptr: int) -> PinnedInfo | None:
        """The largest range around `ptr` that this device holds. Takes time in proportion to the ranges held."""
        with self._changed:
            around = [(sizes[-1], base) for base, sizes in self._held.items() if base <= ptr < base + sizes[-1]]
        if not around:
            return None
        size, base = max(around)
        return PinnedInfo(base, size, device_ptr=base)

    def lock_limit(self) -> LockLimit | None:
        """RLIMIT_MEMLOCK, or None for a process that it does not bind."""
        limit = kernel.lock_limit()
        if limit is None:
            return None
        soft, hard, used = limit
        if hard == soft:
            remedy = f"sudo prlimit --memlock=unlimited --pid {os.getpid()}"
        else:
            remedy = "ulimit -l unlimited" if hard < 0 else f"ulimit -l {hard // 1024}"
        return LockLimit("RLIMIT_MEMLOCK", soft, used, remedy)

    def allocate(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        """Exactly `size` bytes of zeroes, aligned to a page; those of kind HOST are locked.

        Raises
        ------
        VendorError
            The kernel refused; nothing is allocated.
        """
        return self._memory.allocate(size, kind)

    def allocate_write_combined(self, size: int) -> int:
        """Ordinary HOST memory: the device is the host itself, which would only read it very slowly."""
        return self._memory.allocate(size, MemoryKind.HOST)

    def free(self, ptr: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        """Give back what `allocate` returned for this kind.

        Raises
        ------
        InvalidRangeError
            There is no such allocation.
        VendorError
            The kernel refused; it is still allocated.
        """
        self._memory.free(ptr, kind)

    def memory_info(self, ptr: int) -> MemoryInfo | None:
        """The allocation, or else the locked range, that holds the byte at `ptr`."""
        allocated = self._memory.info(ptr)
        if allocated is not None:
            return allocated
        locked = self.is_pinned_ptr(ptr)
        return MemoryInfo(MemoryKind.HOST, locked.base, locked.size, None) if locked else None

    def connection(self, other: Device) -> MemoryConnection:
        """UNIFIED with the host itself; other devices reach host memory only where it is locked for them."""
        return MemoryConnection.UNIFIED if other is self else MemoryConnection.NONE

    def make_queue(self) -> HostQueue:
        """A new in-order queue, which is a thread of its own.

        Raises
        ------
        VendorError
            There is no thread to be had.
        """
        return self._queues.make()

    def adopt_queue(self, handle: int) -> HostQueue:
        """Another queue over the thread of the one with this handle, which goes on when this one is closed."""
        return self._queues.adopt(handle)

    def synchronize(self) -> None:
        """Wait until all queues are done."""
        self._queues.synchronize()

    def copy(self, dst: int, src: int, size: int) -> None:
        """Copy `size` bytes, while other threads run."""
        ctypes.memmove(dst, src, size)

    @contextmanager
    def _change(self, pages: tuple[int, int]) -> Iterator[None]:
        """Have the pages alone: the kernel is called without the mutex, so nothing else keeps another thread off."""
        start, end = pages
        with self._changed:
            self._changed.wait_for(lambda: all(high <= start or end <= low for low, high in self._changing))
            self._changing.append(pages)
        try:
            yield
        finally:
            with self._changed:
                self._changing.remove(pages)
                self._changed.notify_all()

    @contextmanager
    def _claim(self, ptr: int) -> Iterator[int]:
        """Take one size off those locked at `ptr`; put it back if the block fails.

        Two users can hold different sizes there, and only the base says whose goes. The smallest one is always
        safe: what stays covers whichever user is left.
        """
        with self._changed:
            sizes = self._held.get(ptr)
            if not sizes:
                raise NotLockedError(f"no range that starts at {ptr:#x} is locked on {self.name}")
            size = sizes.pop(0)
            if not sizes:
                del self._held[ptr]
        try:
            yield size
        except BaseException:
            with self._changed:
                insort(self._held.setdefault(ptr, []), size)
            raise

    def _lock_all(self, pages: tuple[int, int]) -> None:
        # Pages that are held already as well: their memory may have been unmapped, lock and all, and mapped anew.
        try:
            kernel.mlock(*pages)
        except BaseException:
            for run in self._pages_held_by(0, pages):
                with suppress(OSError):
                    kernel.munlock(*run)
            raise

    def _unlock_last_held(self, pages: tuple[int, int]) -> None:
        last_held = self._pages_held_by(1, pages)
        try:
            for run in last_held:
                kernel.munlock(*run)
        except BaseException:
            for run in last_held:
                with suppress(OSError):
                    kernel.mlock(*run)
            raise

    def _pages_held_by(self, count: int, pages: tuple[int, int]) -> list[tuple[int, int]]:
        with self._changed:
            return self._counts.runs(*pages, count)

    def _mlock_advice(self, pages: tuple[int, int]) -> str:
        start, end = pages
        where = f"[{start:#x}, {end:#x})"
        if kernel.mapped_parts(start, end) != [(start, end)]:
            return f"some of {where} is not mapped; was its owner freed?"
        limit = self.lock_limit()
        if limit and limit.used + end - start > limit.limit:
            return (
                f"RLIMIT_MEMLOCK allows {limit.limit} bytes, {limit.used} are locked and {where} has {end - start}; "
                f"raise it with `{limit.remedy}`"
            )
        return (
            f"the kernel cannot bring {where} into memory: memory is short, the mapping is not readable or reaches "
            "past the end of its file, or the process has more mappings than vm.max_map_count allows"
        )

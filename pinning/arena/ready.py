# SPDX-License-Identifier: Apache-2.0
"""Populates and locks new memory of an arena, in the background."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from contextlib import suppress

from pinning.arena.latch import Latch
from pinning.arena.memory import Memory
from pinning.errors import PinningError
from pinning.locking.lock_async import PendingLock, lock_unlisted
from pinning.machine.populate import Populating
from pinning.plugin import Device
from pinning.runtime.process import start_thread

# At most. On a machine with 16 processors, 16 threads populate 24 GiB in 1 s, and one thread in 13 s.
_THREADS = 16


class Ready:
    """A part of an arena that is being locked for some devices: for all of them or, after an error, for none.

    It is locked for one device after another, because those of one vendor share the registration of the first. The
    pages are populated by the processors `cpus`, and so come from their node.
    """

    def __init__(
        self,
        memory: Memory,
        start: int,
        size: int,
        devices: Iterable[Device],
        unit: int | None,
        cpus: Collection[int],
        huge_pages: bool,
    ) -> None:
        self.memory: Memory = memory
        self.start: int = start
        self.size: int = size
        self.devices: tuple[Device, ...] = tuple(devices)
        self.unit: int | None = unit
        self.cpus: Collection[int] = cpus
        self.huge_pages: bool = huge_pages
        self.locked: bool = False
        self.error: BaseException | None = None
        self.over: Latch = Latch()
        self.stopped: bool = False
        self._last = Latch()  # locking for the last device has begun, or never will
        self._pending: PendingLock | None = None
        self._turn = [None]  # the thread that pops it does the work
        self._threads: list[int] = []

    def begin(self) -> None:
        """Start a thread for it, unless that has been done. Raises PinningError if no thread can be started."""
        if not self._threads:
            # Two steps in C: Ctrl-C in Thread.start would keep this forever; between these it starts a second thread.
            self._threads.append(start_thread(self._run))

    def stop(self) -> None:
        """Make it end soon, unless it has ended. Its thread undoes the locks and sets `over`."""
        if not self.over.is_set():
            self.stopped = True
            self.begin()
            if (pending := self._pending) is not None:
                pending._abandon()
            if not self.devices:
                self._last.set()

    def again(self) -> Ready:
        """Itself, or a new one for the same part if it was stopped before it was locked."""
        if self.locked or not self.stopped:
            return self
        return Ready(self.memory, self.start, self.size, self.devices, self.unit, self.cpus, self.huge_pages)

    @property
    def progress(self) -> int:
        """Bytes from the start that are locked for all devices."""
        if self.over.is_set():
            return self.size if self.locked else 0
        pending = self._pending
        return pending.progress if pending is not None and self._last.is_set() else 0

    def wait(self, nbytes: int, timeout: float | None) -> bool:
        """Wait until `nbytes` bytes from the start are locked, or it is over; False if that takes longer."""
        end = None if timeout is None else time.monotonic() + timeout
        if nbytes < self.size:
            if not self._last.wait(timeout):
                return False
            if (pending := self._pending) is not None:
                left = None if end is None else max(end - time.monotonic(), 0)
                with suppress(PinningError):  # then it will be over soon, with the error
                    try:
                        pending.wait(nbytes, left)
                    except TimeoutError:
                        return False
                    return True
        return self.over.wait(None if end is None else max(end - time.monotonic(), 0))

    def _bring_in(self) -> None:
        """Populate pages of a file system that others fill too: if it is full, an error here, not SIGBUS on access."""

        def reached(done: int | None) -> None:
            if done is None or done == self.size:
                self._last.set()

        start, threads = self.memory.ptr + self.start, min(_THREADS, len(self.cpus))
        populating = Populating(start, self.size, reached, threads=threads, cpus=self.cpus, huge_pages=self.huge_pages)
        self._last.wait()
        populating.stop()
        if populating.error is not None:
            raise populating.error

    def _run(self) -> None:
        try:
            self._turn.pop()
        except IndexError:
            return
        locks = []
        taken = []
        try:
            for number, device in enumerate(self.devices, 1):
                if self.stopped:
                    return
                pending = lock_unlisted(
                    (self.memory.ptr + self.start, self.size),
                    device,
                    self.unit,
                    {"threads": min(_THREADS, len(self.cpus)), "cpus": self.cpus, "huge_pages": self.huge_pages},
                )
                taken.append(pending)
                self._pending = pending
                if number == len(self.devices):
                    self._last.set()
                if self.stopped:
                    return
                locks.append(pending.wait())
            if not self.devices and self.memory.segment is not None and self.memory.segment.has_name:
                self._bring_in()
            self.memory.holds.extend(locks)
            self.locked = True
        except BaseException as error:
            if not self.stopped:
                self.error = error
        finally:
            if not self.locked:
                for pending in taken:
                    try:
                        pending.cancel()
                    except Exception:  # `close` tries again
                        self.memory.refused.append(pending)
            self._last.set()
            self.over.set()

# SPDX-License-Identifier: Apache-2.0
"""Waiting for what happens once, in a way that Ctrl-C may end anywhere.

Where it ends `threading.Event.wait` as that takes its lock, the lock stays taken, and the thread that sets it
waits for ever.
"""

from __future__ import annotations

import _thread
from contextlib import suppress


class Latch:
    """Set once, by a thread that gets no signals. Each waiting thread has a lock of its own, which no other takes."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[_thread.LockType] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        with suppress(IndexError):
            while True:
                self._waiting.pop().release()

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is set, or so many seconds have passed; whether it is."""
        mine = _thread.allocate_lock()
        mine.acquire()
        self._waiting.append(mine)
        if not self._set:  # else it may have been set before it knew of this lock
            mine.acquire(timeout=-1 if timeout is None else max(timeout, 0))
        with suppress(ValueError):
            self._waiting.remove(mine)
        return self._set

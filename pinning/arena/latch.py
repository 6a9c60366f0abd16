# SPDX-License-Identifier: Apache-2.0
"""Waiting for something that happens once, which Ctrl-C may end at any point.

If Ctrl-C ends `threading.Event.wait` while that acquires its lock, the lock stays held, and the thread that sets the
event waits forever.
"""

from __future__ import annotations

import _thread
from contextlib import suppress


class Latch:
    """Set once, by a thread that gets no signals. Each waiting thread has its own lock, which no other acquires."""

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
        """Wait until it is set, at most `timeout` seconds; returns whether it is."""
        mine = _thread.allocate_lock()
        mine.acquire()
        self._waiting.append(mine)
        if not self._set:  # if it is, `set` may have run before this lock was in the list
            mine.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), _thread.TIMEOUT_MAX))
        with suppress(ValueError):
            self._waiting.remove(mine)
        return self._set

# SPDX-License-Identifier: Apache-2.0
"""A thread that looks after what is idle, as long as something is."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from contextlib import suppress

from pinning.pressure import Pressure

EVERY = 0.1  # seconds between two looks


class Watch:
    """Calls `look` ten times a second while `any_left()`, and `relieve` while memory is short.

    Each change is one step in C, so that neither another thread nor Ctrl-C comes between.
    """

    def __init__(self, look: Callable[[], object], relieve: Callable[[], object], any_left: Callable[[], bool]) -> None:
        self._look, self._relieve, self._any_left = look, relieve, any_left
        self.begin_anew()

    def begin_anew(self) -> None:
        """In a fork's child, where the thread is not."""
        self._ended = False
        self._unstarted = [None]  # who pops it starts the thread

    def wake(self) -> None:
        """There is something to look after."""
        with suppress(IndexError):
            self._unstarted.pop()
            try:
                _thread.start_new_thread(self._run, (self._unstarted,))
            except RuntimeError:  # no thread to be had: the next one tries again
                self._unstarted.append(None)

    def end(self) -> None:
        """At exit."""
        self._ended = True

    def _run(self, unstarted: list[None]) -> None:
        pressure = Pressure()
        while not self._ended:
            time.sleep(EVERY)
            if self._ended:
                return
            with suppress(Exception):  # such as no memory; the next look is soon
                self._look()
                if pressure.is_high():
                    self._relieve()
            if not self._any_left():
                unstarted.append(None)
                if not self._any_left():  # else whoever came between may have found it started
                    return
                try:
                    unstarted.pop()
                except IndexError:
                    return

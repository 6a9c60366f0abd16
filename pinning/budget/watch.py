# SPDX-License-Identifier: Apache-2.0
"""A thread that looks after what is idle, as long as something is."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from pinning.machine.pressure import Pressure
from pinning.runtime.process import start_once

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
        start_once(self._unstarted, self._run, self._unstarted)

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

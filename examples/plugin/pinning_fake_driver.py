# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the driver of `pinning_fake`, whose calls can be made to fail.

pytest --pyargs pinning.conformance --device fake:0 --faults pinning_fake_driver:faults
"""

from __future__ import annotations

import ctypes
import errno
import threading

import pinning_fake


class FakeDriver:
    """The members of `pinning.conformance.faults.Faults`, and `madvise`, the driver's only call."""

    failure = (errno.EAGAIN, "EAGAIN")
    forgiven: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._real = pinning_fake._driver.madvise
        self._calls: list[str] = []
        self._failing: range = range(0)
        self._slow, self._over = "", threading.Event()

    def madvise(self, start: int, size: int, advice: int) -> int:
        self._calls.append("madvise")
        number, over = len(self._calls), self._over
        if self._slow == "madvise":
            over.wait(60)
        if number in self._failing:
            ctypes.set_errno(self.failure[0])
            return -1
        return int(self._real(start, size, advice))

    def begin(self, fail: int = 0, failures: int = 1, slow: str = "") -> None:
        self._over.set()
        self._calls, self._over = [], threading.Event()
        self._failing = range(fail, fail + failures) if fail else range(0)
        self._slow = slow

    def calls(self) -> list[str]:
        return list(self._calls)

    def held(self) -> object:
        return dict(pinning_fake.plugin.device(0)._held)


faults = FakeDriver()
pinning_fake._driver = faults

# SPDX-License-Identifier: Apache-2.0
"""A stand-in that is this process's driver, for ``--faults`` of the conformance suite."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from standins.standin import Driver, StandIn


class StandInFaults:
    """The calls of a stand-in, one of which fails.

    Parameters
    ----------
    driver : Driver
        Loaded into this process at the first use.
    failure : tuple of int and str
        A code that any call can return, and the vendor's name of it.
    forgiven : container of str
        Functions whose failure need not be raised.
    left : callable
        Returns what is alive besides registrations.
    restore : callable
        Puts the thread back into the state in which tests begin. Its argument is the failed call's line, or "".
    """

    def __init__(
        self,
        driver: Driver,
        failure: tuple[int, str],
        left: Callable[[], object],
        forgiven: Container[str] = (),
        restore: Callable[[str], object] = lambda failed: None,
    ) -> None:
        self.failure = failure
        self.forgiven = forgiven
        self._left, self._restore = left, restore
        self._driver, self._failing = driver, 0

    @cached_property
    def _standin(self) -> StandIn:
        self._folder = TemporaryDirectory()  # deleted with this
        return self._driver.standin(Path(self._folder.name) / "calls")

    def begin(self, fail: int = 0, failures: int = 1, slow: str = "") -> None:
        lines = self._standin.calls() if self._failing else []
        self._standin.configure()
        self._restore(lines[self._failing - 1] if 0 < self._failing <= len(lines) else "")
        self._failing = fail
        code, _ = self.failure
        rules = [f"fail=*:{n}:{code}" for n in range(fail, fail + failures) if fail]
        self._standin.configure(";".join([*rules, f"delay={slow}:60000" if slow else ""]))

    def calls(self) -> list[str]:
        return [line.split()[0] for line in self._standin.calls()]

    def held(self) -> object:
        return self._standin.registrations(), self._left()

# SPDX-License-Identifier: Apache-2.0
"""The driver's calls failing, one in each round."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import count
from typing import Protocol

from pinning.errors import VendorError


class Faults(Protocol):
    """A stand-in for the vendor's driver in this process, which counts its calls and lets one of them fail.

    The plugin's author provides it, and names it to the suite with ``--faults MODULE:OBJECT``.
    """

    @property
    def failure(self) -> tuple[int, str]:
        """A code that any call can fail with, and the vendor's name of it."""

    @property
    def forgiven(self) -> Container[str]:
        """Calls whose failure need not reach the caller as it is: they come when the work is done, or give no code."""

    def begin(self, fail: int = 0, failures: int = 1, slow: str = "") -> None:
        """Forget the calls so far; all that was slow or to fail goes on as usual.

        Parameters
        ----------
        fail : int
            From now on the call of this number, from 1, fails with `failure` and has no effect; 0: none does.
        failures : int
            How many calls in a row do, from that one on; 16 at most.
        slow : str
            From now on each call of this function takes a minute, or until the next `begin`.
        """

    def calls(self) -> Sequence[str]:
        """The functions called since `begin`, in order."""

    def held(self) -> object:
        """What the driver holds: ranges locked, memory allocated, queues. Equal before and after where nothing leaks.

        What the plugin may keep to use again, such as events, is no part of it.
        """


Failure = tuple[str, VendorError | None]


def nothing() -> None:
    """What is to be undone of a question."""


def each_failure(faults: Faults, act: Callable[[], object], undo: Callable[[], object] = nothing) -> Iterator[Failure]:
    """Let the first call that `act` makes fail, then the second and so on: the call, and what `act` raised.

    It must be the driver's failure, unless the call is one of the forgiven. Where `act` succeeds after all, `undo`
    follows. At last `act` is called, and undone, without any failure, and there is nothing to yield.
    """
    for n in count(1):
        faults.begin(fail=n)
        error: VendorError | None = None
        try:
            act()
        except VendorError as raised:
            error = raised
        calls = faults.calls()
        faults.begin()
        if error is None:
            undo()
        if n > len(calls):
            assert error is None, f"no call has failed, and yet it raised {error!r}"
            return
        call = calls[n - 1]
        code, name = faults.failure
        if error is None or error.code != code:
            assert call in faults.forgiven, f"{call} failed, and what was raised is {error!r}"
        else:
            assert (error.call, error.name) == (call, name)
            assert call in str(error) and str(code) in str(error) and name in str(error)
        yield call, error


def eventually(true: Callable[[], object]) -> bool:
    """Wait until it is so; whether it ever was."""
    end = time.monotonic() + 120
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True

# SPDX-License-Identifier: Apache-2.0
"""Driver calls that fail, one in each round."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import count
from typing import Protocol

from pinning.errors import VendorError


class Faults(Protocol):
    """A stand-in for the vendor's driver in this process, which counts its calls and can make one of them fail.

    The plugin's author provides it, and names it to the suite with ``--faults MODULE:OBJECT``.
    """

    @property
    def failure(self) -> tuple[int, str]:
        """A code with which any call can fail, and the vendor's name for it."""

    @property
    def forgiven(self) -> Container[str]:
        """Calls whose failure need not reach the caller as it is: made after the work is done, or without a code."""

    def begin(self, fail: int = 0, failures: int = 1, slow: str = "") -> None:
        """Reset the record of calls; no call fails or is slow any more, except as given here.

        Parameters
        ----------
        fail : int
            From now on, the call of this number, from 1, fails with `failure` and has no effect; 0: no call fails.
        failures : int
            How many calls in a row fail, from that one on; 16 at most.
        slow : str
            From now on each call of this function takes a minute, or until the next `begin`.
        """

    def calls(self) -> Sequence[str]:
        """The functions called since `begin`, in order."""

    def held(self) -> object:
        """What the driver holds: ranges locked, memory allocated, queues. Equal before and after if nothing leaks.

        It does not include what the plugin may keep for reuse, such as events.
        """


Failure = tuple[str, VendorError | None]


def nothing() -> None:
    """The `undo` of a query."""


def each_failure(faults: Faults, act: Callable[[], object], undo: Callable[[], object] = nothing) -> Iterator[Failure]:
    """Let the first driver call of `act` fail, then the second and so on; yield the call, and what `act` raised.

    That must be the driver's failure, unless the call is forgiven. If `act` succeeds all the same, `undo` is called.
    In the last round, `act` is called and undone without any failure, and nothing is yielded.
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
    """Wait until `true` returns true, for 120 s at most; whether it did."""
    end = time.monotonic() + 120
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True

# SPDX-License-Identifier: Apache-2.0
"""Lets each call of the stand-in runtime fail in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from hip import hip
from pinning.errors import VendorError
from standins.standin import StandIn

UNKNOWN = 999

Outcome = VendorError | None


def each_failure(standin: StandIn, act: Callable[[], object]) -> Iterator[tuple[str, Outcome]]:
    """Let the first call that `act` makes fail, then the second and so on: the call, and what `act` raised.

    The thread's device is another one, so that it is set and set back. At last `act` is called without any failure, and
    there is nothing to yield.
    """
    for n in count(1):
        hip.hipSetDevice(1)
        standin.configure(f"fail=*:{n}:{UNKNOWN}")
        outcome: Outcome = None
        try:
            act()
        except VendorError as error:
            outcome = error
        calls = standin.calls()
        standin.configure()
        if n > len(calls):
            assert outcome is None
            hip.hipSetDevice(0)
            return
        if calls[n - 1] != "hipSetDevice 1":  # nothing can be done about a device that cannot be set back
            assert hip.hipGetDevice()[1] == 1
        yield calls[n - 1].split()[0], outcome

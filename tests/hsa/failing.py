# SPDX-License-Identifier: Apache-2.0
"""Lets each call of the stand-in runtime fail in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from pinning.errors import VendorError
from standins.standin import StandIn

FAILURE = 0x1008  # HSA_STATUS_ERROR_OUT_OF_RESOURCES

Outcome = VendorError | None


def each_failure(standin: StandIn, act: Callable[[], object]) -> Iterator[tuple[str, Outcome]]:
    """Let the first call that `act` makes fail, then the second and so on: the call, and what `act` raised.

    At last `act` is called without any failure, and there is nothing to yield.
    """
    for n in count(1):
        standin.configure(f"fail=*:{n}:{FAILURE}")
        outcome: Outcome = None
        try:
            act()
        except VendorError as error:
            outcome = error
        calls = standin.calls()
        standin.configure()
        if n > len(calls):
            assert outcome is None
            return
        yield calls[n - 1].split()[0], outcome

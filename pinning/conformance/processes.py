# SPDX-License-Identifier: Apache-2.0
"""Forked children that report results."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable, Sequence

from pinning.errors import PinningError


def in_fork(function: Callable[[], object]) -> str:
    """What `function` returns in a forked child, or the traceback of what it raises; the child is killed after 60 s."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, which is what is tested
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            outcome = str(function())
        except BaseException:
            outcome = traceback.format_exc()
        os.write(write_end, outcome.encode()[-4000:])
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        outcome = pipe.read().decode()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, f"the child crashed or hung: {outcome}"
    return outcome


def refusals(attempts: Sequence[Callable[[], object]]) -> int:
    """How many of the attempts, one after another, are refused in a forked child; each error must name the fork.

    0 if the first one succeeds.
    """

    def attempt() -> int:
        refused = 0
        for act in attempts:
            try:
                act()
            except PinningError as error:
                assert "fork" in str(error), error
                refused += 1
            if not refused:
                break
        return refused

    return int(in_fork(attempt))

# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests."""

from __future__ import annotations

import resource
import signal
from collections.abc import Generator

import pytest

from pinning import LockLimitError

USUAL_LIMIT = 8 << 20  # bytes of RLIMIT_MEMLOCK with which every test has enough

# A shell has its background jobs ignore Ctrl-C, and what they start inherits that; but tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Where less may be locked than usual, a test that needs more is skipped."""
    try:
        return (yield)
    except LockLimitError as error:
        if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] < USUAL_LIMIT:
            pytest.skip(f"needs to lock more: {error}")
        raise

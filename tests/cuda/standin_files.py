# SPDX-License-Identifier: Apache-2.0
"""Copies from files on the stand-in: which bytes arrive, and each call failing in turn.

A stand-in checks the ABI and the sequence of calls, not a real driver's semantics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy
import pytest

import pinning
from file_copies import *  # noqa: F403
from file_copies import SIZE, descriptors_of, fetch, held_back, noise, until
from pinning.copies import costs
from standins.standin import StandIn

UNKNOWN = 999  # CUDA_ERROR_UNKNOWN


@pytest.fixture
def queue(standin: StandIn) -> Iterator[pinning.Queue]:
    with pinning.Queue("cuda:0") as queue:
        yield queue
    pinning.copies.trim_staging()


def test_where_nothing_can_be_staged(queue: pinning.Queue, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinning.copies.trim_staging()
    monkeypatch.setattr(costs, "staging_bytes", 0)
    with pinning.alloc(SIZE, device=queue.device) as there:
        copy = pinning.copy_file_async(there, file, queue=queue)
        assert copy.path == "plain"
        copy.wait()
        assert (fetch(there, queue) == noise(SIZE)).all()
        with held_back(queue):
            cancelled = pinning.copy_file_async(numpy.zeros(SIZE, numpy.uint8), file, queue=queue)
            cancelled.cancel()
        with pytest.raises(pinning.FileError, match="cancelled"):
            cancelled.wait()


def test_each_call_failing_leaves_the_queue_usable(standin: StandIn, queue: pinning.Queue, file: Path) -> None:
    with pinning.alloc(SIZE, device="cuda:0") as there:
        for n in count(1):
            standin.configure(f"fail=*:{n}:{UNKNOWN}")
            refused = None
            try:
                pinning.copy_file(there, file, queue=queue)
            except pinning.VendorError as error:
                refused = error
            calls = standin.calls()
            standin.configure()
            with suppress(pinning.VendorError):  # of a call that only asks, whose error nobody has heard yet
                queue.synchronize()
            if n > len(calls):
                assert refused is None
                break
        pinning.copy_file(there, file, queue=queue)
        assert (fetch(there, queue) == noise(SIZE)).all()
    until(lambda: descriptors_of(file) == 0)

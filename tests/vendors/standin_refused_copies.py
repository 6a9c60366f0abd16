# SPDX-License-Identifier: Apache-2.0
"""Each vendor call of a copy fails in turn: the error is all that is left, and the same copy succeeds after it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy
import pytest

import pinning
from noise import noise
from pinning import MemoryKind, PinningError
from pinning.copies import costs, trim_staging
from standins.standin import StandIn
from standins.vendors import Vendor

SIZE = 256 << 10
BUSY = 4 << 20  # bytes that the queue fills first, so that what was submitted before the refusal is still pending
UNKNOWN = 999

Copying = Callable[[int, int, pinning.Queue], pinning.copies.Copy]


def whole(dst: int, src: int, queue: pinning.Queue) -> pinning.copies.Copy:
    return pinning.copy_async(dst, src, SIZE, queue=queue)


def batch(dst: int, src: int, queue: pinning.Queue) -> pinning.copies.Copy:
    starts = numpy.arange(0, SIZE, 4000, numpy.uint64)
    sizes = numpy.minimum(SIZE - starts, 4000)
    return pinning.copy_batch_async(dst + starts, src + starts, sizes, queue=queue)


@pytest.mark.parametrize("inwards", [True, False], ids=["to the device", "to the host"])
@pytest.mark.parametrize("copy", [whole, batch])
def test_a_refused_copy_leaves_only_its_error(
    standin: StandIn,
    other: pinning.Queue,
    gpu: Any,
    vendor: Vendor,
    monkeypatch: pytest.MonkeyPatch,
    copy: Copying,
    inwards: bool,
) -> None:
    for limit in ("stage_to_device", "stage_to_host"):
        monkeypatch.setattr(costs, limit, 64 << 10)
    monkeypatch.setattr(costs, "ring_bytes", 512 << 10)
    monkeypatch.setattr(costs, "staging_bytes", 1 << 20)
    host, expected = numpy.zeros(SIZE, numpy.uint8), noise(SIZE)
    with (
        pinning.alloc(BUSY, MemoryKind.DEVICE, device=gpu) as busy,
        pinning.alloc(SIZE, MemoryKind.DEVICE, device=gpu) as there,
        pinning.lock(host[SIZE // 3 : SIZE // 2], device=gpu),
    ):
        ends = (there.ptr, host.ctypes.data) if inwards else (host.ctypes.data, there.ptr)
        pinning.copy(there, expected, queue=other)
        first = copy(*ends, other)
        first.wait()

        def attempt(failing: int) -> bool:
            """Copy with a call failing, then without; whether there was such a call."""
            seen = None
            trim_staging()  # so that pinned blocks are allocated anew
            host[:] = expected if inwards else 0
            pinning.fill_async(busy, 1, queue=other)
            standin.configure(f"fail=*:{failing}:{UNKNOWN}")
            try:
                copy(*ends, other)
            except PinningError:
                seen = host.copy()
            calls = len(standin.calls())
            standin.configure()
            for ask in (other.synchronize, other.done):  # what had failed after it was submitted, here or in a thread
                with suppress(PinningError):
                    ask()
            assert seen is None or (host == seen).all(), f"written after the refusal of call {failing}"
            assert copy(*ends, other).path == first.path, failing
            other.synchronize()
            back = host
            if inwards:
                back = numpy.empty_like(host)
                pinning.copy(back, there, queue=other)
            assert (back == expected).all(), failing
            return failing <= calls

        assert any(not attempt(call) for call in itertools.count(1))
        for call in range(1, 40):
            standin.configure(f"fail=*:{call}:{UNKNOWN}")
            with suppress(PinningError):
                trim_staging()
        standin.configure()

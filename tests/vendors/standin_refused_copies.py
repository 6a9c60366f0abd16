# SPDX-License-Identifier: Apache-2.0
"""Each vendor call of a copy fails in turn: the error is all that is left, and the same copy succeeds after it."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy
import pytest

import c_api
import pinning
from c_copies import Copying, PythonQueue, batch, rows, two_blocks, whole
from locked_parts import on_pages
from noise import noise
from pinning import PinningError
from pinning.conformance.faults import eventually
from pinning.copies import costs, trim_staging
from pinning.plugin.native import NativeQueue
from pinning.queues import pending
from standins.standin import StandIn

SIZE = 192 << 10
BUSY = 4 << 20  # bytes that the queue copies first, so that what was submitted before the refusal is still pending
UNKNOWN = 999


@pytest.fixture(params=["of Python", "of C", "over a stream"])
def copying(
    request: pytest.FixtureRequest, other: pinning.Queue, queue: NativeQueue, gpu: Any
) -> Iterator[c_api.Queue | PythonQueue]:
    """A queue for copies."""
    if request.param == "of Python":
        yield PythonQueue(other)
        return
    if request.param == "over a stream" and not queue.handle:
        pytest.skip("queues of this vendor have no handle, so there are none to adopt")
    with c_api.Queue(gpu.name, queue.handle if request.param == "over a stream" else None) as made:
        yield made
    gc.collect()


@pytest.mark.parametrize("inwards", [True, False], ids=["to the device", "to the host"])
@pytest.mark.parametrize("copy", [whole, batch, rows])
@pytest.mark.parametrize("staged", [True, False], ids=["staged", "left to the driver"])
def test_a_refused_copy_leaves_only_its_error(
    standin: StandIn,
    copying: c_api.Queue | PythonQueue,
    gpu: Any,
    monkeypatch: pytest.MonkeyPatch,
    staged: bool,
    copy: Copying,
    inwards: bool,
) -> None:
    look_after = pending.look_after  # not for work, so that no question of its thread fails after the refusal
    monkeypatch.setattr(pending, "look_after", lambda lane: look_after(lane) if lane.retired else None)
    for limit in ("stage_to_device", "stage_to_host") if staged else ():
        monkeypatch.setattr(costs, limit, 64 << 10)
    monkeypatch.setattr(costs, "ring_bytes", 512 << 10)
    monkeypatch.setattr(costs, "staging_bytes", 1 << 20)
    host, expected = on_pages(SIZE), noise(SIZE)
    part = host[SIZE // 3 : SIZE // 2]
    with two_blocks(gpu, BUSY) as busy, two_blocks(gpu, SIZE) as (there, _):
        ends = (there, host.ctypes.data) if inwards else (host.ctypes.data, there)
        copying.copy(there, expected.ctypes.data, SIZE).wait()
        with pinning.lock(part, device=gpu):
            first = copy(copying, *ends, SIZE)
            first.wait()

        def attempt(failing: int) -> bool:
            """Copy with a call failing, then without; whether there was such a call."""
            seen = None
            trim_staging()  # so that pinned blocks are allocated anew
            host[:] = expected if inwards else 0
            with pinning.lock(part, device=gpu):
                copying.copy_without_event(*busy, BUSY)
                standin.configure(f"fail=*:{failing}:{UNKNOWN}")
                try:
                    copy(copying, *ends, SIZE)
                except (PinningError, c_api.StatusError):
                    seen = host.copy()
                calls = len(standin.calls())
                standin.configure()
                for _ in range(2):  # what had failed after it was submitted, here or in a thread
                    with suppress(PinningError, c_api.StatusError):
                        copying.synchronize()
                assert seen is None or (host == seen).all(), f"written after the refusal of call {failing}"
                assert copy(copying, *ends, SIZE).path == first.path, failing
                copying.synchronize()
                back = numpy.empty_like(expected)
                copying.copy(back.ctypes.data, there, SIZE).wait()
                assert (back == expected).all(), failing
                assert (host == expected).all(), failing
                copying.synchronize()
            assert eventually(lambda: not pinning.is_locked(part, device=gpu)), failing
            return failing <= calls

        assert any(not attempt(call) for call in itertools.count(1))
        for call in range(1, 40):
            standin.configure(f"fail=*:{call}:{UNKNOWN}")
            with suppress(PinningError):
                trim_staging()
        standin.configure()


def test_a_large_copy_of_which_a_later_part_is_refused_is_waited_for(
    standin: StandIn, copying: c_api.Queue | PythonQueue, gpu: Any
) -> None:
    """Its caller may free the memory then."""
    size = 40 << 20
    host, data = numpy.zeros(size, "u1"), noise(size)
    with two_blocks(gpu, size) as (there, busy), pinning.lock(host, device=gpu):
        copying.copy(there, data.ctypes.data, size).wait()
        for failing in range(1, 4):
            host[:] = 0
            copying.copy_without_event(busy, there, size)
            standin.configure(f"fail=cuMemcpyAsync:{failing}:{UNKNOWN};fail=hipMemcpyAsync:{failing}:{UNKNOWN}")
            seen = None
            try:
                copying.copy(host.ctypes.data, there, size)
            except (PinningError, c_api.StatusError):
                seen = host.copy()
            standin.configure()
            with suppress(PinningError, c_api.StatusError):
                copying.synchronize()
            assert seen is None or (host == seen).all(), f"written after the refusal of part {failing}"

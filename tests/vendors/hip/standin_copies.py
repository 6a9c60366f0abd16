# SPDX-License-Identifier: Apache-2.0
"""What programs use on a HIP device: allocations, queues, pools, and copies on each path."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy
import pytest

import pinning
from noise import noise
from pinning.copies import Reason, costs, trim_staging
from pinning_hip import HipDevice, plugin
from standins.standin import StandIn
from standins.work import there_and_back

SIZE = (3 << 20) + 5


@pytest.fixture
def device(standin: StandIn, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[HipDevice]:
    """Device 0, whose streams wait for values; if the test has a configuration, device 1, first used under it."""
    monkeypatch.setattr(costs, "stage_to_device", 1 << 20)
    monkeypatch.setattr(costs, "stage_to_host", 1 << 20)
    monkeypatch.setattr(costs, "threads", 2)
    standin.configure(getattr(request, "param", ""))
    device = plugin.device(1 if hasattr(request, "param") else 0)
    yield device
    gc.collect()
    trim_staging()


@pytest.mark.parametrize("device", ["no_wait_value"], indirect=True)
def test_pageable_memory_is_left_to_a_runtime_that_cannot_wait_for_values(device: HipDevice) -> None:
    assert there_and_back(device, noise(SIZE)) == ("plain", "plain")
    with pinning.Queue(device) as queue, pinning.alloc(SIZE, device=device) as there:
        assert pinning.explain(there, noise(SIZE), queue=queue).reason_code is Reason.NO_VALUES


def test_a_batch_is_one_call_for_some_thousands(device: HipDevice, standin: StandIn) -> None:
    count, size = 5000, 16
    array, back = noise(count * size).reshape(count, size), numpy.zeros((count, size), numpy.uint8)
    order = numpy.random.default_rng(2).permutation(count)
    with (
        pinning.Queue(device) as queue,
        pinning.alloc(array.nbytes, device=device) as there,
        pinning.locked(array, back, device=device),
    ):
        standin.configure()
        pinning.copy_blocks(there, order, array, range(count), size, queue=queue)
        assert [call.split()[:2] for call in standin.calls() if call.startswith("hipMemcpy")] == [
            ["hipMemcpyBatchAsync", "4096"],
            ["hipMemcpyBatchAsync", "904"],
        ]
        standin.configure("fail=hipMemcpyBatchAsync:1:801")  # as in releases that support only copies between devices
        copy = pinning.copy_blocks_async(back, range(count), there, order, size, queue=queue)
        copy.wait()
        standin.configure()
    assert copy.path == "direct"
    assert (back == array).all()

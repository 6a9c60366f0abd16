# SPDX-License-Identifier: Apache-2.0
"""What programs use on a device of Unified Runtime: allocations, queues, pools, and copies on each path."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import numpy
import pytest

import c_api
import pinning
from exchange_tensors import ByCapsule, ByMethods, Tensor
from noise import noise
from pinning.copies import Reason, costs, trim_staging
from pinning_ur import UrDevice, UrPlugin
from standins.standin import StandIn
from standins.work import there_and_back

SIZE = (3 << 20) + 5


@pytest.fixture
def device(standin: StandIn, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[UrDevice]:
    """A fresh device, under the stand-in's configuration with which a test is parametrised."""
    monkeypatch.setattr(costs, "stage_to_device", 1 << 20)
    monkeypatch.setattr(costs, "stage_to_host", 1 << 20)
    monkeypatch.setattr(costs, "threads", 2)
    standin.configure(getattr(request, "param", ""))
    device = UrPlugin().device(0)
    yield device
    gc.collect()
    trim_staging()
    pinning.pinned_map(device).close()


def test_pageable_memory_is_left_to_the_adapter_which_cannot_wait_for_values(device: UrDevice) -> None:
    for size in (1000, SIZE):
        assert there_and_back(device, noise(size)) == ("plain", "plain")
    with pinning.Queue(device) as queue, pinning.alloc(SIZE, device=device) as there:
        assert pinning.explain(there, noise(SIZE), queue=queue).reason_code is Reason.NO_VALUES
        source = noise(16)
        with c_api.Queue("ur:0") as in_c:
            ends = (numpy.array([end, end + 8], numpy.uint64) for end in (there.ptr, source.ctypes.data))
            assert in_c.copy_batch(*ends, numpy.array([8, 8], numpy.uint64)).reason is Reason.NO_VALUES


@pytest.mark.parametrize("device", ["no_host_task"], indirect=True)
def test_functions_are_refused_where_the_adapter_has_none(device: UrDevice) -> None:
    with pinning.Queue(device) as queue, pinning.alloc(64, device=device) as there:
        with pytest.raises(pinning.PinningError, match=r"queues of ur:0 cannot call functions.*wait for an event"):
            queue.call(lambda: None)
        with pinning.Queue("host:0") as other, pytest.raises(pinning.PinningError, match="ur:0 cannot call functions"):
            pinning.fill_async(there, 1, queue=queue, wait_for=[_pending(other)])
        pinning.fill(there, 1, queue=queue)


def _pending(queue: pinning.Queue) -> pinning.Event:
    return queue.call(lambda: time.sleep(0.2))


def test_a_tensor_that_is_a_device_of_oneapi_to_dlpack(standin: StandIn) -> None:
    device = pinning.device("ur:0")
    array = noise(SIZE)
    host = pinning.MemoryKind.HOST
    with pinning.alloc(SIZE, device=device) as there, pinning.alloc(SIZE, host, device=device) as pinned:
        for memory in (there, pinned):
            tensor = Tensor(array, (14, 0))
            tensor.ptr = memory.ptr
            for theirs in (tensor, ByCapsule(array, memory.ptr), ByMethods(array, memory.ptr)):
                pinning.fill(memory, 0)
                pinning.copy(theirs, array)
                back = numpy.zeros_like(array)
                pinning.copy(back, theirs)
                assert (back == array).all()

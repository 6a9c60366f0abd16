# SPDX-License-Identifier: Apache-2.0
"""What programs use on a device of Unified Runtime: allocations, queues, pools, and copies on each path."""

from __future__ import annotations

import gc
import time

import numpy
import pytest

import pinning
from exchange_tensors import ByCapsule, ByMethods, Tensor
from noise import noise
from pinning_ur import UrPlugin
from standins.standin import StandIn

SIZE = (3 << 20) + 5


def test_functions_are_refused_where_the_adapter_has_none(standin: StandIn) -> None:
    standin.configure("no_host_task")
    device = UrPlugin().device(0)  # a fresh one
    with pinning.Queue(device) as queue, pinning.alloc(64, device=device) as there:
        with pytest.raises(pinning.PinningError, match=r"queues of ur:0 cannot call functions.*wait for an event"):
            queue.call(lambda: None)
        with pinning.Queue("host:0") as other, pytest.raises(pinning.PinningError, match="ur:0 cannot call functions"):
            pinning.fill_async(there, 1, queue=queue, wait_for=[_pending(other)])
        pinning.fill(there, 1, queue=queue)
    gc.collect()
    pinning.pinned_map(device).close()


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

# SPDX-License-Identifier: Apache-2.0
"""Queues and events: order, calls to the loader, failures, and what is left at the end."""

from __future__ import annotations

import ctypes
import gc

import pytest
from usm import another_context, others_queue

from pinning.conformance.allocations import FREE
from pinning.conformance.faults import eventually
from pinning.conformance.holding import Buffer
from pinning.errors import PinningError
from pinning.plugin import MemoryKind
from pinning_ur import UrDevice, plugin
from standins.libur import live
from standins.standin import StandIn

HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED
FIRST, SECOND, OPENCL = (plugin.device(index) for index in range(3))

KEPT: list[object] = []


def queues() -> int:
    """The number of queues, except the one that the device keeps for its own copies."""
    return live()["streams"] - 1


@pytest.fixture(scope="module", autouse=True)
def a_queue_for_copies() -> None:
    ptr, buffer = FIRST.allocate(1), Buffer(b"x")
    FIRST.copy(ptr, buffer.ptr, 1)
    FIRST.free(ptr)


# ---- work ----


@pytest.mark.parametrize("device", [FIRST, OPENCL], ids=["not this driver", "an older adapter"])
def test_a_device_that_calls_no_functions_says_so(standin: StandIn, device: UrDevice) -> None:
    standin.configure("no_host_task")
    queue = device.make_queue()
    standin.configure("no_host_task")
    with pytest.raises(PinningError, match=rf"queues of {device.name} cannot call functions.*in a thread of your own"):
        queue.call(FREE, 0)
    assert standin.calls() == []


# ---- adopted and closed ----


def test_a_queue_of_another_kind_is_not_adopted(standin: StandIn) -> None:
    with another_context(FIRST) as another:
        for flags, context, device, match in (
            (0, FIRST.context, SECOND, "is not one of ur:0: adopt it on its own device"),
            (1, FIRST.context, FIRST, "out of order"),
            (0, another, FIRST, "in another context than the memory"),
        ):
            with (
                others_queue(device, context, flags) as handle,
                pytest.raises(PinningError, match=match),
            ):
                FIRST.adopt_queue(handle)
    assert queues() == 0


def test_a_queue_that_is_dropped_at_work_blocks_nobody(standin: StandIn) -> None:
    libc = ctypes.CDLL(None)
    lock = ctypes.create_string_buffer(64)  # a pthread_mutex_t, all zero: unlocked
    KEPT.append(lock)  # the thread that does the work may still use it after this test
    libc.pthread_mutex_lock(lock)
    queue = FIRST.make_queue()
    queue.call(ctypes.cast(libc.pthread_mutex_lock, ctypes.c_void_p).value or 0, ctypes.addressof(lock))
    del queue
    gc.collect()
    libc.pthread_mutex_unlock(lock)  # not reached if the collection waited for the work
    assert eventually(lambda: queues() == 0)

    def taken() -> bool:
        if libc.pthread_mutex_trylock(lock):
            return True
        libc.pthread_mutex_unlock(lock)
        return False

    assert eventually(taken)  # the work was done nevertheless

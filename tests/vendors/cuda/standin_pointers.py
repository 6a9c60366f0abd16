# SPDX-License-Identifier: Apache-2.0
"""`CudaDevice.is_pinned_ptr` for every kind of pointer; it creates no context."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cuda.bindings import driver as cuda

from fake_device import Background
from mapped_memory import Memory
from pinning.plugin import PinnedInfo
from pinning_cuda import plugin
from standins.standin import StandIn

SHIFT = 1 << 47  # between the stand-in's host and device addresses of registered memory
PAGES = 4

DEVICE = plugin.device(0)
MEMORY = Memory(PAGES)


def test_asking_makes_no_context(standin: StandIn) -> None:
    fresh = plugin.device(1)
    DEVICE.data_lock(MEMORY.ptr, 100, False)
    standin.configure()
    assert fresh.is_pinned_ptr(MEMORY.ptr) == PinnedInfo(MEMORY.ptr, 100, MEMORY.ptr + SHIFT)
    assert fresh.is_pinned_ptr(MEMORY.ptr + 100) is None
    assert {call.split()[0] for call in standin.calls()} == {"cuPointerGetAttributes"}
    assert cuda.cuDevicePrimaryCtxGetState(1)[2] == 0
    DEVICE.data_unlock(MEMORY.ptr)


@pytest.mark.parametrize("question", [DEVICE.is_pinned_ptr, DEVICE.memory_info])
def test_a_lock_that_goes_while_it_is_asked_about_is_not_pinned(
    standin: StandIn, question: Callable[[int], object]
) -> None:
    DEVICE.data_lock(MEMORY.ptr, 100, False)
    standin.configure("delay=cuPointerGetAttributes:60000")
    asking = Background(lambda: question(MEMORY.ptr))
    while not standin.calls("cuPointerGetAttributes"):
        pass
    standin.configure("delay=cuPointerGetAttributes:60000")  # lets the first call continue, and delays the second
    while not standin.calls("cuPointerGetAttributes"):
        pass
    DEVICE.data_unlock(MEMORY.ptr)
    standin.configure()
    assert asking.result() is None

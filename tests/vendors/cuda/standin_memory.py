# SPDX-License-Identifier: Apache-2.0
"""What the driver knows about a pointer, for which no context is made, and connections between GPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cuda.bindings import driver as cuda

import pinning
from fake_device import Background
from mapped_memory import Memory
from pinning.errors import VendorError
from pinning.plugin import MemoryConnection, MemoryInfo, MemoryKind, PinnedInfo
from pinning_cuda import plugin
from standins.standin import StandIn

DEVICE = MemoryKind.DEVICE
SHIFT = 1 << 47  # between the stand-in's host and device addresses of registered memory

GPU = plugin.device(0)
MEMORY = Memory(4)


def test_asking_makes_no_context_and_needs_none(standin: StandIn) -> None:
    ptr = GPU.allocate(100)
    fresh = plugin.device(3)
    standin.configure()
    assert Background(lambda: fresh.memory_info(ptr + 7)).result() == MemoryInfo(DEVICE, ptr, 100, 0)
    assert {call.split()[0] for call in standin.calls()} == {"cuPointerGetAttributes"}
    assert cuda.cuDevicePrimaryCtxGetState(3)[2] == 0
    GPU.free(ptr)


def test_asking_what_is_pinned_makes_no_context(standin: StandIn) -> None:
    fresh = plugin.device(1)
    GPU.data_lock(MEMORY.ptr, 100, False)
    standin.configure()
    assert fresh.is_pinned_ptr(MEMORY.ptr) == PinnedInfo(MEMORY.ptr, 100, MEMORY.ptr + SHIFT)
    assert fresh.is_pinned_ptr(MEMORY.ptr + 100) is None
    assert {call.split()[0] for call in standin.calls()} == {"cuPointerGetAttributes"}
    assert cuda.cuDevicePrimaryCtxGetState(1)[2] == 0
    GPU.data_unlock(MEMORY.ptr)


@pytest.mark.parametrize("question", [GPU.is_pinned_ptr, GPU.memory_info])
def test_a_lock_that_goes_while_it_is_asked_about_is_not_pinned(
    standin: StandIn, question: Callable[[int], object]
) -> None:
    GPU.data_lock(MEMORY.ptr, 100, False)
    standin.configure("delay=cuPointerGetAttributes:60000")
    asking = Background(lambda: question(MEMORY.ptr))
    standin.wait_for("cuPointerGetAttributes")
    standin.configure("delay=cuPointerGetAttributes:60000")  # lets the first call continue, and delays the second
    standin.wait_for("cuPointerGetAttributes")
    GPU.data_unlock(MEMORY.ptr)
    standin.configure()
    assert asking.result() is None


@pytest.mark.parametrize("question", [GPU.is_pinned_ptr, GPU.memory_info])
def test_a_question_that_fails_is_no_answer(standin: StandIn, question: Callable[[int], object]) -> None:
    standin.configure("fail=cuPointerGetAttributes:1:999")
    with pytest.raises(VendorError, match="999"):
        question(MEMORY.ptr)


# ---- connections ----


def test_access_of_another_gpu_is_enabled_in_its_context(standin: StandIn) -> None:
    owner, user = plugin.device(2), plugin.device(3)
    standin.configure()
    assert owner.connection(user) is MemoryConnection.UNIFIED
    assert standin.calls("cuDeviceCanAccessPeer") == ["cuDeviceCanAccessPeer 3 2"]
    (pushed,) = standin.calls("cuCtxPushCurrent")
    assert int(pushed.split()[1], 16) == user.context
    (enabled,) = standin.calls("cuCtxEnablePeerAccess")
    assert int(enabled.split()[1], 16) == owner.context
    assert owner.connection(user) is MemoryConnection.UNIFIED  # already enabled, by us or another library


def test_more_gpus_than_can_be_connected_copy(standin: StandIn) -> None:
    standin.configure("fail=cuCtxEnablePeerAccess:1:711")
    assert plugin.device(1).connection(plugin.device(3)) is MemoryConnection.MIGRATABLE


def test_an_address_of_another_gpu_is_not_taken_for_the_asked_ones(standin: StandIn) -> None:
    """Of memory that only the driver knows, asked by the queue's own GPU."""
    owner = plugin.device(1)
    theirs = owner.allocate(4096)
    with pinning.Queue("cuda:0") as queue, pinning.alloc(4096, device="cuda:0") as here:
        assert pinning.explain(here, theirs, 4096, queue=queue).reason == "cuda:1 copies to cuda:0 itself"
        assert pinning.explain(theirs, here, 4096, queue=queue).reason == "cuda:0 copies to cuda:1 itself"
    owner.free(theirs)

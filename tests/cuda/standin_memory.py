# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory, what the driver knows of a pointer, and connections between GPUs.

A stand-in checks the ABI and the sequence of calls, not a real driver's semantics.
"""

from __future__ import annotations

import threading

import pytest
from cuda.bindings import driver as cuda

from mapped_memory import Memory
from pinning.errors import VendorError
from pinning.plugin import MemoryConnection, MemoryInfo, MemoryKind
from pinning_cuda import CudaDevice, plugin
from standins.libcuda import live
from standins.standin import StandIn

HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED
GPU = plugin.device(0)
OTHER = plugin.device(1)

CALLS = {
    HOST: ("cuMemHostAlloc 1000 3", "cuMemFreeHost"),
    DEVICE: ("cuMemAlloc 1000", "cuMemFree"),
    SHARED: ("cuMemAllocManaged 1000 1", "cuMemFree"),
}


@pytest.fixture(params=MemoryKind, ids=lambda kind: kind.value)
def kind(request: pytest.FixtureRequest) -> MemoryKind:
    return request.param  # type: ignore[no-any-return]


def test_a_gpu_without_managed_memory_has_no_shared_memory(standin: StandIn) -> None:
    standin.configure("no_managed")
    gpu = CudaDevice("cuda:0")
    assert gpu.memory_kinds == {HOST, DEVICE}
    with pytest.raises(VendorError, match="CUDA_ERROR_NOT_SUPPORTED"):
        gpu.allocate(8, SHARED)


def test_each_kind_is_allocated_exactly_and_given_back(standin: StandIn, kind: MemoryKind) -> None:
    allocate, free = CALLS[kind]
    standin.configure()
    ptr = OTHER.allocate(1000, kind)
    assert [call for call in standin.calls() if "Ctx" not in call] == [allocate]
    assert live()["allocations"] == 1
    info = MemoryInfo(kind, ptr, 1000, None if kind is HOST else 1)
    assert [GPU.memory_info(ptr + at) for at in (0, 1, 999)] == [info] * 3  # whichever GPU is asked
    assert GPU.memory_info(ptr + 1000) is None
    assert GPU.is_pinned_ptr(ptr + 999) == ((ptr, 1000, ptr) if kind is HOST else None)
    standin.configure()
    OTHER.free(ptr, kind)
    assert len(standin.calls(free)) == 1
    assert live()["allocations"] == 0
    assert GPU.memory_info(ptr) is None


def test_memory_that_is_locked_is_told_by_its_host_address(standin: StandIn) -> None:
    memory = Memory(1)
    device_ptr = GPU.data_lock(memory.ptr + 10, 100, False)
    for ptr in (memory.ptr + 10, memory.ptr + 109, device_ptr, device_ptr + 99):
        assert OTHER.memory_info(ptr) == MemoryInfo(HOST, memory.ptr + 10, 100, None)
    for ptr in (memory.ptr + 9, memory.ptr + 110):
        assert OTHER.memory_info(ptr) is None
    GPU.data_unlock(memory.ptr + 10)


def test_asking_makes_no_context_and_needs_none(standin: StandIn) -> None:
    ptr = GPU.allocate(100)
    fresh = plugin.device(3)
    answers: list[MemoryInfo | None] = []
    standin.configure()
    thread = threading.Thread(target=lambda: answers.append(fresh.memory_info(ptr + 7)))
    thread.start()
    thread.join()
    assert answers == [MemoryInfo(DEVICE, ptr, 100, 0)]
    assert {call.split()[0] for call in standin.calls()} == {"cuPointerGetAttributes"}
    assert cuda.cuDevicePrimaryCtxGetState(3)[2] == 0
    GPU.free(ptr)


def test_nothing_can_be_allocated(standin: StandIn, kind: MemoryKind) -> None:
    with pytest.raises(VendorError) as raised:
        GPU.allocate(0, kind)
    assert (raised.value.code, raised.value.name) == (1, "CUDA_ERROR_INVALID_VALUE")


def test_another_librarys_context_is_left_current(standin: StandIn, kind: MemoryKind) -> None:
    (_, theirs) = cuda.cuDevicePrimaryCtxRetain(3)
    cuda.cuCtxPushCurrent(theirs)
    ptr = GPU.allocate(100, kind)
    info = GPU.memory_info(ptr)
    assert info and info.device == (None if kind is HOST else 0)
    GPU.free(ptr, kind)
    with pytest.raises(VendorError):
        GPU.free(ptr, kind)
    assert int(cuda.cuCtxGetCurrent()[1]) == int(theirs)
    cuda.cuCtxPopCurrent()
    cuda.cuDevicePrimaryCtxRelease(3)


# ---- connections ----


def test_a_gpu_uses_its_own_memory(standin: StandIn) -> None:
    standin.configure()
    assert GPU.connection(CudaDevice("cuda:0")) is MemoryConnection.UNIFIED
    assert standin.calls("cuDeviceCanAccessPeer") == standin.calls("cuCtxEnablePeerAccess") == []


def test_access_of_another_gpu_is_enabled_in_its_context(standin: StandIn) -> None:
    owner, user = plugin.device(2), plugin.device(3)
    standin.configure()
    assert owner.connection(user) is MemoryConnection.UNIFIED
    assert standin.calls("cuDeviceCanAccessPeer") == ["cuDeviceCanAccessPeer 3 2"]
    (pushed,) = standin.calls("cuCtxPushCurrent")
    assert int(pushed.split()[1], 16) == user.context
    (enabled,) = standin.calls("cuCtxEnablePeerAccess")
    assert int(enabled.split()[1], 16) == owner.context
    assert owner.connection(user) is MemoryConnection.UNIFIED  # enabled already, by us or another


def test_gpus_that_do_not_reach_one_another_copy(standin: StandIn) -> None:
    standin.configure("no_peers")
    assert GPU.connection(OTHER) is MemoryConnection.MIGRATABLE
    assert standin.calls("cuCtxEnablePeerAccess") == []


def test_more_gpus_than_can_be_connected_copy(standin: StandIn) -> None:
    standin.configure("fail=cuCtxEnablePeerAccess:1:711")
    assert plugin.device(1).connection(plugin.device(3)) is MemoryConnection.MIGRATABLE


# ---- no device any more ----


def test_a_lost_gpu_says_so_and_still_answers_questions(standin: StandIn) -> None:
    ptr = GPU.allocate(100)
    standin.configure("lost=cuMemAlloc:1:719")
    for act in (lambda: GPU.allocate(8), lambda: GPU.allocate(8, HOST), lambda: GPU.free(ptr), GPU.synchronize):
        with pytest.raises(VendorError, match=r"CUDA_ERROR_LAUNCH_FAILED \(719\)"):
            act()
    assert GPU.memory_info(ptr) == MemoryInfo(DEVICE, ptr, 100, 0)
    standin.configure()
    GPU.free(ptr)

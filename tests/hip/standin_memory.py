# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory, what the runtime knows of a pointer, and connections between GPUs.

A stand-in checks the ABI and the sequence of calls, not a real runtime's semantics.
"""

from __future__ import annotations

import pytest

from hip import hip
from mapped_memory import Memory
from pinning.errors import VendorError
from pinning.plugin import MemoryConnection, MemoryInfo, MemoryKind
from pinning_hip import HipDevice, plugin
from standins.libhip import live
from standins.standin import StandIn

HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED
GPU = plugin.device(0)
OTHER = plugin.device(1)

CALLS = {
    HOST: ("hipHostMalloc 1000 3", "hipHostFree"),
    DEVICE: ("hipMalloc 1000", "hipFree"),
    SHARED: ("hipMallocManaged 1000 1", "hipFree"),
}
OF_THE_DEVICE = {"hipGetDevice", "hipSetDevice"}  # making a device current, which others' tests are about


@pytest.fixture(params=MemoryKind, ids=lambda kind: kind.value)
def kind(request: pytest.FixtureRequest) -> MemoryKind:
    return request.param  # type: ignore[no-any-return]


def test_a_gpu_without_managed_memory_has_no_shared_memory(standin: StandIn) -> None:
    standin.configure("no_managed")
    gpu = HipDevice("hip:0")
    assert gpu.memory_kinds == {HOST, DEVICE}
    with pytest.raises(VendorError, match="hipErrorNotSupported"):
        gpu.allocate(8, SHARED)


def test_each_kind_is_allocated_exactly_and_given_back(standin: StandIn, kind: MemoryKind) -> None:
    allocate, free = CALLS[kind]
    standin.configure()
    ptr = OTHER.allocate(1000, kind)
    assert [call for call in standin.calls() if call.split()[0] not in OF_THE_DEVICE] == [allocate]
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


@pytest.mark.parametrize("call", ["hipPointerGetAttribute:1", "hipPointerGetAttribute:2", "hipPointerGetAttribute:4"])
def test_memory_that_goes_while_it_is_asked_about_is_unknown(standin: StandIn, call: str) -> None:
    ptr = GPU.allocate(100)
    standin.configure(f"fail={call}:17")
    assert GPU.memory_info(ptr) is None
    standin.configure()
    GPU.free(ptr)


# ---- connections ----


def test_a_gpu_uses_its_own_memory(standin: StandIn) -> None:
    standin.configure()
    assert GPU.connection(HipDevice("hip:0")) is MemoryConnection.UNIFIED
    assert standin.calls("hipDeviceCanAccessPeer") == standin.calls("hipDeviceEnablePeerAccess") == []


def test_access_of_another_gpu_is_enabled_for_it(standin: StandIn) -> None:
    owner, user = plugin.device(2), plugin.device(3)
    hip.hipSetDevice(1)
    standin.configure()
    assert owner.connection(user) is MemoryConnection.UNIFIED
    assert standin.calls("hipDeviceCanAccessPeer") == ["hipDeviceCanAccessPeer 3 2"]
    assert standin.calls("hipSetDevice") == ["hipSetDevice 3", "hipSetDevice 1"]
    assert standin.calls("hipDeviceEnablePeerAccess") == ["hipDeviceEnablePeerAccess 2 0"]
    assert owner.connection(user) is MemoryConnection.UNIFIED  # enabled already, by us or another
    hip.hipSetDevice(0)


def test_gpus_that_do_not_reach_one_another_copy(standin: StandIn) -> None:
    standin.configure("no_peers")
    assert GPU.connection(OTHER) is MemoryConnection.MIGRATABLE
    assert standin.calls("hipDeviceEnablePeerAccess") == []


# ---- no device any more ----


def test_a_lost_gpu_says_so_and_still_answers_questions(standin: StandIn) -> None:
    ptr = GPU.allocate(100)
    standin.configure("lost=hipMalloc:1:719")
    for act in (lambda: GPU.allocate(8), lambda: GPU.allocate(8, HOST), lambda: GPU.free(ptr), GPU.synchronize):
        with pytest.raises(VendorError, match=r"hipErrorLaunchFailure \(719\)"):
            act()
    assert GPU.memory_info(ptr) == MemoryInfo(DEVICE, ptr, 100, 0)
    standin.configure()
    GPU.free(ptr)

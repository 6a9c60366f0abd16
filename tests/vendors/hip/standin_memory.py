# SPDX-License-Identifier: Apache-2.0
"""What the runtime knows about a pointer, and connections between GPUs."""

from __future__ import annotations

import mmap

import pytest
from hip import hip

import pinning
from mapped_memory import PAGE, Memory
from pinning.plugin import MemoryConnection, PinnedInfo
from pinning_hip import plugin
from standins.standin import StandIn

SHIFT = 1 << 47  # between the stand-in's host and device addresses of registered memory, on its first device

GPU = plugin.device(0)
MEMORY = Memory(4)


@pytest.mark.parametrize("call", ["hipPointerGetAttribute:1", "hipPointerGetAttribute:2", "hipPointerGetAttribute:4"])
def test_memory_that_goes_while_it_is_asked_about_is_unknown(standin: StandIn, call: str) -> None:
    ptr = GPU.allocate(100)
    standin.configure(f"fail={call}:17")
    assert GPU.memory_info(ptr) is None
    standin.configure()
    GPU.free(ptr)


def test_a_size_of_more_than_32_bits(standin: StandIn) -> None:
    size = (5 << 30) + 3
    reserved = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    large = Memory(size // PAGE + 1, prot=0, flags=reserved)  # PROT_NONE: the kernel populates none of it
    GPU.data_lock(large.ptr, size, None)
    assert GPU.is_pinned_ptr(large.ptr + size - 1) == PinnedInfo(large.ptr, size, large.ptr + SHIFT)
    GPU.data_unlock(large.ptr)


def test_each_device_tells_its_own_address(standin: StandIn) -> None:
    locked = plugin.device(2).data_lock(MEMORY.ptr, 100, None)
    told = [plugin.device(index).is_pinned_ptr(MEMORY.ptr + 7) for index in range(4)]
    assert told[2] == PinnedInfo(MEMORY.ptr, 100, locked)
    assert len({info.device_ptr for info in told if info}) == 4
    plugin.device(1).data_unlock(MEMORY.ptr)


def test_managed_memory_is_not_pinned(standin: StandIn) -> None:
    with pinning.alloc(100, "shared", device=GPU) as memory:
        assert GPU.is_pinned_ptr(memory.ptr) is None


@pytest.mark.parametrize("call", ["hipPointerGetAttribute:2", "hipPointerGetAttribute:3", "hipMemGetAddressRange:1"])
@pytest.mark.parametrize("code", [1, 17, 500])
def test_a_lock_that_goes_while_it_is_asked_about_is_not_pinned(standin: StandIn, call: str, code: int) -> None:
    GPU.data_lock(MEMORY.ptr, 100, False)
    standin.configure(f"fail={call}:{code}")
    assert GPU.is_pinned_ptr(MEMORY.ptr) is None
    GPU.data_unlock(MEMORY.ptr)


# ---- connections ----


def test_access_of_another_gpu_is_enabled_for_it(standin: StandIn) -> None:
    owner, user = plugin.device(2), plugin.device(3)
    hip.hipSetDevice(1)
    standin.configure()
    assert owner.connection(user) is MemoryConnection.UNIFIED
    assert standin.calls("hipDeviceCanAccessPeer") == ["hipDeviceCanAccessPeer 3 2"]
    assert standin.calls("hipSetDevice") == ["hipSetDevice 3", "hipSetDevice 1"]
    assert standin.calls("hipDeviceEnablePeerAccess") == ["hipDeviceEnablePeerAccess 2 0"]
    assert owner.connection(user) is MemoryConnection.UNIFIED  # already enabled, by us or another library
    assert hip.hipGetLastError() == (0,)  # which other code asks after its kernels
    hip.hipSetDevice(0)

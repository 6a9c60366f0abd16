# SPDX-License-Identifier: Apache-2.0
"""`HipDevice.is_pinned_ptr` for every kind of pointer."""

from __future__ import annotations

import mmap

import pytest

import pinning
from mapped_memory import PAGE, Memory
from pinning.plugin import PinnedInfo
from pinning_hip import plugin
from standins.standin import StandIn

SHIFT = 1 << 47  # between the stand-in's host and device addresses of registered memory, on its first device
PAGES = 4

DEVICE = plugin.device(0)
MEMORY = Memory(PAGES)


def test_a_size_of_more_than_32_bits(standin: StandIn) -> None:
    size = (5 << 30) + 3
    reserved = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    large = Memory(size // PAGE + 1, prot=0, flags=reserved)  # PROT_NONE: the kernel populates none of it
    DEVICE.data_lock(large.ptr, size, None)
    assert DEVICE.is_pinned_ptr(large.ptr + size - 1) == PinnedInfo(large.ptr, size, large.ptr + SHIFT)
    DEVICE.data_unlock(large.ptr)


def test_each_device_tells_its_own_address(standin: StandIn) -> None:
    locked = plugin.device(2).data_lock(MEMORY.ptr, 100, None)
    told = [plugin.device(index).is_pinned_ptr(MEMORY.ptr + 7) for index in range(4)]
    assert told[2] == PinnedInfo(MEMORY.ptr, 100, locked)
    assert len({info.device_ptr for info in told if info}) == 4
    plugin.device(1).data_unlock(MEMORY.ptr)


def test_managed_memory_is_not_pinned(standin: StandIn) -> None:
    with pinning.alloc(100, "shared", device=DEVICE) as memory:
        assert DEVICE.is_pinned_ptr(memory.ptr) is None


@pytest.mark.parametrize("call", ["hipPointerGetAttribute:2", "hipPointerGetAttribute:3", "hipMemGetAddressRange:1"])
@pytest.mark.parametrize("code", [1, 17, 500])
def test_a_lock_that_goes_while_it_is_asked_about_is_not_pinned(standin: StandIn, call: str, code: int) -> None:
    DEVICE.data_lock(MEMORY.ptr, 100, False)
    standin.configure(f"fail={call}:{code}")
    assert DEVICE.is_pinned_ptr(MEMORY.ptr) is None
    DEVICE.data_unlock(MEMORY.ptr)

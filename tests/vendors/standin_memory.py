# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory, what drivers know about a pointer, and connections: tests for several vendors."""

from __future__ import annotations

import re
from typing import Any

import pytest

import pinning
from mapped_memory import PAGE, Memory
from pinning.errors import AlreadyPinnedError, VendorError
from pinning.plugin import MemoryConnection, MemoryInfo, MemoryKind
from standins.cases import only
from standins.standin import StandIn
from standins.vendors import DEVICE, HOST, SHARED, Vendor, this_vendor

kinds = pytest.mark.parametrize("kind", this_vendor().allocates, ids=lambda kind: kind.value)


@kinds
def test_each_kind_is_allocated_exactly_and_given_back(
    standin: StandIn, vendor: Vendor, gpu: Any, kind: MemoryKind
) -> None:
    allocate, free = vendor.allocates[kind]
    other = vendor.plugin.device(1)
    standin.configure()
    ptr = other.allocate(1000, kind)
    (call,) = [call for call in standin.calls() if not re.match(vendor.besides, call)]
    assert re.fullmatch(allocate, call)
    assert vendor.live()["allocations"] == 1
    info = MemoryInfo(kind, ptr, 1000, None if kind is HOST else 1)
    assert [gpu.memory_info(ptr + at) for at in (0, 1, 999)] == [info] * 3  # from any device
    assert pinning.memory_info(ptr + 1) == (kind, ptr, 1000, None if kind is HOST else other, None, None)
    assert gpu.memory_info(ptr + 1000) is None
    assert gpu.is_pinned_ptr(ptr + 999) == ((ptr, 1000, ptr) if kind is HOST else None)
    standin.configure()
    other.free(ptr, kind)
    assert len(standin.calls(free)) == 1
    assert vendor.live()["allocations"] == 0
    assert gpu.memory_info(ptr) is None


@pytest.mark.parametrize("release", this_vendor().releases)
def test_memory_of_the_drivers_own_making_is_pinned_already(standin: StandIn, gpu: Any, release: str) -> None:
    standin.configure(release)
    ptr = gpu.allocate(2 * PAGE, HOST)
    for at, size in ((0, 2 * PAGE), (1, 10), (-10, 20), (2 * PAGE - 10, 20)):
        with pytest.raises(AlreadyPinnedError):  # whatever the driver says
            gpu.data_lock(ptr + at, size, None)
    with pinning.PinnedMap(gpu) as table:
        assert table.lock(ptr + 10, PAGE) == ptr + 10
        (region,) = table
        assert (region.start, region.size, region.external) == (ptr, 2 * PAGE, True)
        table.unlock(ptr + 10)
        assert len(table) == 0
    assert standin.registrations() == set()
    gpu.free(ptr, HOST)


@only("cuda", "hip", "hsa")
@pytest.mark.parametrize("release", this_vendor().releases)
def test_memory_that_is_locked_is_told_by_its_host_address(
    standin: StandIn, vendor: Vendor, gpu: Any, release: str
) -> None:
    standin.configure(release)
    memory, other = Memory(1), vendor.plugin.device(1)
    device_ptr = gpu.data_lock(memory.ptr + 10, 100, False)
    for ptr in (memory.ptr + 10, memory.ptr + 109, device_ptr, device_ptr + 99):
        assert other.memory_info(ptr) == MemoryInfo(HOST, memory.ptr + 10, 100, None)
    for ptr in (memory.ptr + 9, memory.ptr + 110):
        assert other.memory_info(ptr) is None
    if vendor.name in ("hip", "hsa") and device_ptr != memory.ptr + 10:
        assert gpu.is_pinned_ptr(device_ptr) is None, "that is no address of the host"
    gpu.data_unlock(memory.ptr + 10)


@only("cuda", "hsa", "ur")
@kinds
def test_nothing_cannot_be_allocated(standin: StandIn, vendor: Vendor, gpu: Any, kind: MemoryKind) -> None:
    with pytest.raises(VendorError) as raised:
        gpu.allocate(0, kind)
    assert (raised.value.code, raised.value.name) == vendor.nothing


@only("cuda", "hip")
def test_device_memory_that_cannot_be_had(standin: StandIn, vendor: Vendor, gpu: Any) -> None:
    standin.configure(f"fail={vendor.allocation}:1:2")
    with pytest.raises(VendorError, match=rf"{vendor.allocation} failed: {vendor.out_of_memory} \(2\)"):
        gpu.allocate(4096)


@only("cuda", "hip")
def test_a_gpu_without_managed_memory_has_no_shared_memory(standin: StandIn, gpu: Any) -> None:
    standin.configure("no_managed")
    fresh = type(gpu)(gpu.name)
    assert fresh.memory_kinds == {HOST, DEVICE}
    with pytest.raises(VendorError, match=r"(?i)not_?supported"):
        fresh.allocate(8, SHARED)


@only("cuda", "hip", "ur")
def test_a_lost_device_says_so_and_still_answers_questions(standin: StandIn, vendor: Vendor, gpu: Any) -> None:
    ptr = gpu.allocate(100)
    code = int(vendor.lost[-1].split(":")[-1])
    standin.configure(f"lost={vendor.allocation}:1:{code}")
    for act in (lambda: gpu.allocate(8), lambda: gpu.allocate(8, HOST), lambda: gpu.free(ptr), gpu.make_queue):
        with pytest.raises(VendorError) as raised:
            act()
        assert (raised.value.code, raised.value.name) == (code, vendor.lost_name)
    assert gpu.memory_info(ptr) == MemoryInfo(DEVICE, ptr, 100, 0)
    standin.configure()
    gpu.free(ptr)


# ---- connections ----


@only("cuda", "hip")
def test_a_gpu_uses_its_own_memory(standin: StandIn, gpu: Any) -> None:
    standin.configure()
    assert gpu.connection(type(gpu)(gpu.name)) is MemoryConnection.UNIFIED
    assert not [call for call in standin.calls() if "Peer" in call]


@only("cuda", "hip")
def test_gpus_that_do_not_reach_one_another_copy(standin: StandIn, vendor: Vendor, gpu: Any) -> None:
    standin.configure("no_peers")
    assert gpu.connection(vendor.plugin.device(1)) is MemoryConnection.MIGRATABLE
    assert not [call for call in standin.calls() if "EnablePeerAccess" in call]

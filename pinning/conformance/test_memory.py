# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory: what is allocated, what the device reports about an address, and connections to other devices."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import pinning
from pinning import MemoryConnection, MemoryKind, PinningError
from pinning.conformance.faults import Faults
from pinning.conformance.held import Held
from pinning.conformance.memory import PAGE, Pages, has
from pinning.conformance.processes import refusals
from pinning.plugin import Device, MemoryDevice, MemoryInfo

HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED


@pytest.fixture(params=MemoryKind, ids=lambda kind: kind.value)
def kind(request: pytest.FixtureRequest, memories: MemoryDevice) -> MemoryKind:
    """Each kind that the device has."""
    return has(memories, request.param)


@pytest.fixture
def index(memories: MemoryDevice) -> int:
    """The index of the device in its plugin."""
    return memories.index


def test_a_kind_that_it_has_not_is_refused(memories: MemoryDevice) -> None:
    for kind in set(MemoryKind) - memories.memory_kinds:
        with pytest.raises(PinningError):
            memories.allocate(8, kind)


@pytest.mark.parametrize("size", [1, 1000, PAGE])
def test_each_kind_is_allocated_exactly_and_given_back(
    memories: MemoryDevice, kind: MemoryKind, index: int, size: int, driver_faults: Faults | None
) -> None:
    before = driver_faults and driver_faults.held()
    ptr = memories.allocate(size, kind)
    assert ptr % 16 == 0
    info = MemoryInfo(kind, ptr, size, None if kind is HOST else index)
    assert [memories.memory_info(ptr + at) for at in (0, size // 2, size - 1)] == [info] * 3
    if kind is not DEVICE:
        ctypes.memset(ptr, 7, size)  # the host can access it
        assert ctypes.string_at(ptr, size) == b"\7" * size
    memories.free(ptr, kind)
    assert driver_faults is None or driver_faults.held() == before
    assert memories.memory_info(ptr) is None


def test_without_a_kind_it_is_device_memory(memories: MemoryDevice) -> None:
    ptr = memories.allocate(PAGE)
    info = memories.memory_info(ptr)
    assert info and info.kind is DEVICE
    memories.free(ptr)


def test_host_memory_is_pinned_and_no_other(memories: MemoryDevice, kind: MemoryKind) -> None:
    ptr = memories.allocate(1000, kind)
    answers = {memories.is_pinned_ptr(ptr + at) for at in (0, 999)}
    memories.free(ptr, kind)
    (found,) = answers
    if kind is HOST:
        assert found is not None and found[:2] == (ptr, 1000)
        assert memories.is_pinned_ptr(ptr) is None
    else:
        assert found is None


def test_memory_that_is_locked_is_told_by_its_host_address(memories: MemoryDevice, tells: Held) -> None:
    pages = Pages(1)
    tells.lock(pages.ptr + 10, 100)
    for at in (10, 109):
        info = memories.memory_info(pages.ptr + at)
        assert info and (info.kind, info.device) == (HOST, None)
        assert info.base <= pages.ptr + at < info.base + info.size
    tells.unlock(pages.ptr + 10)
    assert memories.memory_info(pages.ptr + 10) is None


@pytest.mark.parametrize("ptr", [0, 1, (1 << 47) - 1, 1 << 47, (1 << 64) - 1], ids=hex)
def test_an_address_that_is_no_memory(memories: MemoryDevice, ptr: int) -> None:
    assert memories.memory_info(ptr) is None


def test_ordinary_memory_is_no_allocation(memories: MemoryDevice) -> None:
    assert memories.memory_info(Pages(1).ptr) is None


def test_too_much_cannot_be_allocated(memories: MemoryDevice, kind: MemoryKind) -> None:
    with pytest.raises(PinningError):
        memories.allocate(1 << 60, kind)


def test_what_is_not_there_cannot_be_given_back(memories: MemoryDevice, kind: MemoryKind) -> None:
    ptr = memories.allocate(100, kind)
    info = memories.memory_info(ptr)
    with pytest.raises(PinningError):
        memories.free(ptr + 1, kind)
    assert memories.memory_info(ptr) == info
    memories.free(ptr, kind)
    with pytest.raises(PinningError):
        memories.free(ptr, kind)


def test_many_threads_allocate(memories: MemoryDevice, kind: MemoryKind) -> None:
    def work(value: int) -> bool:
        right, pages = True, Pages(1)
        for _ in range(20):
            ptr = memories.allocate(100, kind)
            ctypes.memset(pages.ptr, value, 100)
            memories.copy(ptr, pages.ptr, 100)
            memories.copy(pages.ptr + 100, ptr, 100)
            right &= ctypes.string_at(pages.ptr + 100, 100) == bytes([value]) * 100
            memories.free(ptr, kind)
        return right

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


# ---- connections ----


def test_a_device_uses_its_own_memory(memories: MemoryDevice) -> None:
    assert memories.connection(memories) is MemoryConnection.UNIFIED


def test_devices_that_are_connected_copy(memories: MemoryDevice, others: list[Device]) -> None:
    if not others:
        pytest.skip(f"{memories.name} is the only device of its plugin")
    pages = Pages(1)
    for other in others:
        assert isinstance(other, MemoryDevice)
        if memories.connection(other) is MemoryConnection.NONE:
            continue
        here, there = memories.allocate(PAGE), other.allocate(PAGE)
        memories.copy(here, pages.ptr, PAGE)
        other.copy(there, here, PAGE)
        pages.write(0, bytes(PAGE))
        other.copy(pages.ptr, there, PAGE)
        assert pages.read() == pages.contents
        memories.free(here)
        other.free(there)


def test_other_vendors_devices_do_not_reach_it(memories: MemoryDevice) -> None:
    if memories.name == "host:0":
        pytest.skip("host:0 is the other vendor's device")
    assert memories.connection(pinning.device("host:0")) is MemoryConnection.NONE


# ---- fork ----


def test_a_fork_allocates_for_itself_or_is_told_that_it_cannot(
    memories: MemoryDevice, others: list[Device], driver_faults: Faults | None
) -> None:
    kind = HOST if HOST in memories.memory_kinds else DEVICE
    ptr = memories.allocate(100, kind)
    attempts: list[Callable[[], object]] = [
        lambda: memories.free(memories.allocate(100, kind), kind),
        lambda: memories.free(ptr, kind),
        lambda: memories.memory_info(ptr),
        *(lambda other=other: memories.connection(other) for other in others),
        memories.make_queue,
        memories.synchronize,
    ]
    if driver_faults:
        driver_faults.begin()
    refused = refusals(attempts)
    assert not refused or driver_faults is None or driver_faults.calls() == [], "the driver was called in the child"
    memories.free(ptr, kind)
    if not refused:
        pytest.skip(f"{memories.name} works in a fork")
    assert refused == len(attempts)

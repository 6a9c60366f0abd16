# SPDX-License-Identifier: Apache-2.0
"""What a device may offer besides locking: limits, coarse-grained memory, automatic locks, memory of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

import pinning
from pinning import PinnedMap, PinningError
from pinning.conformance.held import Held
from pinning.conformance.memory import PAGE, Pages
from pinning.plugin import AutomaticLocking, CopyDevice, Device


@pytest.fixture
def limited(device: Device) -> Any:
    if not (hasattr(device, "lock_limit") and hasattr(device, "largest_lock")):
        pytest.skip(f"{device.name} has no lock_limit and largest_lock: pinning.plugin.Device")
    return device


@pytest.fixture
def coarse(device: Device) -> Any:
    if not hasattr(device, "coherence"):
        pytest.skip(f"{device.name} has no coherence: pinning.plugin.Device")
    return device


# ---- limits ----


def test_the_largest_lock_is_at_least_a_page(limited: Any) -> None:
    assert limited.largest_lock >= PAGE


def test_the_limit_is_named_and_has_a_remedy(limited: Any) -> None:
    limit = limited.lock_limit()
    if limit is None:
        pytest.skip(f"no limit binds {limited.name} in this process")
    assert limit.name and limit.remedy
    assert limit.used >= 0
    assert limit.limit >= 0


def test_the_limit_counts_what_is_locked(limited: Any, held: Held) -> None:
    before = limited.lock_limit()
    if before is None:
        pytest.skip(f"no limit binds {limited.name} in this process")
    pages = Pages(4)
    held.lock(pages.ptr, pages.size)
    during = limited.lock_limit()
    held.unlock(pages.ptr)
    assert during is not None
    assert during.used >= before.used + pages.size


# ---- coherence ----


def test_coherence_is_a_set_of_truths(coarse: Any) -> None:
    assert coarse.coherence <= {True, False}


def test_coarse_grained_memory(coarse: Any, held: Held) -> None:
    if False not in coarse.coherence:
        pytest.skip(f"{coarse.name} has no coarse-grained memory")
    pages = Pages(3)
    assert held.lock(pages.ptr + 10, PAGE, coherent=False) > 0
    assert held.lock(pages.ptr + 10 + PAGE, 100) > 0  # a coherent lock beside it, in the same page
    held.unlock(pages.ptr + 10)
    held.unlock(pages.ptr + 10 + PAGE)
    assert pages.read() == pages.contents


def test_memory_that_must_be_coherent(device: Device, pinned_map: PinnedMap) -> None:
    pages = Pages(1)
    if True in getattr(device, "coherence", ()):
        pinned_map.lock(pages.ptr, 100, coherent=True)
        pinned_map.unlock(pages.ptr)
        return
    with pytest.raises(PinningError, match="coheren"):
        pinned_map.lock(pages.ptr, 100, coherent=True)


@pytest.mark.parametrize("coherent", [None, False])
def test_memory_that_need_not_be_coherent(pinned_map: PinnedMap, coherent: bool | None) -> None:
    pages = Pages(1)
    pinned_map.lock(pages.ptr, 100, coherent=coherent)
    pinned_map.unlock(pages.ptr)


# ---- automatic locks ----


def automatic(device: Device) -> AutomaticLocking:
    if not isinstance(device, AutomaticLocking):
        pytest.skip(f"{device.name} has no lock_mapped and unlock_unmapped: pinning.plugin.AutomaticLocking")
    return device


def test_what_is_mapped_is_locked_if_that_is_wanted(locking: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, device = Pages(3), automatic(locking)
    monkeypatch.setenv("PINNING_LOCK_MAPPED", "off")
    assert device.lock_mapped(pages.ptr, pages.size) is None
    device.unlock_unmapped(pages.ptr)
    monkeypatch.setenv("PINNING_LOCK_MAPPED", "mandatory")
    device_ptr = device.lock_mapped(pages.ptr + 7, 2 * PAGE)
    (region,) = pinning.regions(locking)
    assert (region.start, region.size, region.device_ptr) == (pages.ptr + 7, 2 * PAGE, device_ptr)
    device.unlock_unmapped(pages.ptr + 7)
    assert pinning.regions(locking) == []
    assert pages.read() == pages.contents


def test_what_someone_else_has_pinned_is_tracked_where_nothing_is_locked(
    tells: Held, locking: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, device = Pages(3), automatic(locking)
    theirs = tells.lock(pages.ptr, pages.size)
    monkeypatch.setenv("PINNING_LOCK_MAPPED", "off")
    assert device.lock_mapped(pages.ptr + PAGE, 10) == theirs + PAGE
    (region,) = pinning.regions(locking)
    assert (region.start, region.size, region.external) == (pages.ptr, pages.size, True)
    device.unlock_unmapped(pages.ptr + PAGE)
    assert pinning.regions(locking) == []
    assert locking.is_pinned_ptr(pages.ptr) is not None, "they still have it"
    tells.unlock(pages.ptr)


# ---- memory of its own ----


@pytest.fixture
def there(copies: CopyDevice) -> Iterator[int]:
    """16 pages of the device's memory."""
    ptr = copies.allocate(16 * PAGE)
    yield ptr
    copies.free(ptr)


def copy_there_and_back(copies: CopyDevice, there: int, source: int, size: int) -> bytes:
    back = ctypes.create_string_buffer(size)
    copies.copy(there, source, size)
    ctypes.memset(back, 0xEE, size)
    copies.copy(ctypes.addressof(back), there, size)
    return back.raw


SIZES = [1, 7, PAGE, PAGE + 1, 15 * PAGE + 3]


def test_a_device_has_a_description(copies: CopyDevice) -> None:
    assert copies.description


@pytest.mark.parametrize("size", SIZES)
def test_pageable_memory_comes_back(copies: CopyDevice, there: int, size: int) -> None:
    pages = Pages(16)
    assert copy_there_and_back(copies, there, pages.ptr + 5, size) == pages.contents[5 : 5 + size]


@pytest.mark.parametrize("size", SIZES)
def test_locked_memory_comes_back(copies: CopyDevice, there: int, held: Held, size: int) -> None:
    pages = Pages(16)
    held.lock(pages.ptr + 5, size)
    assert copy_there_and_back(copies, there, pages.ptr + 5, size) == pages.contents[5 : 5 + size]
    held.unlock(pages.ptr + 5)


def test_a_part_of_locked_memory_comes_back(copies: CopyDevice, there: int, held: Held) -> None:
    pages = Pages(8)
    held.lock(pages.ptr, pages.size)
    assert copy_there_and_back(copies, there, pages.ptr + 999, 5000) == pages.contents[999:5999]
    held.unlock(pages.ptr)


def test_a_copy_writes_no_byte_too_many(copies: CopyDevice, there: int, held: Held) -> None:
    pages = Pages(3)
    held.lock(pages.ptr, pages.size)
    copies.copy(there, pages.ptr, pages.size)
    pages.write(0, bytes(pages.size))
    copies.copy(pages.ptr + 100, there + 100, PAGE)
    held.unlock(pages.ptr)
    assert pages.read() == bytes(100) + pages.contents[100 : 100 + PAGE] + bytes(pages.size - PAGE - 100)


def test_memory_that_cannot_be_had(copies: CopyDevice) -> None:
    with pytest.raises(PinningError):
        copies.allocate(1 << 60)


def test_freeing_what_was_not_allocated(copies: CopyDevice, there: int) -> None:
    for ptr in (there + 16, Pages(1).ptr):
        with pytest.raises(PinningError):
            copies.free(ptr)


def test_allocations_are_apart(copies: CopyDevice) -> None:
    pages = Pages(2)
    ptrs = [copies.allocate(100) for _ in range(10)]
    for index, ptr in enumerate(ptrs):
        copies.copy(ptr, pages.ptr + index, 100)
    for index, ptr in enumerate(ptrs):
        copies.copy(pages.ptr + PAGE, ptr, 100)
        assert pages.read()[PAGE : PAGE + 100] == pages.contents[index : index + 100]
        copies.free(ptr)

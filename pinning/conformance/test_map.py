# SPDX-License-Identifier: Apache-2.0
"""The device under a `pinning.PinnedMap`: counts, offsets, refusals, and memory that another owner has pinned."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pinning import (
    AlreadyPinnedError,
    InvalidRangeError,
    NotLockedError,
    PartialOverlapError,
    PinnedMap,
    PinningError,
)
from pinning.conformance.held import Held
from pinning.conformance.memory import PAGE, Pages


def test_a_contained_lock_is_the_base_plus_the_offset(pinned_map: PinnedMap) -> None:
    pages = Pages(4)
    whole = pinned_map.lock(pages.ptr, pages.size)
    for at, size in [(0, 1), (PAGE - 1, 2), (123, 4000), (0, pages.size), (pages.size - 1, 1)]:
        assert pinned_map.lock(pages.ptr + at, size) == whole + at
    for _ in range(6):
        assert pages.ptr in pinned_map
        pinned_map.unlock(pages.ptr + 77)
    assert len(pinned_map) == 0


@pytest.mark.parametrize(("at", "size"), [(-10, 20), (PAGE - 10, 20), (-10, PAGE + 20)])
def test_a_partial_overlap_is_refused(pinned_map: PinnedMap, at: int, size: int) -> None:
    pages = Pages(3)
    base = pages.ptr + PAGE
    pinned_map.lock(base, PAGE)
    with pytest.raises(PartialOverlapError, match=f"{base:#x}"):
        pinned_map.lock(base + at, size)
    (region,) = pinned_map
    assert (region.start, region.size, region.references) == (base, PAGE, 1)
    pinned_map.unlock(base)


@pytest.mark.parametrize(("ptr", "size"), [(0, 10), (4096, 0), (4096, -1), (2**64 - 10, 20)])
def test_ranges_that_are_none(pinned_map: PinnedMap, ptr: int, size: int) -> None:
    with pytest.raises(InvalidRangeError):
        pinned_map.lock(ptr, size)
    assert len(pinned_map) == 0


def test_unlocking_what_is_not_locked(pinned_map: PinnedMap) -> None:
    pages = Pages(2)
    pinned_map.lock(pages.ptr + 8, 100)
    for ptr in (pages.ptr + 7, pages.ptr + 108, pages.ptr + PAGE):
        with pytest.raises(NotLockedError):
            pinned_map.unlock(ptr)
    pinned_map.unlock(pages.ptr + 8)
    with pytest.raises(NotLockedError):
        pinned_map.unlock(pages.ptr + 8)


@pytest.mark.parametrize("piece", [PAGE, 3 * PAGE])
def test_pieces_are_one_region_or_refused(pinned_map: PinnedMap, piece: int) -> None:
    pages = Pages(8)
    try:
        device_ptr = pinned_map.lock(pages.ptr, pages.size, piece=piece)
    except PinningError as error:
        assert len(pinned_map) == 0
        pytest.skip(f"this device's addresses do not go on from one lock to the next: {error}")
    (region,) = pinned_map
    assert (region.size, region.piece, region.device_ptr) == (pages.size, piece, device_ptr)
    pinned_map.unlock(pages.ptr)


def test_a_large_lock_in_one_call(pinned_map: PinnedMap) -> None:
    pages = Pages((16 << 20) // PAGE)
    pinned_map.lock(pages.ptr, pages.size)
    (region,) = pinned_map
    assert region.borders == ()
    pinned_map.unlock(pages.ptr)


def test_closing_unlocks_everything(tells: Held, pinned_map: PinnedMap) -> None:
    pages = Pages(4)
    with PinnedMap(tells.device) as short:
        for page in range(4):
            short.lock(pages.ptr + page * PAGE, 100)
            short.lock(pages.ptr + page * PAGE, 10)
    assert [tells.device.is_pinned_ptr(pages.ptr + page * PAGE) for page in range(4)] == [None] * 4
    pinned_map.lock(pages.ptr, pages.size)
    pinned_map.unlock(pages.ptr)


def test_what_someone_else_has_pinned_stays_pinned(tells: Held, pinned_map: PinnedMap) -> None:
    pages = Pages(4)
    device_ptr = tells.lock(pages.ptr, pages.size)  # behind the map's back
    assert pinned_map.lock(pages.ptr + 100, 200) == device_ptr + 100
    region = pinned_map.find(pages.ptr + 100)
    assert region is not None
    if region.external:
        assert (region.start, region.size, region.device_ptr) == tells.device.is_pinned_ptr(pages.ptr)
    else:  # this vendor's locks nest
        assert (region.start, region.size) == (pages.ptr + 100, 200)
    pinned_map.unlock(pages.ptr + 100)
    assert len(pinned_map) == 0
    assert tells.device.is_pinned_ptr(pages.ptr + 100) is not None
    tells.unlock(pages.ptr)
    assert tells.device.is_pinned_ptr(pages.ptr + 100) is None


def test_half_of_it_pinned_by_someone_else(held: Held, pinned_map: PinnedMap) -> None:
    pages = Pages(4)
    held.lock(pages.ptr, 2 * PAGE)
    try:
        pinned_map.lock(pages.ptr + PAGE, 2 * PAGE)
    except (PartialOverlapError, AlreadyPinnedError):
        assert len(pinned_map) == 0
    else:  # this vendor's locks nest
        pinned_map.unlock(pages.ptr + PAGE)
    held.unlock(pages.ptr)


def test_threads_lock_one_range_at_once(pinned_map: PinnedMap) -> None:
    pages = Pages(4)
    start = threading.Barrier(8)

    def work(_: int) -> None:
        start.wait(30)
        for _ in range(25):
            pinned_map.lock(pages.ptr, pages.size)
            assert pinned_map.find(pages.ptr, pages.size)
            pinned_map.unlock(pages.ptr + PAGE)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(pinned_map) == 0

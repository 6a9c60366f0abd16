# SPDX-License-Identifier: Apache-2.0
"""What the device reports as pinned. A vendor that locks whole pages may report whole pages, but no more."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from pinning import PinnedInfo, PinningError
from pinning.conformance.held import Held
from pinning.conformance.memory import PAGE, Pages
from pinning.plugin import Device


def page_start(ptr: int) -> int:
    return ptr & -PAGE


def page_end(ptr: int) -> int:
    return page_start(ptr + PAGE - 1)


@pytest.mark.parametrize(("at", "size"), [(0, 1), (100, 200), (PAGE - 1, 2), (0, PAGE), (5, 2 * PAGE), (0, 4 * PAGE)])
def test_inside_at_the_borders_and_outside(tells: Held, at: int, size: int) -> None:
    pages = Pages(4)
    ptr = pages.ptr + at
    device_ptr = tells.lock(ptr, size)
    answers = {address: tells.device.is_pinned_ptr(address) for address in {ptr, ptr + size // 2, ptr + size - 1}}
    (found,) = set(answers.values())
    assert isinstance(found, PinnedInfo)
    base, length, base_device_ptr = found
    assert page_start(ptr) <= base <= ptr and ptr + size <= base + length <= page_end(ptr + size)
    assert base_device_ptr + (ptr - base) == device_ptr
    assert tells.device.is_pinned_ptr(base) == found
    assert tells.device.is_pinned_ptr(base + length - 1) == found
    assert tells.device.is_pinned_ptr(base - 1) is None
    assert tells.device.is_pinned_ptr(base + length) is None
    tells.unlock(ptr)
    assert [tells.device.is_pinned_ptr(address) for address in answers] == [None] * len(answers)


@pytest.mark.parametrize("ptr", [0, 1, 4096, 2**47 - 4096, 2**47 - 1, 2**47, 2**64 - 1], ids=hex)
def test_addresses_of_nobody(device: Device, ptr: int) -> None:
    assert device.is_pinned_ptr(ptr) is None


def test_ordinary_memory(device: Device) -> None:
    pages = Pages(2)
    assert {device.is_pinned_ptr(pages.ptr + at) for at in (0, 1, PAGE, 2 * PAGE - 1)} == {None}


def test_two_ranges_in_one_page(tells: Held) -> None:
    pages = Pages(1)
    first, second = pages.ptr + 100, pages.ptr + 300
    device_ptrs = {first: tells.lock(first, 200), second: tells.lock(second, 50)}
    for ptr, device_ptr in device_ptrs.items():
        pinned = tells.device.is_pinned_ptr(ptr + 10)
        assert pinned is not None and pinned.base <= ptr + 10 < pinned.base + pinned.size
        assert pinned.device_ptr + (ptr - pinned.base) == device_ptr
    tells.unlock(first)
    assert tells.device.is_pinned_ptr(second) is not None, "unlocking a neighbour has unlocked this"
    tells.unlock(second)
    assert [tells.device.is_pinned_ptr(ptr) for ptr in device_ptrs] == [None, None]


def test_neighbours_stay_when_one_goes(tells: Held) -> None:
    pages = Pages(6)
    bases = [pages.ptr + 10 + index * (PAGE + 100) for index in range(4)]
    for base in bases:
        tells.lock(base, PAGE + 100)
    for gone in (1, 3, 0, 2):
        tells.unlock(bases[gone])
        bases[gone] = 0
        left = [base for base in bases if base]
        assert all(tells.device.is_pinned_ptr(base + at) for base in left for at in (0, PAGE, PAGE + 99))


def test_a_refused_unlock_unlocks_nothing(tells: Held, strict: Held) -> None:
    pages = Pages(1)
    tells.lock(pages.ptr, 100)
    before = tells.device.is_pinned_ptr(pages.ptr)
    with pytest.raises(PinningError):
        tells.device.data_unlock(pages.ptr + 8)
    assert tells.device.is_pinned_ptr(pages.ptr) == before
    tells.unlock(pages.ptr)


def test_any_thread_may_ask(tells: Held) -> None:
    pages = Pages(1)
    tells.lock(pages.ptr, PAGE)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(tells.device.is_pinned_ptr, pages.ptr + 7).result()
    assert answer == tells.device.is_pinned_ptr(pages.ptr + 7) is not None
    tells.unlock(pages.ptr)

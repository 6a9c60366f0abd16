# SPDX-License-Identifier: Apache-2.0
"""The device itself: what can be locked, and what a lock, an unlock and a refusal leave unchanged."""

from __future__ import annotations

import mmap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest

from pinning import AlreadyPinnedError, PinningError
from pinning.conformance.held import Held
from pinning.conformance.memory import PAGE, Pages

# offset and size in four pages
RANGES = {
    "one byte": (0, 1),
    "the last byte of a page": (PAGE - 1, 1),
    "two bytes across a border of pages": (PAGE - 1, 2),
    "a page": (0, PAGE),
    "a page and a byte": (0, PAGE + 1),
    "all but a byte at either end": (1, 4 * PAGE - 2),
    "odd": (1234, 4321),
    "four pages": (0, 4 * PAGE),
}


@pytest.mark.parametrize(("at", "size"), RANGES.values(), ids=list(RANGES))
@pytest.mark.parametrize("read_only", [None, False, True])
def test_any_range_is_locked_and_unlocked(held: Held, at: int, size: int, read_only: bool | None) -> None:
    pages = Pages(4)
    for _ in range(2):
        assert held.lock(pages.ptr + at, size, read_only) > 0
        held.unlock(pages.ptr + at)
    assert pages.read() == pages.contents


def test_many_pages(held: Held) -> None:
    pages = Pages(1000)
    held.lock(pages.ptr + 5, pages.size - 10)
    assert pages.read() == pages.contents
    held.unlock(pages.ptr + 5)
    assert pages.read() == pages.contents


def test_memory_that_was_never_touched(held: Held) -> None:
    array = numpy.frombuffer(mmap.mmap(-1, 16 * PAGE), numpy.uint8)
    held.lock(array.ctypes.data, array.nbytes)
    assert not array.any()
    held.unlock(array.ctypes.data)


def test_locked_memory_is_written_as_any_other(held: Held) -> None:
    pages = Pages(2)
    held.lock(pages.ptr + 10, PAGE)
    pages.write(10, b"written while locked")
    held.unlock(pages.ptr + 10)
    assert pages.read()[10:30] == b"written while locked"
    assert pages.read()[30:] == pages.contents[30:]


def test_after_an_unlock_neither_kernel_nor_vendor_has_anything_locked(held: Held) -> None:
    """An unlock that does not reach the vendor leaves pages in the kernel's count, or pinned in `is_pinned_ptr`."""
    pages, before = Pages(64), _locked_by_kernel()
    for _ in range(2):
        held.lock(pages.ptr, pages.size)
        held.unlock(pages.ptr)
        assert held.device.is_pinned_ptr(pages.ptr) is None
    assert _locked_by_kernel() == before


def test_the_kernel_counts_what_is_locked(held: Held, request: pytest.FixtureRequest) -> None:
    """A plugin that only keeps a list answers like one that pins; the kernel's count shows the difference."""
    count, pages = request.config.getoption("--counted-as"), Pages(8)
    if count is None:
        pytest.skip("whether memory is really pinned is not tested: --counted-as names a count of the kernel's")
    before = _locked_by_kernel()[count]
    held.lock(pages.ptr, pages.size)
    grown = _locked_by_kernel()[count] - before
    held.unlock(pages.ptr)
    assert grown == pages.size, f"{held.device.name} has locked {pages.size} bytes, and {count} has grown by {grown}"


def _locked_by_kernel() -> dict[str, int]:
    """Bytes that the kernel counts for this process as locked by mlock, and as pinned by drivers that count it."""
    lines = map(str.split, Path("/proc/self/status").read_text().splitlines())
    return {line[0][:-1]: int(line[1]) << 10 for line in lines if line and line[0] in ("VmLck:", "VmPin:")}


def test_memory_that_may_not_be_written(held: Held) -> None:
    pages = Pages(2)
    pages.protect()
    refused = []
    for read_only in (None, True):
        try:
            held.lock(pages.ptr, pages.size, read_only)
        except PinningError as error:
            refused.append(str(error))
            continue
        held.unlock(pages.ptr)
    assert pages.read() == pages.contents
    if refused:
        pytest.skip(f"{held.device.name} locks no memory that may not be written: {refused[0]}")


def test_two_ranges_in_one_page(held: Held) -> None:
    pages = Pages(1)
    first = held.lock(pages.ptr + 100, 200)
    second = held.lock(pages.ptr + 300, 50)
    third = held.lock(pages.ptr, 100)
    assert (second - first, third - first) == (200, -100), "one page, and yet not one stretch of device addresses"
    for at in (100, 0, 300):
        held.unlock(pages.ptr + at)
    assert pages.read() == pages.contents


def test_neighbours_that_share_a_page(held: Held) -> None:
    pages = Pages(4)
    held.lock(pages.ptr + 7, PAGE)
    held.lock(pages.ptr + 7 + PAGE, PAGE)
    held.unlock(pages.ptr + 7)
    held.lock(pages.ptr + 7, PAGE)
    held.unlock(pages.ptr + 7 + PAGE)
    held.unlock(pages.ptr + 7)


def test_a_range_within_another_is_refused_or_counted(held: Held) -> None:
    """A vendor may refuse what is locked already, or let locks nest."""
    pages = Pages(4)
    whole = held.lock(pages.ptr, pages.size)
    for at, size in [(0, pages.size), (PAGE, PAGE), (10, 10), (0, 1), (pages.size - 1, 1)]:
        try:
            part = held.lock(pages.ptr + at, size)
        except AlreadyPinnedError as error:
            assert error.call and error.name
        else:
            assert part == whole + at
            held.unlock(pages.ptr + at)
    held.unlock(pages.ptr)


def test_unlocking_twice(held: Held) -> None:
    pages = Pages(2)
    held.lock(pages.ptr + 10, 100)
    held.unlock(pages.ptr + 10)
    with pytest.raises(PinningError):
        held.device.data_unlock(pages.ptr + 10)


@pytest.mark.parametrize("at", [-8, 8, 100, PAGE], ids=["before", "inside", "just behind", "a page behind"])
def test_unlocking_what_is_no_base(strict: Held, at: int) -> None:
    pages = Pages(2)
    base = pages.ptr + 64
    strict.lock(base, 100)
    with pytest.raises(PinningError):
        strict.device.data_unlock(base + at)
    strict.unlock(base)


def test_memory_that_is_not_there(held: Held) -> None:
    """None of it, its last part, or addresses that no program has."""
    pages = {there: Pages(4) for there in (0, 1, 3)}
    for there, each in pages.items():
        each.unmap(first=there)
    cases = {f"the first {there} of 4 pages": (each.ptr + 10, 4 * PAGE - 20) for there, each in pages.items()}
    cases |= {"null": (0, PAGE), "8": (8, 8), "the top": (2**64 - PAGE, PAGE - 1)}
    asked = [(name, read_only) for name in cases for read_only in (None, False)]
    locked = [(name, read_only) for name, read_only in asked if locks(held, *cases[name], read_only)]
    assert not locked, "the device locks memory that is not there: (which, read_only)"
    assert {name: held.device.is_pinned_ptr(ptr) for name, (ptr, _) in cases.items()} == dict.fromkeys(cases)
    for there, each in pages.items():
        if there:  # nothing of it is locked
            held.lock(each.ptr + 10, 100)
            held.unlock(each.ptr + 10)


def locks(held: Held, ptr: int, size: int, read_only: bool | None) -> bool:
    """Whether the device locks a range rather than refuse it."""
    try:
        held.lock(ptr, size, read_only)
    except PinningError:
        return False
    held.unlock(ptr)
    return True


def test_threads_lock_at_once(held: Held) -> None:
    """Each thread locks its own range; neighbouring ranges share pages."""
    pages, each, rounds = Pages(8), 2500, 20
    start = threading.Barrier(8)

    def work(index: int) -> None:
        ptr = pages.ptr + 100 + index * each
        try:
            start.wait(30)
            first = held.lock(ptr, each)
            held.unlock(ptr)
            for _ in range(rounds):
                assert held.lock(ptr, each) == first
                start.wait(30)  # all are held
                held.unlock(ptr)
        except BaseException:
            start.abort()
            raise

    with ThreadPoolExecutor(8) as pool:
        ends = [pool.submit(work, index) for index in range(8)]
    failed = [error for end in ends if (error := end.exception()) is not None]
    for error in sorted(failed, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error  # what broke the barrier, before what the broken barrier made of it
    assert pages.read() == pages.contents

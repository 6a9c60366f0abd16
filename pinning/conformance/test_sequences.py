# SPDX-License-Identifier: Apache-2.0
"""Random sequences of locks and unlocks, compared with a list of what is locked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pinning import NotLockedError, PartialOverlapError, PinnedMap
from pinning.conformance.held import Held
from pinning.conformance.memory import PAGE, Pages

pytest.importorskip("hypothesis", reason="needs hypothesis: pip install hypothesis")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PAGES = 4
BORDERS = sorted({max(0, page * PAGE + by) for page in range(PAGES) for by in (-1, 0, 1, 100)})

# A step of `test_the_device` is a range of offsets; locks that overlap it are undone, and then it is locked.
places: st.SearchStrategy[int] = st.sampled_from(BORDERS) | st.integers(0, PAGES * PAGE - 1)
sizes: st.SearchStrategy[int] = st.sampled_from([1, 2, 99, PAGE, PAGE + 1, 2 * PAGE]) | st.integers(1, PAGES * PAGE)
steps: st.SearchStrategy[list[tuple[int, int]]] = st.lists(st.tuples(places, sizes), max_size=25)
often = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

Locks = dict[int, tuple[int, int]]  # by base: size, device pointer


def meets(ptr: int, size: int, locks: Locks) -> list[int]:
    return [base for base, (length, _) in locks.items() if ptr < base + length and base < ptr + size]


@contextmanager
def cleared(held: Held) -> Iterator[Locks]:
    """The locks of one sequence, undone at its end."""
    locks: Locks = {}
    yield locks
    for base in list(locks):
        held.unlock(base)


@often
@given(steps)
def test_the_device(tells: Held, steps: list[tuple[int, int]]) -> None:
    pages = Pages(PAGES)
    with cleared(tells) as locks:
        for at, size in steps:
            ptr, size = pages.ptr + at, min(size, PAGES * PAGE - at)
            for base in meets(ptr, size, locks):
                tells.unlock(base)
                del locks[base]
            locks[ptr] = (size, tells.lock(ptr, size))
            check(tells, pages, locks)
    assert pages.read() == pages.contents


def check(tells: Held, pages: Pages, locks: Locks) -> None:
    """Check `is_pinned_ptr` at every border of a lock and of a page."""
    ends = {end for base, (size, _) in locks.items() for end in (base - 1, base, base + size - 1, base + size)}
    for address in ends | {pages.ptr + page * PAGE for page in range(PAGES)}:
        pinned = tells.device.is_pinned_ptr(address)
        around = meets(address, 1, locks)
        page = address & -PAGE
        if pinned is not None:
            assert pinned.base <= address < pinned.base + pinned.size
            assert meets(page, PAGE, locks), f"{address:#x} is said to be pinned, and nothing in its page is locked"
        if around:
            assert pinned is not None, f"{address:#x} is locked and said not to be"
            (base,) = around
            assert pinned.device_ptr - pinned.base == locks[base][1] - base


@often
@given(st.lists(st.tuples(st.sampled_from(["lock", "unlock", "find"]), places, sizes), max_size=40))
def test_the_map(pinned_map: PinnedMap, steps: list[tuple[str, int, int]]) -> None:
    pages = Pages(PAGES)
    regions: dict[int, list[int]] = {}  # by base: size, device pointer, count
    for what, at, size in steps:
        ptr, size = pages.ptr + at, min(size, PAGES * PAGE - at)
        meeting = [base for base, (length, _, _) in regions.items() if ptr < base + length and base < ptr + size]
        whole = [base for base in meeting if base <= ptr and ptr + size <= base + regions[base][0]]
        if what == "lock" and meeting and not whole:
            with pytest.raises(PartialOverlapError):
                pinned_map.lock(ptr, size)
        elif what == "lock" and whole:
            assert pinned_map.lock(ptr, size) == regions[whole[0]][1] + ptr - whole[0]
            regions[whole[0]][2] += 1
        elif what == "lock":
            regions[ptr] = [size, pinned_map.lock(ptr, size), 1]
        elif what == "find":
            region = pinned_map.find(ptr, size)
            assert (region and [region.start]) == (whole or None)
        else:
            at_byte = [base for base in meeting if base <= ptr]
            if not at_byte:
                with pytest.raises(NotLockedError):
                    pinned_map.unlock(ptr)
                continue
            pinned_map.unlock(ptr)
            regions[at_byte[0]][2] -= 1
            if not regions[at_byte[0]][2]:
                del regions[at_byte[0]]
        now = [(region.start, region.size, region.references) for region in pinned_map]
        assert now == sorted((base, length, count) for base, (length, _, count) in regions.items())
    for base, (_, _, count) in regions.items():
        for _ in range(count):
            pinned_map.unlock(base)
    assert pages.read() == pages.contents

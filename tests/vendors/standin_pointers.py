# SPDX-License-Identifier: Apache-2.0
"""`is_pinned_ptr`: a test for all vendors."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mapped_memory import PAGE, Memory
from pinning.plugin import PinnedInfo
from standins.vendors import this_vendor

PAGES = 4
MEMORY = Memory(PAGES)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, PAGE)), max_size=2 * PAGES - 1), st.data())
def test_every_byte_of_a_lock_and_no_other_is_pinned(pieces: list[tuple[bool, int]], data: st.DataObject) -> None:
    gpu, shift = this_vendor().plugin.device(0), this_vendor().shift
    locks: list[tuple[int, int]] = []
    end = MEMORY.ptr
    for locked, size in pieces:
        size = min(size, MEMORY.ptr + MEMORY.size - end)
        if locked and size:
            gpu.data_lock(end, size, False)
            locks.append((end, size))
        end += size
    try:
        borders = [border for ptr, size in locks for border in (ptr - 1, ptr, ptr + size - 1, ptr + size)]
        inside = st.integers(MEMORY.ptr - 1, MEMORY.ptr + MEMORY.size)
        for address in [*borders, *data.draw(st.lists(inside, max_size=5))]:
            expected = [PinnedInfo(ptr, size, ptr + shift) for ptr, size in locks if ptr <= address < ptr + size]
            assert gpu.is_pinned_ptr(address) == (expected[0] if expected else None)
    finally:
        for ptr, _ in locks:
            gpu.data_unlock(ptr)

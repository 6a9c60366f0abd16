# SPDX-License-Identifier: Apache-2.0
"""What plugins read from /proc/self/maps; no driver takes part."""

from __future__ import annotations

import mmap
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from mapped_memory import PAGE, READ_WRITE, Memory
from pinning.plugin.mapping import gap, mappings

PAGES = 8


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["writable", "read only", "absent"]), min_size=PAGES, max_size=PAGES), st.data())
def test_a_range_over_pages_of_all_kinds(kinds: list[str], data: st.DataObject) -> None:
    borders = st.integers(0, PAGES - 1).map(lambda page: page * PAGE)
    start = data.draw(borders | st.integers(0, PAGES * PAGE - 1))
    end = data.draw(st.integers(start + 1, PAGES * PAGE))
    pages = range(start // PAGE, (end - 1) // PAGE + 1)

    # All is drawn by now: whatever maps memory after a page is unmapped might get that page.
    memory = Memory(PAGES)
    for page, kind in enumerate(kinds):
        if kind == "read only":
            memory.protect(page, mmap.PROT_READ)
    for page, kind in enumerate(kinds):
        if kind == "absent":
            memory.unmap(page)

    found = mappings(memory.ptr + start, end - start)
    covered = {
        page: mapping.writable
        for mapping in found
        for page in pages
        if mapping.start <= memory.ptr + page * PAGE < mapping.end
    }
    assert covered == {page: kinds[page] == "writable" for page in pages if kinds[page] != "absent"}
    assert all(mapping.start < memory.ptr + end and mapping.end > memory.ptr + start for mapping in found)

    absent = [max(start, page * PAGE) for page in pages if kinds[page] == "absent"]
    assert gap(memory.ptr + start, end - start, found) == (memory.ptr + absent[0] if absent else None)
    for page, kind in enumerate(kinds):
        if kind != "absent":
            memory.unmap(page)


def test_files_are_told_by_name_and_by_kind_of_mapping(file_memory: Callable[[int, int], Memory]) -> None:
    for prot, flags in [(mmap.PROT_READ, mmap.MAP_PRIVATE), (READ_WRITE, mmap.MAP_SHARED)]:
        memory = file_memory(prot, flags)
        (mapping,) = mappings(memory.ptr + 5, 1)
        assert mapping.file.endswith("/file of pages")
        assert (mapping.writable, mapping.shared) == (prot == READ_WRITE, flags == mmap.MAP_SHARED)
        assert (mapping.start, mapping.end) == (memory.ptr, memory.ptr + memory.size)


def test_anonymous_memory_has_no_file() -> None:
    memory = Memory(1)
    (mapping,) = mappings(memory.ptr, PAGE)
    assert (mapping.file, mapping.writable, mapping.shared) == ("", True, False)

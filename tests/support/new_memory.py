# SPDX-License-Identifier: Apache-2.0
"""Memory that no page fault has populated yet, and what a copy into a part of it has populated."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import numpy

PAGE, HUGE = mmap.PAGESIZE, 2 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class NewMemory:
    """A private mapping, for which the program has not asked for huge pages."""

    def __init__(self, size: int) -> None:
        self.mapping = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if _has_huge_pages():
            self.mapping.madvise(mmap.MADV_NOHUGEPAGE)  # where all memory has them, its neighbours would be populated
        self.array = numpy.frombuffer(self.mapping, numpy.uint8)
        self.ptr: int = self.array.ctypes.data

    def populated(self) -> set[int]:
        """The numbers of the pages that have memory."""
        count = len(self.mapping) // PAGE
        resident = (ctypes.c_ubyte * count)()
        assert _libc.mincore(ctypes.c_void_p(self.ptr), ctypes.c_size_t(len(self.mapping)), resident) == 0
        return {page for page in range(count) if resident[page] & 1}

    def advised(self) -> list[tuple[int, int]]:
        """The ranges of offsets for which huge pages are asked for."""
        found, start, end = [], 0, 0
        for line in Path("/proc/self/smaps").read_text().splitlines():
            first, _, rest = line.partition(" ")
            if "-" in first:
                start, end = (int(number, 16) - self.ptr for number in first.split("-"))
            elif first == "VmFlags:" and "hg" in rest.split() and 0 <= start < end <= len(self.mapping):
                found.append((start, end))
        return found


def pages_of(start: int, size: int) -> set[int]:
    return set(range(start // PAGE, (start + size - 1) // PAGE + 1))


def huge_pages_in(ptr: int, start: int, size: int) -> list[tuple[int, int]]:
    """The range of offsets of the huge pages that lie in [start, start + size) of memory at `ptr`, if there are any."""
    first, last = (ptr + start + HUGE - 1) // HUGE * HUGE, (ptr + start + size) // HUGE * HUGE
    return [(first - ptr, last - ptr)] if first < last and _has_huge_pages() else []


def _has_huge_pages() -> bool:
    return Path("/sys/kernel/mm/transparent_hugepage").exists()

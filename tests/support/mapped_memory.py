# SPDX-License-Identifier: Apache-2.0
"""Memory mapped, protected and unmapped page by page."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from threading import Lock

from c_library import libc

PAGE = mmap.PAGESIZE
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE

_FIXED_NOREPLACE = 0x100000
_apart = [1 << 36]  # the address of the next one
_placing = Lock()


def map_apart(
    size: int, prot: int = READ_WRITE, flags: int = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, file: int = -1
) -> int:
    """Map memory far below where the kernel places mappings, so that no other mapping takes what is unmapped of it."""
    with _placing:
        wanted = _apart[0]
        _apart[0] += (size // PAGE + 2) * PAGE
    start: int = libc.mmap(wanted, size, prot, flags | _FIXED_NOREPLACE, file, 0)
    assert start == wanted, os.strerror(ctypes.get_errno())
    return start


class Memory:
    """Pages apart from other mappings that stay until the process ends; by default anonymous and private."""

    def __init__(
        self, pages: int, prot: int = READ_WRITE, flags: int = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, file: int = -1
    ) -> None:
        self.size = pages * PAGE
        self.ptr = map_apart(self.size, prot, flags, file)

    def protect(self, page: int, prot: int) -> None:
        assert libc.mprotect(self.ptr + page * PAGE, PAGE, prot) == 0, os.strerror(ctypes.get_errno())

    def unmap(self, page: int) -> None:
        assert libc.munmap(self.ptr + page * PAGE, PAGE) == 0, os.strerror(ctypes.get_errno())


def locked_pages(start: int, end: int) -> set[int]:
    """The numbers of the pages that the kernel has locked, counted from `start`."""
    pages: set[int] = set()
    low = high = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(" ", 1)[0]
        if "-" in first and not first.endswith(":"):
            low, high = (int(address, 16) for address in first.split("-"))
        elif first == "VmFlags:" and "lo" in line.split():
            pages.update((page - start) // PAGE for page in range(max(low, start), min(high, end), PAGE))
    return pages

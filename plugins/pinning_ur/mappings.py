# SPDX-License-Identifier: Apache-2.0
"""Pages, and how this process has mapped them, by /proc/self/maps."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from pinning.errors import InvalidRangeError

Pages = tuple[int, int]  # a half-open range of addresses, both multiples of the page size


def pages_of(ptr: int, size: int) -> Pages:
    """The whole pages that ``[ptr, ptr + size)`` touches."""
    return ptr & -mmap.PAGESIZE, (ptr + size + mmap.PAGESIZE - 1) & -mmap.PAGESIZE


def are_writable(pages: Pages) -> bool:
    """Whether all mappings of the pages may be written."""
    return all(b"w" in modes for _, _, modes in _mappings(pages))


def require_mapped(pages: Pages) -> None:
    """Raise InvalidRangeError where some of the pages are not mapped."""
    start, end = pages
    hole = start
    for low, high, _ in _mappings(pages):
        if low > hole:
            break
        hole = high
    if hole < end:
        raise InvalidRangeError(f"[{start:#x}, {end:#x}) cannot be locked: there is no memory at {hole:#x}")


def _mappings(pages: Pages) -> Iterator[tuple[int, int, bytes]]:
    with Path("/proc/self/maps").open("rb") as maps:
        for line in maps:
            addresses, modes = line.split(b" ", 2)[:2]
            start, end = (int(address, 16) for address in addresses.split(b"-"))
            if start >= pages[1]:
                break
            if end > pages[0]:
                yield start, end, modes

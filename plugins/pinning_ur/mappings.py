# SPDX-License-Identifier: Apache-2.0
"""Pages, and how this process has mapped them."""

from __future__ import annotations

import mmap

from pinning.errors import InvalidRangeError
from pinning.plugin.mapping import gap, mappings

Pages = tuple[int, int]  # a half-open range of addresses, both multiples of the page size


def pages_of(ptr: int, size: int) -> Pages:
    """The whole pages that ``[ptr, ptr + size)`` touches."""
    return ptr & -mmap.PAGESIZE, (ptr + size + mmap.PAGESIZE - 1) & -mmap.PAGESIZE


def are_writable(pages: Pages) -> bool:
    """Whether all mappings of the pages may be written."""
    start, end = pages
    return all(mapping.writable for mapping in mappings(start, end - start))


def require_mapped(pages: Pages) -> None:
    """Raise InvalidRangeError where some of the pages are not mapped."""
    start, end = pages
    hole = gap(start, end - start, mappings(start, end - start))
    if hole is not None:
        raise InvalidRangeError(f"[{start:#x}, {end:#x}) cannot be locked: there is no memory at {hole:#x}")

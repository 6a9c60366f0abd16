# SPDX-License-Identifier: Apache-2.0
"""Memory that starts at a page, and the parts of it that are locked while it is copied."""

from __future__ import annotations

import numpy

PAGE = 4096


def on_pages(size: int) -> numpy.ndarray:
    """Zeroes from the start of a page on."""
    memory = numpy.zeros(size + PAGE, numpy.uint8)
    return memory[-memory.ctypes.data % PAGE :][:size]


# What of the host's memory is locked, as slices.
LOCKED = {
    "nothing": [],
    "all": [slice(None)],
    "the first byte": [slice(0, 1)],
    "all but the last page": [slice(0, -PAGE)],
    "all but the first byte of the second page": [slice(0, PAGE), slice(2 * PAGE, None)],
    "two that touch": [slice(PAGE, 3 * PAGE), slice(3 * PAGE, 5 * PAGE)],
}

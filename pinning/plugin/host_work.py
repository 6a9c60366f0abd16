# SPDX-License-Identifier: Apache-2.0
"""Work that a host thread does in place of a vendor's queue; the GIL is released while bytes are moved."""

from __future__ import annotations

import ctypes


def fill(ptr: int, value: bytes, count: int) -> None:
    """Write `value` `count` times."""
    if len(value) == 1:
        ctypes.memset(ptr, value[0], count)
        return
    size = len(value) * count
    filled = min(len(value), size)
    ctypes.memmove(ptr, value, filled)
    while filled < size:
        step = min(filled, size - filled)
        ctypes.memmove(ptr + filled, ptr, step)
        filled += step

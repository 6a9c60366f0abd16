# SPDX-License-Identifier: Apache-2.0
"""What a thread of the host does in the place of a vendor's queue, without the GIL while it moves bytes."""

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

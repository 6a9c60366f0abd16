# SPDX-License-Identifier: Apache-2.0
"""What a thread of the host does in the place of a vendor's queue, without the GIL while it moves bytes or waits."""

from __future__ import annotations

import ctypes
import time

_SHORTEST, _LONGEST = 20e-6, 1e-3  # seconds between two looks at a word


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


def wait_value(address: int, value: int) -> None:
    """`VendorQueue.wait_value`: look at the word again and again, ever less often."""
    word = ctypes.c_uint32.from_address(address)
    pause = _SHORTEST
    while (word.value - value) % 2**32 >= 2**31:
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)


def write_value(address: int, value: int) -> None:
    """`VendorQueue.write_value`."""
    ctypes.c_uint32.from_address(address).value = value

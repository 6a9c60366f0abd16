# SPDX-License-Identifier: Apache-2.0
"""Fills, for which a thread waits: the runtime has no others."""

from __future__ import annotations

from pinning_hsa.driver import call


def fill_device(ptr: int, value: bytes, count: int) -> None:
    """Write `value` `count` times to device memory: whole words by a GPU, what is left on either side as a copy."""
    end = ptr + len(value) * count
    first, last = min(-(-ptr // 4) * 4, end), max(end // 4 * 4, ptr)
    if last > first:
        word = _cut(value, first - ptr, 4)
        call("hsa_amd_memory_fill", first, int.from_bytes(word, "little"), (last - first) // 4)
    else:
        first = last = end
    for start, stop in ((ptr, first), (last, end)):
        if start < stop:
            call("hsa_memory_copy", start, _cut(value, start - ptr, stop - start), stop - start)


def _cut(value: bytes, start: int, size: int) -> bytes:
    """`size` bytes of `value` repeated, from `start` on."""
    return bytes(value[(start + at) % len(value)] for at in range(size))

# SPDX-License-Identifier: Apache-2.0
"""Copies of one queue read and write in the order of their calls, on every path, and beside every border of a lock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy
import pytest

import pinning
from noise import noise
from pinning import MemoryKind

PAGE = 4096
BUSY = 32 << 20  # bytes that the queue fills first: what follows waits for that, unless it does not wait as it should
ROW = 1024

Copying = Callable[[Any, Any, int, pinning.Queue], object]


def whole(dst: Any, src: Any, size: int, queue: pinning.Queue) -> None:
    pinning.copy_async(dst, src, size, queue=queue)


def batch(dst: Any, src: Any, size: int, queue: pinning.Queue) -> None:
    starts = numpy.array([0, PAGE, size // 3, size - PAGE - 1], numpy.uint64)
    sizes = numpy.diff(numpy.array([*starts, size], numpy.uint64))
    to, origin = address(dst) + starts, address(src) + starts
    pinning.copy_batch_async(to, origin, sizes, queue=queue)


def rows(dst: Any, src: Any, size: int, queue: pinning.Queue) -> None:
    pinning.copy_2d_async(dst, ROW, src, ROW, ROW, size // ROW, queue=queue)


def address(end: Any) -> numpy.uint64:
    return numpy.uint64(end.ctypes.data if isinstance(end, numpy.ndarray) else end.device_ptr)


# What of the host's memory is locked, as slices.
LOCKED = {
    "nothing": [],
    "all": [slice(None)],
    "the first byte": [slice(0, 1)],
    "all but the last page": [slice(0, -PAGE)],
    "all but the first byte of the second page": [slice(0, PAGE), slice(2 * PAGE, None)],
    "two that touch": [slice(PAGE, 3 * PAGE), slice(3 * PAGE, 5 * PAGE)],
}


@pytest.mark.parametrize("size", [192 << 10, 12 << 20])
@pytest.mark.parametrize("read", [whole, batch, rows])
@pytest.mark.parametrize("write", [whole, batch, rows])
def test_what_pending_work_writes_is_read_after_it(
    other: pinning.Queue, gpu: Any, write: Copying, read: Copying, size: int
) -> None:
    with (
        pinning.alloc(BUSY, MemoryKind.DEVICE, device=gpu) as busy,
        pinning.alloc(size, MemoryKind.DEVICE, device=gpu) as origin,
        pinning.alloc(size, MemoryKind.DEVICE, device=gpu) as there,
    ):
        for turn, (what, slices) in enumerate(LOCKED.items()):
            expected, memory = noise(size, turn), numpy.zeros(size + PAGE, numpy.uint8)
            host = memory[-memory.ctypes.data % PAGE :][:size]
            pinning.copy(origin, expected, queue=other)
            with ExitStack() as locks:
                for each in slices:
                    locks.enter_context(pinning.lock(host[each], device=gpu))
                pinning.fill(busy, turn, queue=other)
                write(host, origin, size, other)
                read(there, host, size, other)
                other.synchronize()
            back = numpy.empty_like(expected)
            pinning.copy(back, there, queue=other)
            assert (back == expected).all(), what

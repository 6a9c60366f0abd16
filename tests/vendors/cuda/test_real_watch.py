# SPDX-License-Identifier: Apache-2.0
"""Memory that is unmapped and mapped anew while it is locked: a real GPU reads what is there now, not what was."""

from __future__ import annotations

import ctypes

import numpy
import pytest
from left_locked import *  # noqa: F403

import leaving
import pinning
from leaving import DONTNEED, libc
from pinning.map.pinned_map import watch_problem
from pinning.plugin import CopyDevice

MIB = 1 << 20
SIZE = 8 * MIB
CYCLES = 50
pytestmark = pytest.mark.skipif(
    watch_problem() is not None, reason=f"the kernel does not tell of memory that leaves: {watch_problem()}"
)


def pages(value: int, at: int | None = None) -> int:
    ptr = leaving.pages(at, size=SIZE)
    ctypes.memset(ptr, value, SIZE)
    return ptr


@pytest.mark.parametrize("size", [4096, 64 << 10, SIZE])
@pytest.mark.parametrize("locked_anew", [False, True])
@pytest.mark.parametrize("way", ["unmapped", "replaced", "discarded"])
def test_the_gpu_reads_what_is_there_now(gpu: CopyDevice, way: str, locked_anew: bool, size: int) -> None:
    ptr = pages(1)
    back = numpy.zeros(size, numpy.uint8)
    with pinning.Queue(gpu) as queue, pinning.alloc(SIZE, device=gpu) as there:
        for cycle in range(CYCLES if size < SIZE else 5):
            value = 2 + cycle % 250
            lock = pinning.lock((ptr, SIZE), device=gpu)
            pinning.copy(there, (ptr, size), size, queue)
            if way == "unmapped":
                assert libc.munmap(ptr, SIZE) == 0
                ptr = pages(value)
            elif way == "replaced":
                pages(value, ptr)
            else:
                assert libc.madvise(ptr, SIZE, DONTNEED) == 0
                ctypes.memset(ptr, value, SIZE)
            assert not lock.held
            anew = pinning.lock((ptr, SIZE), device=gpu) if locked_anew else None
            done = pinning.copy(there, (ptr, size), size, queue)
            assert (done.path == "direct") == locked_anew
            back[:] = 0
            pinning.copy(back, there, size, queue)
            assert (back == value).all(), f"cycle {cycle}: the GPU has read {back[0]} and not {value}"
            if anew is not None:
                anew.unlock()
            lock.unlock()
    libc.munmap(ptr, SIZE)


def test_memory_that_leaves_while_it_is_copied(gpu: CopyDevice) -> None:
    with pinning.Queue(gpu) as queue, pinning.alloc(SIZE, device=gpu) as there:
        ptr = pages(1)
        lock = pinning.lock((ptr, SIZE), device=gpu)
        copies = [pinning.copy_async(there, (ptr, SIZE), SIZE, queue) for _ in range(20)]
        assert libc.munmap(ptr, SIZE) == 0
        for each in copies:
            each.wait()
        assert not lock.held
        lock.unlock()
        back = numpy.zeros(SIZE, numpy.uint8)
        pinning.copy(back, there, SIZE, queue)
        assert (back == 1).all()


def test_a_batch_of_memory_that_has_left(gpu: CopyDevice) -> None:
    block = 16 << 10
    count = SIZE // block
    with pinning.Queue(gpu) as queue, pinning.alloc(SIZE, device=gpu) as there:
        ptr = pages(1)
        lock = pinning.lock((ptr, SIZE), device=gpu)
        ptr = pages(2, ptr)
        offsets = numpy.arange(count, dtype=numpy.uint64) * block
        pinning.copy_batch(there.ptr + offsets, ptr + offsets, block, queue)
        lock.unlock()
        back = numpy.zeros(SIZE, numpy.uint8)
        pinning.copy(back, there, SIZE, queue)
        assert (back == 2).all()
        libc.munmap(ptr, SIZE)

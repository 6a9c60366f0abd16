# SPDX-License-Identifier: Apache-2.0
"""Memory that is unmapped and mapped anew while it is locked: a real GPU reads what is there now, not what was."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator

import numpy
import pytest

import pinning
from pinning.map.pinned_map import watch_problem
from pinning.plugin import CopyDevice

MIB = 1 << 20
SIZE = 8 * MIB
CYCLES = 50
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
FIXED = 0x10
DONTNEED = 4

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mmap.restype = ctypes.c_void_p
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

pytestmark = pytest.mark.skipif(
    watch_problem() is not None, reason=f"the kernel does not tell of memory that leaves: {watch_problem()}"
)


@pytest.fixture
def gpu(real_gpu: CopyDevice) -> Iterator[CopyDevice]:
    yield real_gpu
    left = [region for region in pinning.regions(real_gpu) if region.references or not region.registered]
    assert left == [], "a test left something locked"


def pages(value: int, at: int | None = None) -> int:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0 if at is None else FIXED)
    ptr: int = libc.mmap(at, SIZE, READ_WRITE, flags, -1, 0)
    assert ptr != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
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

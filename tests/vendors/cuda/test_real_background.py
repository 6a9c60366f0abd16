# SPDX-License-Identifier: Apache-2.0
"""Locks in the background on a real NVIDIA GPU: copies within the part locked so far, and across its end, are right."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pinning
from pinning_cuda import CudaDevice

MIB = 1 << 20
SIZE = 1024 * MIB
WAIT = 120


@pytest.fixture(scope="module")
def gpu(real_gpu: CudaDevice) -> CudaDevice:
    return real_gpu


@pytest.fixture(scope="module")
def pages() -> Any:
    array = np.frombuffer(mmap.mmap(-1, SIZE), np.uint64)
    array[:] = np.arange(array.size, dtype=np.uint64)
    return array


@pytest.fixture
def there(gpu: CudaDevice) -> Iterator[pinning.Allocation]:
    memory = pinning.alloc(SIZE, device=gpu)
    yield memory
    memory.free()


def test_copies_while_it_is_being_locked(gpu: CudaDevice, pages: Any, there: pinning.Allocation) -> None:
    back = np.zeros_like(pages)
    with pinning.lock_async(pages, device=gpu, unit=3 * MIB, stall_ms=1) as pending, pinning.Queue(gpu) as queue:
        pending.wait(64 * MIB, timeout=WAIT)
        prefix = pages[: 64 * MIB // 8]
        assert pinning.is_locked(prefix, device=gpu)
        copies = 0
        while copies < 3 or not pending.done():
            for size in (64 * MIB, 1 * MIB, 700 * MIB, SIZE):  # within it, and across its end
                pinning.copy_async(there, pages, nbytes=size, queue=queue)
            # Small copies all over, done by the vendor as pageable memory: none may cross into a piece being locked.
            for at in range(0, SIZE - MIB, 37 * MIB):
                pinning.copy_async((there.device_ptr + at, 100000), (pages.ctypes.data + at, 100000), queue=queue)
            queue.synchronize()
            copies += 1
        lock = pending.wait(timeout=WAIT)
        assert lock.region is not None
        assert lock.region.piece == 15 * MIB
        pinning.copy_async(there, pages, queue=queue)
        queue.synchronize()
        pinning.copy(back, there)
        assert (back == pages).all()
    assert not pinning.is_locked(pages[:1], device=gpu)
    assert gpu.is_pinned_ptr(pages.ctypes.data) is None
    assert gpu.is_pinned_ptr(pages.ctypes.data + SIZE - 1) is None


def test_cancelled_half_way(gpu: CudaDevice, pages: Any, there: pinning.Allocation) -> None:
    for at in (0, 1, 100 * MIB, 900 * MIB):
        pending = pinning.lock_async(pages, device=gpu, unit=MIB, stall_ms=1)
        pending.wait(at, timeout=WAIT)
        pending.cancel()
        assert pending.progress == 0
        assert all(gpu.is_pinned_ptr(pages.ctypes.data + byte) is None for byte in range(0, SIZE, 16 * MIB))
    pinning.copy(there, pages)
    with pinning.lock(pages, device=gpu):  # nothing of the cancelled lock is left
        pinning.copy(there, pages)


def test_a_unit_never_crosses_a_border(gpu: CudaDevice, pages: Any) -> None:
    unit = 5 * MIB + 4096
    with pinning.lock_async(pages, device=gpu, unit=unit) as pending:
        pending.wait(timeout=WAIT)
        for at in range(0, SIZE - unit + 1, unit):
            info = gpu.is_pinned_ptr(pages.ctypes.data + at)
            assert info is not None
            assert info.base <= pages.ctypes.data + at
            assert pages.ctypes.data + at + unit <= info.base + info.size

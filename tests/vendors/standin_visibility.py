# SPDX-License-Identifier: Apache-2.0
"""When a call that waits returns, work of any other queue sees its bytes, without an event between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

import pinning
from noise import noise
from pinning import MemoryKind
from pinning.plugin.native import NativeQueue

TAIL = 64 << 10  # bytes, the last to arrive; little enough to be locked by any user


def by_copy(memory: pinning.Allocation, source: numpy.ndarray, _: Path, other: pinning.Queue) -> None:
    pinning.copy(memory, source, queue=other)


def by_batch(memory: pinning.Allocation, source: numpy.ndarray, _: Path, other: pinning.Queue) -> None:
    third = source.size // 3
    starts = numpy.array([0, third, 2 * third], numpy.uint64)
    sizes = numpy.array([third, third, source.size - 2 * third], numpy.uint64)
    pinning.copy_batch(memory.ptr + starts, source.ctypes.data + starts, sizes, other)


def by_file(memory: pinning.Allocation, source: numpy.ndarray, folder: Path, other: pinning.Queue) -> None:
    source.tofile(folder / "bytes")
    pinning.copy_file(memory, folder / "bytes", queue=other)


@pytest.mark.parametrize("size", [3 * TAIL, 24 << 20])
@pytest.mark.parametrize("call", [by_copy, by_batch, by_file])
def test_another_queue_sees_what_was_copied(
    queue: NativeQueue, other: pinning.Queue, gpu: Any, tmp_path: Path, call: Callable[..., None], size: int
) -> None:
    with (
        pinning.alloc(size, MemoryKind.DEVICE, device=gpu) as memory,
        pinning.alloc(TAIL, MemoryKind.HOST, device=gpu) as seen,
    ):
        for turn in range(3):
            source = noise(size, turn)
            call(memory, source, tmp_path, other)
            queue.copy(seen.ptr, memory.device_ptr + size - TAIL, TAIL)
            queue.synchronize()
            assert (numpy.frombuffer(seen, numpy.uint8) == source[-TAIL:]).all()


@pytest.mark.parametrize("size", [3 * TAIL, 24 << 20])
def test_another_queue_sees_what_was_loaded(
    queue: NativeQueue, other: pinning.Queue, gpu: Any, tmp_path: Path, size: int
) -> None:
    with pinning.alloc(TAIL, MemoryKind.HOST, device=gpu) as seen:
        for turn in range(3):
            source = noise(size, turn)
            pinning.save_file({"tensor": source}, tmp_path / "tensors")
            tensor = pinning.load_file(tmp_path / "tensors", gpu, other, framework="pinning")["tensor"]
            queue.copy(seen.ptr, tensor.device_ptr + size - TAIL, TAIL)
            queue.synchronize()
            assert (numpy.frombuffer(seen, numpy.uint8) == source[-TAIL:]).all()
            del tensor

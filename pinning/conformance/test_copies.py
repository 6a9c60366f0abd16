# SPDX-License-Identifier: Apache-2.0
"""What programs use: allocations, queues, pools, and copies, each by the predicted path."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator

import numpy
import pytest

import pinning
from pinning import InvalidRangeError, MemoryKind, PinningError
from pinning.conformance.faults import Faults, eventually
from pinning.conformance.memory import PAGE, Pages, has
from pinning.copies import trim_staging
from pinning.plugin import Device, MemoryDevice

SIZE = (3 << 20) + 5


@pytest.fixture
def queue(memories: MemoryDevice) -> Iterator[pinning.Queue]:
    with pinning.Queue(memories) as queue:
        yield queue
    trim_staging()


def noise(size: int) -> numpy.ndarray:
    return numpy.random.default_rng(1).integers(0, 256, size, dtype=numpy.uint8)


@pytest.mark.parametrize("size", [1, 1000, SIZE])
def test_pageable_memory_goes_there_and_comes_back(queue: pinning.Queue, memories: MemoryDevice, size: int) -> None:
    array, back = noise(size), numpy.zeros(size, numpy.uint8)
    with pinning.alloc(size, device=memories) as there:
        foretold = pinning.explain(there, array, queue=queue).path
        up = pinning.copy_async(there, array, queue=queue)
        assert up.path == foretold
        pinning.copy_async(back, there, queue=queue).wait()
        assert up.done()
    assert (back == array).all()


@pytest.mark.parametrize("size", [64, 1 << 16, SIZE])
@pytest.mark.parametrize("way", ["copy", "batch"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_source_that_pending_work_writes(
    queue: pinning.Queue, memories: MemoryDevice, size: int, way: str, elsewhere: bool
) -> None:
    """Drivers read a small pageable source during the call, which would be before it is written."""
    source, expected, back = numpy.zeros(size, numpy.uint8), noise(size), numpy.zeros(size, numpy.uint8)
    submitted = threading.Event()

    def write() -> None:
        submitted.wait(0.2)  # or longer, if submission waits for this
        source[:] = expected

    with pinning.Queue(memories) as other, pinning.alloc(size, device=memories) as there:
        try:
            written = [other.call(write)] if elsewhere else [queue.call(write)]
        except PinningError as error:
            pytest.skip(str(error))
        if way == "copy":
            pinning.copy_async(there, source, queue=queue, wait_for=written)
        else:
            half = size // 2
            dsts = [(there.ptr, half), (there.ptr + half, size - half)]
            pinning.copy_batch_async(dsts, [source[:half], source[half:]], None, queue, written)
        submitted.set()
        pinning.copy_async(back, there, queue=queue).wait()
    assert (back == expected).all()


def test_locked_memory_goes_directly(queue: pinning.Queue, memories: MemoryDevice, locking: Device) -> None:
    array = noise(SIZE)
    with pinning.alloc(SIZE, device=memories) as there:
        with pinning.lock(array, device=locking):
            copy = pinning.copy_async(there, array, queue=queue)
            copy.wait()
        assert copy.path == "direct"
        with pinning.alloc(SIZE, has(memories, MemoryKind.HOST), device=memories) as back:
            assert pinning.copy(back, there, queue=queue).path == "direct"
            assert (numpy.asarray(back) == array).all()


def test_rows_fills_and_functions(queue: pinning.Queue, memories: MemoryDevice) -> None:
    called: list[int] = []
    host = has(memories, MemoryKind.HOST)
    with pinning.alloc(64, device=memories) as there, pinning.alloc(64, host, device=memories) as back:
        pinning.fill_async(there, b"\1\2", queue=queue)
        pinning.copy_2d(back, 8, there, 16, 4, 4, queue=queue)
        assert [bytes(numpy.asarray(back)[8 * row : 8 * row + 4]) for row in range(4)] == [b"\1\2\1\2"] * 4
        try:
            queue.call(lambda: called.append(7)).wait()
        except PinningError as error:
            pytest.skip(str(error))
        assert called == [7]


@pytest.mark.parametrize("to_device", [True, False])
@pytest.mark.parametrize("call", ["copy", "rows", "batch", "blocks"])
def test_host_memory_that_has_gone(queue: pinning.Queue, memories: MemoryDevice, call: str, to_device: bool) -> None:
    """Refused before anything is copied: a driver would end the process, or read what lies there by then."""
    pages, size = Pages(2, apart=True), 2 * PAGE
    pages.unmap(1)
    with pinning.alloc(size, device=memories) as there:
        pinning.fill(there, 5, queue=queue)
        ends = [(there.ptr, size), (pages.ptr, size)] if to_device else [(pages.ptr, size), (there.ptr, size)]
        (dst, src), of_one = ends, [PAGE - 8, 8 + PAGE]
        with pytest.raises(InvalidRangeError, match="not mapped"):
            if call == "copy":
                pinning.copy(dst, src, queue=queue)
            elif call == "rows":
                pinning.copy_2d(dst[0], PAGE, src[0], PAGE, 8, 2, queue=queue)
            elif call == "blocks":
                pinning.copy_blocks(dst, [0, 1], src, [0, 1], PAGE, queue=queue)
            else:
                dsts, srcs = ([end[0], end[0] + of_one[0]] for end in (dst, src))
                pinning.copy_batch(dsts, srcs, of_one, queue=queue)
        back = numpy.zeros(size, numpy.uint8)
        pinning.copy(back, there, queue=queue)
    assert (back == 5).all()
    assert ctypes.string_at(pages.ptr, PAGE) == pages.contents[:PAGE]


def test_a_batch(queue: pinning.Queue, memories: MemoryDevice, locking: Device) -> None:
    count, size = 500, 16
    array, back = noise(count * size).reshape(count, size), numpy.zeros((count, size), numpy.uint8)
    order = numpy.random.default_rng(2).permutation(count)
    with pinning.alloc(array.nbytes, device=memories) as there, pinning.locked(array, back, device=locking):
        pinning.copy_blocks(there, order, array, range(count), size, queue=queue)
        pinning.copy_blocks(back, range(count), there, order, size, queue=queue)
    assert (back == array).all()


def test_a_block_of_a_pool_is_used_again(
    queue: pinning.Queue, memories: MemoryDevice, driver_faults: Faults | None
) -> None:
    before = driver_faults and driver_faults.held()
    with pinning.Context(memories) as context, pinning.Pool(context, MemoryKind.DEVICE) as pool:
        first, ready = queue.alloc(1000, pool=pool)
        pinning.fill_async(first, 1, queue=queue, wait_for=[ready])
        address = first.ptr
        queue.free(first)
        second, _ = queue.alloc(1000, pool=pool)
        assert second.ptr == address
        queue.free(second)
        queue.synchronize()
    assert driver_faults is None or eventually(lambda: driver_faults.held() == before)


@pytest.mark.parametrize("kind", MemoryKind, ids=lambda kind: kind.value)
def test_what_is_where(memories: MemoryDevice, kind: MemoryKind) -> None:
    with pinning.alloc(1000, has(memories, kind), device=memories) as ours:
        ptr = ours.ptr
        known = pinning.memory_info(ptr + 999)
        assert known and (known.kind, known.base, known.size) == (kind, ptr, 1000)
    assert pinning.memory_info(ptr) is None

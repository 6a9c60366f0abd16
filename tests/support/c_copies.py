# SPDX-License-Identifier: Apache-2.0
"""Copies in queues of C, or of Python, whole, as a batch and as rows; pending work that writes what they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy

import c_api
import pinning
from locked_parts import LOCKED, PAGE, on_pages
from noise import noise
from pinning import MemoryKind

ROW = 1024

Copying = Callable[..., Any]


class PythonQueue:
    """A queue of Python with the methods of `c_api.Queue`."""

    def __init__(self, queue: pinning.Queue) -> None:
        self._queue = queue
        self.synchronize = queue.synchronize

    def copy(self, dst: int, src: int, size: int, wait_for: tuple[pinning.Event, ...] = ()) -> pinning.Copy:
        return pinning.copy_async(dst, src, size, queue=self._queue, wait_for=wait_for)

    copy_without_event = copy

    def copy_2d(self, *rows: int, wait_for: tuple[pinning.Event, ...] = ()) -> pinning.Copy:
        return pinning.copy_2d_async(*rows, queue=self._queue, wait_for=wait_for)

    def copy_batch(self, *batch: Any, wait_for: tuple[pinning.Event, ...] = ()) -> pinning.Copy:
        return pinning.copy_batch_async(*batch, queue=self._queue, wait_for=wait_for)


def whole(queue: Any, dst: int, src: int, size: int, wait_for: tuple[Any, ...] = ()) -> Any:
    return queue.copy(dst, src, size, wait_for=wait_for)


def batch(queue: Any, dst: int, src: int, size: int, wait_for: tuple[Any, ...] = ()) -> Any:
    starts = numpy.array([0, PAGE, size // 3, size - PAGE - 1], numpy.uint64)
    sizes = numpy.diff(numpy.array([*starts, size], numpy.uint64))
    return queue.copy_batch(numpy.uint64(dst) + starts, numpy.uint64(src) + starts, sizes, wait_for=wait_for)


def rows(queue: Any, dst: int, src: int, size: int, wait_for: tuple[Any, ...] = ()) -> Any:
    return queue.copy_2d(dst, ROW, src, ROW, ROW, size // ROW, wait_for=wait_for)


@contextmanager
def two_blocks(gpu: Any, size: int) -> Iterator[tuple[int, int]]:
    """Memory of the device, as addresses."""
    with (
        pinning.alloc(size, MemoryKind.DEVICE, device=gpu) as first,
        pinning.alloc(size, MemoryKind.DEVICE, device=gpu) as second,
    ):
        yield first.ptr, second.ptr


def check_order(queue: c_api.Queue, gpu: Any, write: Copying, read: Copying, size: int, busy: int) -> None:
    """Copy to the host and from there to the device, behind a copy of `busy` bytes, beside every border of a lock."""
    with two_blocks(gpu, busy) as blocks, two_blocks(gpu, size) as (origin, there):
        for turn, (what, slices) in enumerate(LOCKED.items()):
            expected, host = noise(size, turn), on_pages(size)
            queue.copy(origin, expected.ctypes.data, size).wait()
            with ExitStack() as locks:
                for each in slices:
                    locks.enter_context(pinning.lock(host[each], device=gpu))
                queue.copy_without_event(*blocks, busy)
                write(queue, host.ctypes.data, origin, size)
                read(queue, there, host.ctypes.data, size)
                queue.synchronize()
            back = numpy.empty_like(expected)
            queue.copy(back.ctypes.data, there, size).wait()
            assert (back == expected).all(), what


def check_stream(gpu: Any, stream: int, size: int, busy: int, locked: bool = False) -> None:
    """Copy to the host and from there to the device in a stream, without a queue, behind a copy of `busy` bytes."""
    locks = c_api.Map(gpu.name)
    expected, host, back = noise(size), on_pages(size), numpy.zeros(size, numpy.uint8)
    with two_blocks(gpu, busy) as blocks, two_blocks(gpu, size) as (origin, there), ExitStack() as held:
        locks.copy(origin, expected.ctypes.data, size)
        if locked:
            held.enter_context(pinning.lock(host, device=gpu))
        ends = [(*blocks, busy), (host.ctypes.data, origin, size), (there, host.ctypes.data, size)]
        for copy in [locks.copy_async(*each, stream) for each in ends]:
            copy.wait()
        locks.copy(back.ctypes.data, there, size)
        assert (back == expected).all()

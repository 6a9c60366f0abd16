# SPDX-License-Identifier: Apache-2.0
"""Copies of one queue read and write in the order of their calls, on every path, and beside every border of a lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from itertools import product
from typing import Any

import numpy
import pytest

import pinning
from locked_parts import LOCKED, PAGE, on_pages
from noise import noise
from pinning import MemoryKind
from pinning.copies import costs, trim_staging

BUSY = 32 << 20  # bytes that the queue fills first: what follows waits for that, unless it does not wait as it should
ROW = 1024

Events = tuple[pinning.Event, ...]
Copying = Callable[..., object]


def whole(dst: Any, src: Any, size: int, queue: pinning.Queue, wait_for: Events = ()) -> None:
    pinning.copy_async(dst, src, size, queue=queue, wait_for=wait_for)


def batch(dst: Any, src: Any, size: int, queue: pinning.Queue, wait_for: Events = ()) -> None:
    starts = numpy.array([0, PAGE, size // 3, size - PAGE - 1], numpy.uint64)
    sizes = numpy.diff(numpy.array([*starts, size], numpy.uint64))
    to, origin = address(dst) + starts, address(src) + starts
    pinning.copy_batch_async(to, origin, sizes, queue=queue, wait_for=wait_for)


def rows(dst: Any, src: Any, size: int, queue: pinning.Queue, wait_for: Events = ()) -> None:
    pinning.copy_2d_async(dst, ROW, src, ROW, ROW, size // ROW, queue=queue, wait_for=wait_for)


def last_first(dst: Any, src: Any, size: int, queue: pinning.Queue) -> None:
    to, origin, rest = int(address(dst)), int(address(src)), size - 100
    pinning.copy_async(to + rest, origin + rest, 100, queue=queue)
    pinning.copy_async(to, origin, rest, queue=queue)


def second_half(dst: Any, src: Any, size: int, queue: pinning.Queue) -> None:
    pinning.copy_async(dst[size // 2 :], int(address(src)) + size // 2, size // 2, queue=queue)


def and_before(dst: Any, src: Any, size: int, queue: pinning.Queue) -> None:
    """And then some bytes at a lower address."""
    whole(dst, src, size, queue)
    with pinning.lock(dst.base[:8], device=queue.device):
        pinning.copy_async(dst.base[:8], src, 8, queue=queue)


READS = (whole, batch, rows, last_first)


def address(end: Any) -> numpy.uint64:
    return numpy.uint64(end.ctypes.data if isinstance(end, numpy.ndarray) else end.device_ptr)


@pytest.mark.parametrize(
    ("write", "read", "size"),
    [
        *product((whole, batch, rows), READS, (192 << 10, 12 << 20)),
        *product((second_half, and_before), READS, (192 << 10,)),
    ],
)
def test_what_pending_work_writes_is_read_after_it(
    other: pinning.Queue, gpu: Any, monkeypatch: pytest.MonkeyPatch, write: Copying, read: Copying, size: int
) -> None:
    monkeypatch.setattr(costs, "stage_to_host", 32 << 10)  # the vendor's own such copies are never pending
    monkeypatch.setattr(costs, "threads", max(2, costs.threads))
    with (
        pinning.alloc(BUSY, MemoryKind.DEVICE, device=gpu) as busy,
        pinning.alloc(size, MemoryKind.DEVICE, device=gpu) as origin,
        pinning.alloc(size, MemoryKind.DEVICE, device=gpu) as there,
    ):
        for turn, (what, slices) in enumerate(LOCKED.items()):
            expected, host = noise(size, turn), on_pages(PAGE + size)[PAGE:]
            if write is second_half:
                host[: size // 2] = expected[: size // 2]
            pinning.copy(origin, expected, queue=other)
            with ExitStack() as locks:
                for each in slices:
                    locks.enter_context(pinning.lock(host[each], device=gpu))
                pinning.fill_async(busy, turn, queue=other)
                write(host, origin, size, other)
                read(there, host, size, other)
                other.synchronize()
            back = numpy.empty_like(expected)
            pinning.copy(back, there, queue=other)
            assert (back == expected).all(), what


Waiting = Callable[[pinning.Queue, pinning.Queue, Callable[[], None]], Events]


def the_queue(queue: pinning.Queue, second: pinning.Queue, function: Callable[[], None]) -> Events:
    queue.call(function)
    return ()


def another_queue(queue: pinning.Queue, second: pinning.Queue, function: Callable[[], None]) -> Events:
    queue.wait_for(second.call(function))
    return ()


def the_copy(queue: pinning.Queue, second: pinning.Queue, function: Callable[[], None]) -> Events:
    return (second.call(function),)


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("waiting", [the_queue, another_queue, the_copy])
@pytest.mark.parametrize("read", [whole, batch, rows])
def test_what_a_function_writes_is_read_after_it(
    other: pinning.Queue, gpu: Any, monkeypatch: pytest.MonkeyPatch, read: Copying, waiting: Waiting, room: bool
) -> None:
    """Also without pinned blocks to stage through, and if a part of it is locked."""
    if not room:
        trim_staging()
        monkeypatch.setattr(costs, "staging_bytes", 0)
    size = 192 << 10
    for locked in (0, size // 4):
        expected, host = noise(size, locked), on_pages(size)

        def write(host: Any = host, expected: Any = expected) -> None:
            time.sleep(0.05)
            host[:] = expected

        with (
            pinning.Queue(gpu) as second,
            pinning.alloc(size, MemoryKind.DEVICE, device=gpu) as there,
            pinning.lock(host[:locked], device=gpu) if locked else nullcontext(),
        ):
            read(there, host, size, other, waiting(other, second, write))
            other.synchronize()
            back = numpy.empty_like(expected)
            pinning.copy(back, there, queue=other)
            assert (back == expected).all(), locked


@pytest.mark.usefixtures("queue")
def test_every_byte_of_a_large_copy_of_locked_memory(other: pinning.Queue, gpu: Any) -> None:
    """It is submitted in pieces, because of another queue and the border of two locks."""
    size, border = (33 << 20) + 12_345, 32 << 20
    source, back = on_pages(size), on_pages(size)
    source[:] = noise(size)
    with pinning.alloc(size, MemoryKind.DEVICE, device=gpu) as there, ExitStack() as locks:
        for host in (source, back):
            locks.enter_context(pinning.lock(host[:border], device=gpu))
            locks.enter_context(pinning.lock(host[border:], device=gpu))
        whole(there, source, size, other)
        whole(back, there, size, other)
        other.synchronize()
        assert (back == source).all()

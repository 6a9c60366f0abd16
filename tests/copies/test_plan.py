# SPDX-License-Identifier: Apache-2.0
"""The native planner of copies, compared with a simple version of the rules of docs/copies.md, for a few ranges."""

from __future__ import annotations

import mmap
from typing import NamedTuple, cast

import numpy
import pytest

import pinning
from c_library import libc
from fake_device import WAIT, Background
from fake_memory import FakeMemoryDevice
from pinning.copies import costs
from pinning.copies.plan import CopyPath
from pinning.map.pinned_map import hears_of_calls, watch_problem

SIZE = 64 << 10
STAGE = 8 << 10


class Range(NamedTuple):
    """A locked range [start, end) of a buffer, in pieces of `piece` bytes; or, if external, one that others pinned."""

    start: int
    end: int
    piece: int
    external: bool


@pytest.fixture(autouse=True)
def small_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "stage_to_device", STAGE)
    monkeypatch.setattr(costs, "stage_to_host", STAGE)
    monkeypatch.setattr(costs, "threads", 2)


def drawn(draw: numpy.random.Generator) -> list[Range]:
    borders = numpy.unique(draw.integers(0, SIZE, 2 * draw.integers(0, 8))).tolist()
    ranges = []
    for start, end in zip(borders[::2], borders[1::2], strict=False):
        piece = int(draw.integers(1, end - start + 1)) if draw.integers(2) else end - start
        ranges.append(Range(start, end, piece, draw.random() < 0.2))
    return ranges


def expected(ranges: list[Range], start: int, end: int) -> list[tuple[int, CopyPath]]:
    """The size and the path of each step of a copy of [start, end)."""
    steps: list[tuple[int, CopyPath]] = []
    at = start
    while at < end:
        inside = next((each for each in ranges if each.start <= at < each.end), None)
        known = [each.start for each in ranges if each.start > at and not each.external]
        gap = min([*known, end])
        if inside is not None and not inside.external:
            border = inside.start + ((at - inside.start) // inside.piece + 1) * inside.piece
            to, path = min(border, inside.end, end), CopyPath.DIRECT
        elif inside is not None and gap - at >= STAGE:
            to, path = min(inside.end, gap), CopyPath.DIRECT
        else:
            to, path = gap, CopyPath.STAGED if gap - at >= STAGE else CopyPath.PLAIN
        steps.append((to - at, path))
        at = to
    return steps


@pytest.mark.parametrize("seed", range(20))
def test_any_ranges(device: FakeMemoryDevice, seed: int) -> None:
    draw = numpy.random.default_rng(seed)
    pinned_map = pinning.pinned_map(device)
    host = numpy.zeros(SIZE, numpy.uint8)
    base = host.ctypes.data
    with pinning.Queue(device) as queue, pinning.alloc(SIZE, device=device) as there:
        for _ in range(20):
            ranges = drawn(draw)
            for start, end, piece, external in ranges:
                if external:
                    device.data_lock(base + start, end - start, False)
                else:
                    pinned_map.lock(base + start, end - start, piece=piece)
            for _ in range(5):
                start, end = sorted(draw.integers(0, SIZE, 2).tolist())
                ends = there.ptr + start, host[start : end + 1]
                for dst, src in (ends, ends[::-1]):
                    plan = pinning.explain(dst, src, end + 1 - start, queue=queue)
                    steps = expected(ranges, start, end + 1)
                    assert [(step.size, step.path) for step in plan.steps] == steps, (ranges, start, end + 1)
                    for number, step in enumerate(plan.steps):
                        before = sum(size for size, _ in steps[:number])
                        assert (step.dst - plan.steps[0].dst, step.src - plan.steps[0].src) == (before, before)
            for start, _, _, external in ranges:
                (device.data_unlock if external else pinned_map.unlock)(base + start)
            assert len(pinned_map) == 0


@pytest.mark.parametrize("seed", range(20))
def test_while_a_lock_grows_no_step_crosses_a_border_of_its_pieces(device: FakeMemoryDevice, seed: int) -> None:
    """A piece that is not locked yet may be by the time of the copy."""
    draw = numpy.random.default_rng(seed)
    host = numpy.zeros(SIZE, numpy.uint8)
    base, piece = host.ctypes.data, int(draw.integers(1000, 20000))
    start, end = int(draw.integers(1, SIZE // 3)), int(draw.integers(SIZE * 2 // 3, SIZE))
    stop = start + piece * int(draw.integers(1, -(-(end - start) // piece)))  # where the piece that comes next begins
    with pinning.Queue(device) as queue, pinning.alloc(SIZE, device=device) as there:
        with device.stopping("data_lock", base + stop) as gate:
            locking = Background(lambda: pinning.lock(host[start:end], device=device, piece=piece))
            gate.reached.wait(WAIT)
            steps = pinning.explain(there, host, queue=queue).steps
            groups = pinning.explain_batch([there.ptr] * 2, [base + stop - 1, base + stop], 1, queue=queue).groups
        cast("pinning.Lock", locking.result()).unlock()
    assert [(group.path, group.count) for group in groups] == [(CopyPath.DIRECT, 1), (CopyPath.STAGED, 1)]
    ends = numpy.cumsum([0, *(step.size for step in steps)]).tolist()
    assert ends == [0, *range(start, end, piece), end, SIZE]
    for at, step in zip(ends, steps, strict=False):
        assert (step.path == CopyPath.DIRECT) == (start <= at < stop)


def test_what_others_have_unpinned_is_pageable(device: FakeMemoryDevice) -> None:
    host = numpy.zeros(SIZE, numpy.uint8)
    ptr, third = host.ctypes.data, SIZE // 3
    with pinning.Queue(device) as queue, pinning.alloc(SIZE, device=device) as there:
        device.data_lock(ptr + third, third, False)
        assert pinning.pinned_map(device).lock_mapped(ptr + third, third, "off") is not None  # enters it
        assert [step.path for step in pinning.explain(there, host, queue=queue).steps] == ["staged", "direct", "staged"]
        device.data_unlock(ptr + third)
        (step,) = pinning.explain(there, host, queue=queue).steps
        assert (step.path, step.size) == ("staged", SIZE)
        pinning.pinned_map(device).unlock_unmapped(ptr + third)  # nothing is left of it
        assert pinning.regions(device) == []


def adjacent() -> tuple[int, mmap.mmap]:
    """Memory of two owners without a gap: SIZE bytes at an address, and a mapping behind them."""
    first = libc.mmap(None, 2 * SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    libc.munmap(first + SIZE, SIZE)
    elsewhere = []  # so that the next one is not there too
    while True:
        mapping = mmap.mmap(-1, SIZE)
        if numpy.frombuffer(mapping, numpy.uint8).ctypes.data == first + SIZE:
            return first, mapping
        elsewhere.append(mapping)


@pytest.mark.skipif(watch_problem() is not None and not hears_of_calls(), reason="no mapping is kept registered")
def test_no_step_crosses_the_border_of_memory_that_is_unlocked_and_still_registered(
    device: FakeMemoryDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its vendor takes that for locked memory."""
    host, mapping = adjacent()
    pinning.budget(idle=True)
    try:
        pinning.lock(mapping, device=device).unlock()
        with pinning.Queue(device) as queue, pinning.alloc(2 * SIZE, device=device) as there:
            for stage in (STAGE, 4 * SIZE):
                monkeypatch.setattr(costs, "stage_to_device", stage)
                steps = pinning.explain(there, host, 2 * SIZE, queue=queue).steps
                assert [(step.size, step.path) for step in steps] == [
                    (SIZE, CopyPath.STAGED if stage == STAGE else CopyPath.PLAIN),
                    (SIZE, CopyPath.DIRECT),
                ]
                pinning.copy(there, host, 2 * SIZE, queue=queue)
    finally:
        pinning.budget(idle=False)
        pinning.give_back_idle()
        libc.munmap(host, SIZE)


def test_a_plan_leaves_nothing_locked(device: FakeMemoryDevice) -> None:
    host = numpy.zeros(SIZE, numpy.uint8)
    with pinning.Queue(device) as queue, pinning.alloc(SIZE, device=device) as there:
        with pinning.lock(host[: SIZE // 2], device=device, piece=1000):
            (region,) = pinning.regions(device)
            pinning.explain(there, host, queue=queue)
            assert pinning.find(host[:10], device=device) == region
        assert device.locked == {}

# SPDX-License-Identifier: Apache-2.0
"""Every kind of copy moves exactly its bytes, whatever is locked: compared with NumPy, at the borders of all parts.

On the stand-in for every vendor's driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy
import pytest

import c_api
import pinning
from noise import noise
from pinning.copies import Reason, costs, trim_staging
from standins.cases import only
from standins.standin import StandIn
from standins.vendors import Vendor
from standins.work import there_and_back

KIB = 1024
SIZE = 1 << 20
STAGE = 128 * KIB


@pytest.fixture(autouse=True)
def small_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "stage_to_device", STAGE)
    monkeypatch.setattr(costs, "stage_to_host", STAGE)
    monkeypatch.setattr(costs, "ring_bytes", 4 * 64 * KIB)
    monkeypatch.setattr(costs, "threads", 2)


class Borders:
    """Where parts of a copy begin and end, and draws of offsets there or a byte beside."""

    def __init__(self, seed: int) -> None:
        self.draw = numpy.random.default_rng(seed)
        self.all = [0, STAGE, 64 * KIB, 4096, SIZE]

    def offset(self, first: int = 0, last: int = SIZE) -> int:
        near = int(self.draw.choice(self.all)) + int(self.draw.integers(-1, 2))
        return near if first <= near <= last and self.draw.integers(4) else int(self.draw.integers(first, last + 1))

    def span(self) -> tuple[int, int]:
        """Start and size of a range that is not empty."""
        start, end = sorted((self.offset(), self.offset()))
        start = min(start, SIZE - 1)
        return start, max(end - start, 1)

    def disjoint(self, most: int) -> Iterator[tuple[int, int]]:
        """Starts and ends of ranges that share no byte."""
        ends = sorted({self.offset() for _ in range(2 * most)})
        return zip(ends[::2], ends[1::2], strict=False)

    def locks(self, array: numpy.ndarray, device: Any, stack: ExitStack) -> None:
        """Lock some disjoint parts, some of them in pieces."""
        for start, end in self.disjoint(int(self.draw.integers(0, 4))):
            piece = int(self.draw.integers(1000, 200_000)) if self.draw.integers(2) else None
            stack.enter_context(pinning.lock(array[start:end], device=device, piece=piece))
            self.all += [start, end, min(start + (piece or 0), SIZE)]


@only("cuda", "hip", "hsa")
def test_large_pageable_memory_is_staged_and_small_is_left_to_the_driver(other: pinning.Queue, gpu: Any) -> None:
    assert there_and_back(gpu, noise(SIZE)) == ("staged", "staged")
    assert there_and_back(gpu, noise(1000)) == ("plain", "plain")


@only("hip", "ur")
def test_pageable_memory_is_left_to_a_driver_that_cannot_wait_for_values(standin: StandIn, vendor: Vendor) -> None:
    standin.configure("no_wait_value" if vendor.name == "hip" else "")
    device = vendor.plugin.device(1)  # first used under this configuration
    for size in (1000, SIZE):
        assert there_and_back(device, noise(size)) == ("plain", "plain")
    source = noise(SIZE)
    with pinning.Queue(device) as queue, pinning.alloc(SIZE, device=device) as there, c_api.Queue(device.name) as in_c:
        assert pinning.explain(there, source, queue=queue).reason_code is Reason.NO_VALUES
        ends = (numpy.array([end, end + 8], numpy.uint64) for end in (there.ptr, source.ctypes.data))
        assert in_c.copy_batch(*ends, numpy.array([8, 8], numpy.uint64)).reason is Reason.NO_VALUES
    trim_staging()


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("verb", ["copy", "batch", "rows", "rows of C"])
@pytest.mark.parametrize("way", ["to the device", "to the host", "within the host"])
def test_every_copy_moves_exactly_its_bytes(other: pinning.Queue, gpu: Any, verb: str, way: str, seed: int) -> None:
    borders = Borders(seed)
    host = noise(SIZE, seed)
    there = noise(SIZE, seed + 1000)
    dst, src = (host, there) if way == "to the host" else (there, host)
    expected = dst.copy()
    with pinning.alloc(SIZE, device=gpu) as memory, ExitStack() as stack:
        pinning.copy(memory, there, queue=other)
        borders.locks(host, gpu, stack)
        if way == "within the host":
            borders.locks(there, gpu, stack)
        of = {"to the device": memory.ptr, "to the host": memory.ptr, "within the host": there.ctypes.data}[way]
        to, origin = (host.ctypes.data, of) if way == "to the host" else (of, host.ctypes.data)
        if verb == "copy":
            at, size = borders.span()
            begin = borders.offset(0, SIZE - size)
            at = min(at, SIZE - size)
            expected[at : at + size] = src[begin : begin + size]
            pinning.copy(to + at, origin + begin, size, queue=other)
        elif verb == "batch":
            ranges = borders.disjoint(12)
            items = [(at, borders.offset(0, SIZE - (end - at)), end - at) for at, end in ranges]
            for at, begin, size in items:
                expected[at : at + size] = src[begin : begin + size]
            addresses = [numpy.array(column, "u8") for column in zip(*items, strict=True)]
            pinning.copy_batch(addresses[0] + to, addresses[1] + origin, addresses[2], queue=other)
        else:
            width = borders.offset(1, SIZE // 8)
            pitches = [width + int(borders.draw.choice([0, 1, 100, 5000])) for _ in range(2)]
            height = min(int(borders.draw.integers(1, 40)), *((SIZE - width) // pitch + 1 for pitch in pitches))
            for row in range(height):
                at, begin = row * pitches[0], row * pitches[1]
                expected[at : at + width] = src[begin : begin + width]
            rows = to, pitches[0], origin, pitches[1], width, height
            if verb == "rows":
                pinning.copy_2d(*rows, other)
            else:
                with c_api.Queue(gpu.name) as in_c:
                    in_c.copy_2d(*rows).wait()
        if way == "to the device":
            pinning.copy(there, memory, queue=other)
        assert numpy.flatnonzero(dst != expected).tolist()[:5] == []

# SPDX-License-Identifier: Apache-2.0
"""Looking up a million pointers at once from Python: ``batch.py ROUNDS MOST_REGIONS``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy
from numpy.typing import NDArray
from rounds import Case, arguments, take_turns

from pagetable import PageTable

Words = NDArray[numpy.uint64]
POINTERS = 1_000_000


def pages(count: int) -> tuple[Words, Words]:
    starts = numpy.uint64(0x1000_0000_0000) + numpy.arange(count, dtype=numpy.uint64) * numpy.uint64(8192)
    return starts, numpy.full(count, 4096, dtype=numpy.uint64)


def mixed(count: int) -> tuple[Words, Words]:
    """64 B to 64 MiB, evenly spread in the logarithm, at any byte, gaps of up to a quarter of the size."""
    random = numpy.random.default_rng(count)
    sizes = numpy.exp2(random.uniform(6, 26, count)).astype(numpy.uint64)
    gaps = (random.uniform(0, 0.25, count) * sizes).astype(numpy.uint64) + numpy.uint64(1)
    starts = numpy.uint64(0x1000_0000_0123) + numpy.cumsum(sizes + gaps) - sizes
    return starts, sizes


def measure(kind: str, starts: Words, sizes: Words, rounds: int) -> None:
    random = numpy.random.default_rng(1)
    ends = starts + sizes
    table = PageTable()
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        table.insert(start, size)

    chosen = random.integers(0, len(starts), POINTERS)
    present = starts[chosen] + (random.random(POINTERS) * sizes[chosen]).astype(numpy.uint64)
    half = present.copy()
    half[::2] = ends[chosen[::2]]  # one past the end: in the gap, which follows each region
    random.shuffle(half)

    def search(pointers: Words) -> tuple[NDArray[numpy.int64], NDArray[numpy.bool_]]:
        at = numpy.searchsorted(starts, pointers, side="right") - 1
        return at, (at >= 0) & (pointers < ends[at])

    def contains(pointers: Words) -> NDArray[numpy.bool_]:
        return search(pointers)[1]

    def find(pointers: Words) -> NDArray[numpy.int64]:
        at, inside = search(pointers)
        return numpy.where(inside, at, -1)

    case = Case("batch", kind, len(starts))

    def turn(series: str, contender: str, call: Callable[[Words], object], pointers: Words) -> None:
        begin = time.perf_counter_ns()
        call(pointers)
        case.add(series, "ns a pointer", contender, (time.perf_counter_ns() - begin) / len(pointers))

    turns = []
    for name, pointers in {"all present": present, "half present": half, "in order": numpy.sort(present)}.items():
        assert (table.contains_many(pointers) == contains(pointers)).all()
        assert ((table.find_many(pointers) >= 0) == contains(pointers)).all()
        turns += [
            partial(turn, f"contains_many, {name}", "PageTable", table.contains_many, pointers),
            partial(turn, f"contains_many, {name}", "searchsorted", contains, pointers),
            partial(turn, f"find_many, {name}", "PageTable", table.find_many, pointers),
            partial(turn, f"find_many, {name}", "searchsorted", find, pointers),
        ]
    take_turns(rounds, turns)
    case.print()


if __name__ == "__main__":
    rounds, most, _ = arguments()
    for kind, make in {"4 KiB": pages, "mixed": mixed}.items():
        measure(kind, *make(min(most, 100_000)), rounds)

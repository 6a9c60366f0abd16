# SPDX-License-Identifier: Apache-2.0
"""Copies between pageable memory and a CUDA GPU, in GB/s: ``staging.py ROUNDS MOST_REGIONS``.

One copy alone, many in a row, both directions at once, many threads with a queue each, and a mapped file that is
touched for the first time; one copy and both directions are compared with locked memory.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy
from rounds import Case, arguments, take_turns

import pinning

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
QUEUES = (1, 2, 4, 8, 16, 32, 64)
FILE_BYTES = 2 * GIB


def noise(size: int) -> numpy.ndarray:
    block = numpy.random.default_rng(size).integers(0, 256, min(size, 16 * MIB), dtype=numpy.uint8)
    return numpy.resize(block, size)


def towards(to_device: bool) -> str:
    return "to the device" if to_device else "to the host"


class Ends:
    """An array of the host and memory of the device, and a queue between them."""

    def __init__(self, stack: ExitStack, size: int, to_device: bool, locked: bool = False) -> None:
        self.queue = stack.enter_context(pinning.Queue("cuda:0"))
        self.there = stack.enter_context(pinning.alloc(size, device="cuda:0"))
        self.array = noise(size)
        self.to_device = to_device
        if locked:
            stack.enter_context(pinning.lock(self.array, device="cuda:0"))
        pinning.copy(self.there, self.array, queue=self.queue)

    def submit(self) -> None:
        ends = (self.there, self.array) if self.to_device else (self.array, self.there)
        pinning.copy_async(*ends, queue=self.queue)

    def copy(self) -> None:
        self.submit()
        self.queue.synchronize()


def rate(moved: int, do: Callable[[], object]) -> float:
    begin = time.perf_counter_ns()
    do()
    return moved / (time.perf_counter_ns() - begin)


def compare(kind: str, series: str, moved: int, ways: dict[str, Callable[[], object]], rounds: int) -> None:
    case = Case("staging", kind, 1)

    def turn(name: str, do: Callable[[], object]) -> None:
        case.add(series, "GB/s", name, rate(moved, do))

    for do in ways.values():
        do()
        do()
    take_turns(rounds, [partial(turn, *way) for way in ways.items()])
    case.print()


def alone(size: int, to_device: bool, rounds: int) -> None:
    """One copy at a time, waited for."""
    with ExitStack() as stack:
        ways = {
            "pageable": Ends(stack, size, to_device).copy,
            "locked": Ends(stack, size, to_device, locked=True).copy,
        }
        compare(f"{size // MIB} MiB", towards(to_device), size, ways, rounds)


def in_a_row(to_device: bool, rounds: int) -> None:
    """32 copies of 32 MiB, of as many arrays, in one queue."""
    with ExitStack() as stack:
        ends = [Ends(stack, 32 * MIB, to_device) for _ in range(32)]
        for each in ends:
            each.queue = ends[0].queue

        def all_of_them() -> None:
            for each in ends:
                each.submit()
            ends[0].queue.synchronize()

        compare("32 x 32 MiB", towards(to_device), GIB, {"pageable": all_of_them}, rounds)


def both_ways(locked: bool, rounds: int) -> None:
    """1 GiB in and 1 GiB out at once, in two queues."""
    with ExitStack() as stack:
        ends = [Ends(stack, GIB, to_device, locked) for to_device in (True, False)]

        def at_once() -> None:
            for each in ends:
                each.submit()
            for each in ends:
                each.queue.synchronize()

        compare("1 GiB in and out", "in all", 2 * GIB, {"locked" if locked else "pageable": at_once}, rounds)


def many_queues(count: int, rounds: int) -> None:
    """`count` threads, a queue each, 64 MiB there and back, four times."""
    with ExitStack() as stack:
        ends = [Ends(stack, 64 * MIB, True) for _ in range(count)]
        backs = [numpy.empty_like(each.array) for each in ends]

        def work(each: Ends, back: numpy.ndarray) -> None:
            for _ in range(4):
                each.submit()
                pinning.copy(back, each.there, queue=each.queue)

        def all_at_once() -> None:
            threads = [threading.Thread(target=work, args=pair) for pair in zip(ends, backs, strict=True)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        moved = 2 * 4 * count * 64 * MIB
        compare(f"{count} queues", "there and back", moved, {"pageable": all_at_once}, rounds)
        for each, back in zip(ends, backs, strict=True):
            assert (each.array == back).all(), "wrong bytes"


def warm_file(rounds: int) -> None:
    """A file in the page cache, mapped read only, copied at its first touch."""
    with tempfile.NamedTemporaryFile(dir=os.environ.get("TMPDIR", "/tmp")) as file, ExitStack() as stack:
        noise(FILE_BYTES).tofile(file.name)
        Path(file.name).read_bytes()  # into the page cache
        there = stack.enter_context(pinning.alloc(FILE_BYTES, device="cuda:0"))
        queue = stack.enter_context(pinning.Queue("cuda:0"))
        opened = stack.enter_context(Path(file.name).open("rb"))
        case = Case("staging", "2 GiB of a file, first touch", 1)

        def first_touch() -> float:
            with mmap.mmap(opened.fileno(), FILE_BYTES, prot=mmap.PROT_READ) as mapped:
                return rate(FILE_BYTES, lambda: pinning.copy(there, mapped, queue=queue))

        first_touch()
        for _ in range(rounds):
            case.add(towards(True), "GB/s", "mapped read only", first_touch())
        case.print()


if __name__ == "__main__":
    rounds, *_ = arguments()
    if not any(device.name.startswith("cuda:") for device in pinning.devices()):
        print("no CUDA GPU here", file=sys.stderr)
        sys.exit(77)
    for size in (8 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB):
        alone(size, True, rounds)
        alone(size, False, rounds)
    in_a_row(True, rounds)
    in_a_row(False, rounds)
    both_ways(True, rounds)
    both_ways(False, rounds)
    for count in QUEUES:
        many_queues(count, rounds)
    warm_file(rounds)

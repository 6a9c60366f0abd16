# SPDX-License-Identifier: Apache-2.0
"""Pageable memory and a CUDA GPU as programs move it, in GB/s: ``staging.py ROUNDS MOST_REGIONS``.

One copy alone, many in a row, both directions at once, many threads with a queue each, and a mapped file that is
touched for the first time; beside locked memory and the driver's own pageable copy.
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

    def check(self) -> None:
        back = numpy.empty_like(self.array)
        pinning.copy(back, self.there, queue=self.queue)
        assert (back == self.array).all(), "wrong bytes"


def rate(moved: int, do: Callable[[], object]) -> float:
    begin = time.perf_counter_ns()
    do()
    return moved / (time.perf_counter_ns() - begin)


def compare(kind: str, series: str, moved: int, ways: dict[str, Callable[[], object]], rounds: int) -> None:
    case = Case("staging", kind, 1)
    for do in ways.values():
        do()
        do()
    take_turns(rounds, [partial(lambda name, do: case.add(series, "GB/s", name, rate(moved, do)), *way) for way in ways.items()])
    case.print()


def alone(rounds: int) -> None:
    """One copy at a time, waited for."""
    for size in (8 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB):
        for to_device in (True, False):
            with ExitStack() as stack:
                ways = {
                    "pageable": Ends(stack, size, to_device).copy,
                    "locked": Ends(stack, size, to_device, locked=True).copy,
                }
                series = "to the device" if to_device else "to the host"
                compare(f"{size // MIB} MiB", series, size, ways, rounds)


def in_a_row(rounds: int) -> None:
    """32 copies of 32 MiB, of as many arrays, in one queue."""
    size, count = 32 * MIB, 32
    for to_device in (True, False):
        with ExitStack() as stack:
            first = Ends(stack, size, to_device)
            arrays = [noise(size) for _ in range(count)]
            theres = [stack.enter_context(pinning.alloc(size, device="cuda:0")) for _ in range(count)]
            for there, array in zip(theres, arrays, strict=True):
                pinning.copy(there, array, queue=first.queue)

            def all_of_them() -> None:
                for there, array in zip(theres, arrays, strict=True):
                    pinning.copy_async(*((there, array) if to_device else (array, there)), queue=first.queue)
                first.queue.synchronize()

            series = "to the device" if to_device else "to the host"
            compare("32 x 32 MiB", series, size * count, {"pageable": all_of_them}, rounds)


def both_ways(rounds: int) -> None:
    """1 GiB in and 1 GiB out at once, in two queues."""
    for locked in (False, True):
        with ExitStack() as stack:
            ends = [Ends(stack, GIB, to_device, locked) for to_device in (True, False)]

            def at_once() -> None:
                for each in ends:
                    each.submit()
                for each in ends:
                    each.queue.synchronize()

            name = "locked" if locked else "pageable"
            compare("1 GiB in and out", "in all", 2 * GIB, {name: at_once}, rounds)


def many_queues(rounds: int) -> None:
    """So many threads, a queue each, 64 MiB there and back."""
    size, times = 64 * MIB, 4
    for count in QUEUES:
        with ExitStack() as stack:
            ends = [Ends(stack, size, True) for _ in range(count)]
            backs = [numpy.empty_like(each.array) for each in ends]

            def work(each: Ends, back: numpy.ndarray) -> None:
                for _ in range(times):
                    pinning.copy_async(each.there, each.array, queue=each.queue)
                    pinning.copy(back, each.there, queue=each.queue)

            def all_at_once() -> None:
                threads = [threading.Thread(target=work, args=pair) for pair in zip(ends, backs, strict=True)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

            compare(f"{count} queues", "there and back", 2 * times * count * size, {"pageable": all_at_once}, rounds)
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
        for round_ in range(rounds + 1):
            mapped = mmap.mmap(opened.fileno(), FILE_BYTES, prot=mmap.PROT_READ)
            got = rate(FILE_BYTES, lambda: pinning.copy(there, mapped, queue=queue))
            mapped.close()
            if round_:
                case.add("to the device", "GB/s", "mapped read only", got)
        case.print()


if __name__ == "__main__":
    rounds, *_ = arguments()
    if not any(device.name.startswith("cuda:") for device in pinning.devices()):
        print("no CUDA GPU here", file=sys.stderr)
        sys.exit(77)
    for measure in (alone, in_a_row, both_ways, many_queues, warm_file):
        measure(rounds)

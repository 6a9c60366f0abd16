# SPDX-License-Identifier: Apache-2.0
"""Threads with a queue each that copy memory both ways while others lock, unlock, allocate and free.

``many_queues.py THREADS SECONDS SEED [MIB [LINKS]]``: copies of up to MIB (default 72) over LINKS. It exits with
status 0 if every byte was right; if it runs a minute longer than SECONDS, it prints all threads' stacks and exits.
"""

from __future__ import annotations

import faulthandler
import random
import sys
import threading
import time

import numpy

import pinning

MIB = 1 << 20
STUCK = 60.0  # seconds


class Watch:
    """The threads' progress and errors. Exits the process if it still runs `STUCK` seconds after the time is up."""

    def __init__(self, threads: int, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.moved = [0] * threads
        self.errors: list[BaseException] = []
        faulthandler.dump_traceback_later(seconds + STUCK, exit=True)

    @property
    def on(self) -> bool:
        return time.monotonic() < self.end and not self.errors


def copy_there_and_back(number: int, watch: Watch, seed: int, largest: int) -> None:
    draw = random.Random(seed * 1000 + number)
    source = numpy.random.default_rng(seed + number).integers(0, 256, largest, dtype=numpy.uint8)
    back = numpy.empty_like(source)
    with pinning.Queue("cuda:0") as queue, pinning.alloc(source.nbytes, device="cuda:0") as there:
        while watch.on:
            size = draw.choice([draw.randrange(1, 64), draw.randrange(64, MIB), draw.randrange(MIB, largest)])
            at = draw.randrange(source.nbytes - size + 1)
            back[at : at + size] = 0
            array = source[at : at + size]
            if draw.random() < 0.3:
                with pinning.lock(array, device="cuda:0"):
                    pinning.copy_async(there.ptr, array, size, queue=queue)
                    pinning.copy(back[at : at + size], there.ptr, size, queue=queue)
            else:
                pinning.copy_async(there.ptr, array, size, queue=queue)
                pinning.copy(back[at : at + size], there.ptr, size, queue=queue)
            wrong = numpy.flatnonzero(back[at : at + size] != array)
            if wrong.size:
                first, last, zeros = wrong[0], wrong[-1], int((back[at : at + size][wrong] == 0).sum())
                what = f"{wrong.size} bytes from {first} to {last} of [{at}, {at + size}), {zeros} of them zeros"
                raise AssertionError(f"thread {number}: wrong are {what}")
            watch.moved[number] += 2 * size


def lock_and_free(watch: Watch, seed: int) -> None:
    """Make driver calls that wait for all queues, one after another."""
    draw = random.Random(seed)
    array = numpy.ones(8 * MIB, numpy.uint8)
    while watch.on:
        size = draw.randrange(1, array.nbytes)
        pinning.lock(array[:size], device="cuda:0").unlock()
        pinning.alloc(size, device="cuda:0").free()
        pinning.alloc(size, pinning.MemoryKind.HOST, device="cuda:0").free()


def torch_beside(watch: Watch, seed: int) -> None:
    """Use a torch stream, and torch's cudaMalloc and cudaFree."""
    try:
        import torch
    except ImportError:
        return
    stream = torch.cuda.Stream()
    pageable = torch.arange(4 * MIB, dtype=torch.uint8)
    with torch.cuda.stream(stream):
        while watch.on:
            there = pageable.to("cuda", non_blocking=True)
            assert (there.cpu() == pageable).all(), "torch: wrong bytes"
            a = torch.ones(1024, 1024, device="cuda")
            (a @ a).sum().item()
            del there, a
            torch.cuda.empty_cache()


def main() -> None:
    threads, seconds, seed = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    largest = int(sys.argv[4]) * MIB if len(sys.argv) > 4 else 72 * MIB
    costs = pinning.copies.costs
    costs.stage_to_device = costs.stage_to_host = min(costs.stage_to_host, largest // 9)
    costs.threads = max(2, costs.threads)
    if len(sys.argv) > 5:
        costs.links = sys.argv[5]  # type: ignore[assignment]
        costs.stage_to_device = costs.stage_to_host = 1 * MIB
    watch = Watch(threads, seconds)

    def guarded(function: object, *arguments: object) -> None:
        try:
            function(*arguments)  # type: ignore[operator]
        except BaseException as error:
            watch.errors.append(error)
            raise

    working = [
        threading.Thread(target=guarded, args=(copy_there_and_back, i, watch, seed, largest)) for i in range(threads)
    ]
    working += [threading.Thread(target=guarded, args=(lock_and_free, watch, seed + i)) for i in range(2)]
    if largest == 72 * MIB:  # torch needs a real GPU
        working.append(threading.Thread(target=guarded, args=(torch_beside, watch, seed)))
    for each in working:
        each.start()
    for each in working:
        each.join()
    rate = sum(watch.moved) / seconds / 1e9
    print(f"{threads} threads moved {rate:.1f} GB/s; the slowest moved {min(watch.moved) / 1e6:.0f} MB")
    sys.exit(bool(watch.errors))


if __name__ == "__main__":
    main()

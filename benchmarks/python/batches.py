# SPDX-License-Identifier: Apache-2.0
"""Many blocks at random places of a pool of the host, to and from a CUDA GPU: ``batches.py ROUNDS MOST_REGIONS``.

In GB/s, end to end from Python: the call, and the wait for its end. Beside it torch's ``copy_(non_blocking=True)`` in a
loop, and the driver's batch call.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import numpy
from rounds import Case, arguments, take_turns

import pinning

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
POOL = 4 * GIB
SIZES = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB)
MOST = 65536


def noise(size: int) -> numpy.ndarray:
    block = numpy.random.default_rng(size).integers(0, 256, 16 * MIB, dtype=numpy.uint8)
    return numpy.resize(block, size)


class Blocks:
    """Blocks of one size, 1 GiB or `MOST` blocks at most, at random places, `shift` bytes behind aligned addresses."""

    def __init__(self, stack: ExitStack, pool: numpy.ndarray, size: int, shift: int = 0) -> None:
        self.size, self.shift = size, shift
        self.count = min(MOST, GIB // size)
        self.queue = stack.enter_context(pinning.Queue("cuda:0"))
        self.there = stack.enter_context(pinning.alloc(self.count * size, device="cuda:0"))
        self.pool = pool
        self.places = numpy.random.default_rng(size).permutation(POOL // size - 1)[: self.count]
        order = numpy.arange(self.count, dtype=numpy.uint64)
        self.near = numpy.uint64(pool.ctypes.data + shift) + self.places.astype(numpy.uint64) * numpy.uint64(size)
        self.far = numpy.uint64(self.there.ptr) + order * numpy.uint64(size)

    def move(self, inwards: bool, engine: str) -> None:
        ends = (self.far, self.near) if inwards else (self.near, self.far)
        pinning.copy_batch(*ends, self.size, queue=self.queue, engine=engine)  # type: ignore[arg-type]

    def check(self) -> None:
        """Check that the device has each block."""
        back = numpy.empty(self.count * self.size, numpy.uint8)
        pinning.copy(back, self.there, queue=self.queue)
        blocks = self.pool[self.shift :][: POOL - self.size].reshape(-1, self.size)[self.places]
        assert (back.reshape(-1, self.size) == blocks).all(), "wrong bytes"


def by_torch(blocks: Blocks, tensor: object, inwards: bool, most: int) -> float:
    """GB/s of a loop of copies of pinned tensors, over the first `most` blocks."""
    import torch

    host = tensor[:POOL].view(-1, blocks.size)  # type: ignore[index]
    there = torch.empty(most, blocks.size, dtype=torch.uint8, device="cuda")
    places = blocks.places[:most].tolist()
    torch.cuda.synchronize()
    begin = time.perf_counter_ns()
    for i, place in enumerate(places):
        if inwards:
            there[i].copy_(host[place], non_blocking=True)
        else:
            host[place].copy_(there[i], non_blocking=True)
    torch.cuda.synchronize()
    return most * blocks.size / (time.perf_counter_ns() - begin)


def measure(size: int, pool: numpy.ndarray, locked: bool, rounds: int, tensor: object, shift: int = 0) -> None:
    for inwards in (True, False):
        with ExitStack() as stack:
            blocks = Blocks(stack, pool, size, shift)
            kind = "locked" if locked else "pageable"
            case = Case("batches", f"{size // KIB} KiB, {kind}{', odd ends' if shift else ''}", 1)
            series = "to the device" if inwards else "to the host"

            def turn(name: str, rate: Callable[[], float]) -> None:
                case.add(series, "GB/s", name, rate())  # noqa: B023

            def ours(engine: str) -> float:
                begin = time.perf_counter_ns()
                blocks.move(inwards, engine)  # noqa: B023
                return blocks.count * blocks.size / (time.perf_counter_ns() - begin)  # noqa: B023

            ways: dict[str, Callable[[], float]] = {"pinning": partial(ours, "auto")}
            if locked:
                ways["pinning, copy engines"] = partial(ours, "copy")
            if tensor is not None:
                ways["torch copy_"] = partial(by_torch, blocks, tensor, inwards, min(blocks.count, 4096))
            blocks.move(True, "auto")
            blocks.check()
            for way in ways.values():
                way()
            take_turns(rounds, [partial(turn, *way) for way in ways.items()])
            case.print()


def submission(pool: numpy.ndarray) -> None:
    """Time of the call itself, for 65 536 blocks of 4 KiB given as arrays, and for one block beside `copy_async`."""
    with ExitStack() as stack:
        blocks = Blocks(stack, pool, 4 * KIB)
        case = Case("batches", "the call", 1)
        far, near = int(blocks.far[0]), int(blocks.near[0])

        def time_of(series: str, name: str, submit: Callable[[], object]) -> None:
            begin = time.perf_counter_ns()
            submit()
            case.add(series, "us", name, (time.perf_counter_ns() - begin) / 1e3)
            blocks.queue.synchronize()

        def batch(count: int) -> Callable[[], object]:
            ends = blocks.far[:count], blocks.near[:count]
            return lambda: pinning.copy_batch_async(*ends, blocks.size, queue=blocks.queue)

        for _ in range(20):
            time_of("65 536 blocks", "pinning", batch(blocks.count))
        for _ in range(100):
            time_of("1 block", "copy_async", lambda: pinning.copy_async(far, near, blocks.size, blocks.queue))
            time_of("1 block", "pinning", batch(1))
            time_of("4 blocks", "pinning", batch(4))
        case.print()


if __name__ == "__main__":
    rounds, *_ = arguments()
    if not any(device.name.startswith("cuda:") for device in pinning.devices()):
        print("no CUDA GPU here", file=sys.stderr)
        sys.exit(77)
    pool = noise(POOL)
    tensor = None
    if importlib.util.find_spec("torch"):
        import torch

        tensor = torch.from_numpy(pool)
    with pinning.lock(pool, device="cuda:0"):
        submission(pool)
        for size in SIZES:
            measure(size, pool, True, rounds, tensor)
        measure(4 * KIB, pool, True, rounds, None, shift=5)
    for size in (16 * KIB, 64 * KIB):
        measure(size, pool, False, rounds, None)

# SPDX-License-Identifier: Apache-2.0
"""Two CUDA GPUs of one host at once, in GB/s of both together: ``two_gpus.py ROUNDS MOST_REGIONS``.

1 GiB to or from each, locked for both or pageable, beside one GPU alone: what a second GPU adds; pageable memory
through rings of two sizes, because two large ones may not fit in the caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import numpy
from rounds import Case, arguments, take_turns

import pinning

MIB, GIB = 1 << 20, 1 << 30
RINGS = (64 * MIB, 16 * MIB)
NAMES = ("cuda:0", "cuda:1")


def compare(to_device: bool, ring: int, rounds: int) -> None:
    kind = f"{'to the device' if to_device else 'to the host'}, rings of {ring // MIB} MiB"
    case = Case("two_gpus", kind, 1)
    pinning.copies.trim_staging()
    pinning.copies.costs.ring_bytes = ring
    with ExitStack() as stack:
        queues = [stack.enter_context(pinning.Queue(name)) for name in NAMES]
        there = [stack.enter_context(pinning.alloc(GIB, device=name)) for name in NAMES]
        pageable, locked = ([numpy.full(GIB, which, "u1") for which in (1, 2)] for _ in range(2))
        for array in locked:
            for name in NAMES:
                stack.enter_context(pinning.lock(array, device=name))

        def move(arrays: list[numpy.ndarray], gpus: tuple[int, ...]) -> None:
            for gpu in gpus:
                ends = (there[gpu], arrays[gpu]) if to_device else (arrays[gpu], there[gpu])
                pinning.copy_async(*ends, queue=queues[gpu])
            for gpu in gpus:
                queues[gpu].synchronize()

        def turn(series: str, name: str, do: Callable[[], object], moved: int) -> None:
            begin = time.perf_counter_ns()
            do()
            case.add(series, "GB/s", name, moved / (time.perf_counter_ns() - begin))

        turns = [
            partial(turn, series, f"GPUs: {len(gpus)}", partial(move, arrays, gpus), len(gpus) * GIB)
            for series, arrays in (("locked", locked), ("pageable", pageable))
            for gpus in ((0,), (0, 1))
        ]
        take_turns(2, turns)  # a warm-up, which is not counted
        case = Case("two_gpus", kind, 1)
        take_turns(rounds, turns)
    case.print()


if __name__ == "__main__":
    rounds, _, _ = arguments()
    for ring in RINGS:
        for to_device in (True, False):
            compare(to_device, ring, rounds)

# SPDX-License-Identifier: Apache-2.0
"""Idle registrations on a CUDA GPU: ``idle.py ROUNDS GIB``.

The time to lock an idle region again, compared with a lock and an unlock by the driver; and arrays of so many GiB that
go to the device in turns under a budget of two thirds of that: staged, or locked for each copy with and without idle
registrations.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import numpy
from rounds import Case, arguments, take_turns

import pinning

MIB, GIB = 1 << 20, 1 << 30
DEVICE = "cuda:0"
RELOCKS = 1000


def pair(array: numpy.ndarray, times: int) -> float:
    begin = time.perf_counter_ns()
    for _ in range(times):
        pinning.lock(array, device=DEVICE).unlock()
    return (time.perf_counter_ns() - begin) / times / 1e3


def relock(rounds: int) -> None:
    case = Case("idle", "lock and unlock", 1)
    for size in (MIB, GIB):
        array = numpy.ones(size, "u1")

        def by_driver(array: numpy.ndarray = array) -> None:
            pinning.budget(idle=False)
            case.add(f"{array.nbytes // MIB} MiB", "us", "by the driver", pair(array, 3))

        def idle(array: numpy.ndarray = array) -> None:
            pinning.budget(idle=True)
            pinning.lock(array, device=DEVICE).unlock()
            case.add(f"{array.nbytes // MIB} MiB", "us", "idle", pair(array, RELOCKS))

        take_turns(rounds, [by_driver, idle])
    pinning.budget(idle=False)
    case.print()


def cycle(rounds: int, total: int) -> None:
    arrays = [numpy.full(GIB // 4, index % 251, "u1") for index in range(4 * total)]
    limit = pinning.budget().used + total * GIB * 2 // 3
    case = Case("idle", f"{total} GiB in turns, budget {total * 2 / 3:.1f} GiB", 1)
    with pinning.Queue(DEVICE) as queue, pinning.alloc(GIB // 4, device=DEVICE) as there:

        def locked() -> None:
            for array in arrays:
                with pinning.lock(array, device=DEVICE):
                    pinning.copy(there, array, queue=queue)

        def copied() -> None:
            for array in arrays:
                pinning.copy_async(there, array, queue=queue)
            queue.synchronize()

        def turn(name: str, idle: bool, way: Callable[[], None]) -> None:
            pinning.budget(limit, idle=idle)
            way()  # registers what stays registered
            begin = time.perf_counter_ns()
            way()
            case.add("to the device", "GB/s", name, total * GIB / (time.perf_counter_ns() - begin))
            assert pinning.budget().used <= limit
            last = numpy.zeros(16, "u1")
            pinning.copy(last, there, 16, queue=queue)
            assert (last == arrays[-1][0]).all(), last
            pinning.give_back_idle()

        ways = [
            partial(turn, "staged", False, copied),
            partial(turn, "locked each time", False, locked),
            partial(turn, "locked each time, idle", True, locked),
        ]
        take_turns(rounds, ways)
    pinning.budget(1.0, idle=False)
    case.print()


def main() -> None:
    rounds, total, _ = arguments()
    if not any(device.name == DEVICE for device in pinning.devices()):
        print("no CUDA device", file=sys.stderr)
        sys.exit(77)
    relock(rounds)
    cycle(rounds, total)


if __name__ == "__main__":
    main()

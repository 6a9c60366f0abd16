# SPDX-License-Identifier: Apache-2.0
"""1 265 views of a few allocations, locked and known to two registrars: ``registrars.py ROUNDS MOST_REGIONS [GIB]``.

The registrars take no time here. Compared with the bare locks of the same allocations, and with allocations that are
locked already: the cost of finding them, calling the registrars and making descriptors, without the registrations.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import numpy
from rounds import Case, arguments, take_turns

import pinning
from pinning.nixl import AgentMemory

VIEWS, ALLOCATIONS = 1265, 23
GIB = 1 << 30


class Agent:
    """Registers in no time."""

    name = "idle"
    calls = 0

    def register_memory(self, rows: numpy.ndarray, mem_type: str, backends: list[str]) -> numpy.ndarray:
        self.calls += 1
        return rows

    def deregister_memory(self, rows: numpy.ndarray, backends: list[str]) -> None:
        pass

    def get_xfer_descs(self, rows: numpy.ndarray, mem_type: str) -> numpy.ndarray:
        return rows


def main(rounds: int, gib: float) -> None:
    device = pinning.default_device()
    each = int(gib * GIB) // VIEWS // 4096 * 4096
    arrays = [numpy.empty((VIEWS // ALLOCATIONS, each), "u1") for _ in range(ALLOCATIONS)]
    views = [row for array in arrays for row in array]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:  # one alone takes 0.4 s per GiB
        for _ in threads.map(lambda view: view.fill(1), views):
            pass
    kind = f"{len(views)} views of {gib} GiB in {ALLOCATIONS} allocations on {device.name}"
    case = Case("registrars", kind, ALLOCATIONS)

    def turn(name: str, do: Callable[[], object]) -> None:
        begin = time.perf_counter_ns()
        do()
        case.add("lock and unlock", "ms", name, (time.perf_counter_ns() - begin) / 1e6)

    def bare() -> None:
        with ExitStack() as locks:
            for array in arrays:
                locks.enter_context(pinning.lock(array, device=device))

    def with_two() -> None:
        with AgentMemory(Agent(), device) as first, AgentMemory(Agent(), device) as second:
            with first.lock(views) as locked:
                locked.descs()
            assert first.agent.calls == second.agent.calls == ALLOCATIONS

    take_turns(rounds, [partial(turn, "bare locks", bare), partial(turn, "two registrars", with_two)])
    with ExitStack() as locks:
        for array in arrays:
            locks.enter_context(pinning.lock(array, device=device))
        take_turns(max(rounds, 5), [partial(turn, "two registrars, locked before", with_two)])
    case.print()


if __name__ == "__main__":
    rounds, _, _ = arguments()
    main(rounds, float(sys.argv[3]) if len(sys.argv) > 3 else 51.0)

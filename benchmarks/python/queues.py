# SPDX-License-Identifier: Apache-2.0
"""What the calling thread pays to submit work to a queue of the host: ``queues.py ROUNDS MOST_REGIONS``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy
from rounds import Case, arguments, take_turns

import pinning
from pinning.plugin import VendorQueue

SIZE = 64 << 10
SUBMISSIONS = 200  # in one timing; the queue's thread executes them meanwhile


def nothing(queue: VendorQueue) -> None:
    """Work without a vendor call."""


def measure(rounds: int) -> None:
    host, array = pinning.device("host:0"), numpy.ones(SIZE, numpy.uint8)
    case = Case("queues", "submit", 1)
    with (
        pinning.Queue(host) as queue,
        pinning.Queue(host) as other,
        pinning.alloc(SIZE, device=host) as there,
        pinning.lock(array, device=host),
    ):
        vendor = host.make_queue()  # type: ignore[attr-defined]
        dst, src = there.ptr, array.ctypes.data
        event = other.record()
        ways: dict[tuple[str, str], Callable[[], object]] = {
            ("nothing", "Python call"): partial(nothing, vendor),
            ("nothing", "Queue.submit"): lambda: queue.submit(nothing),
            ("nothing, after an event", "VendorQueue.wait"): lambda: vendor.wait(event.vendor_event),
            ("nothing, after an event", "Queue.submit"): lambda: queue.submit(nothing, (event,)),
            ("a copy of 64 KiB", "VendorQueue.copy"): lambda: vendor.copy(dst, src, SIZE),
            ("a copy of 64 KiB", "copy_async"): lambda: pinning.copy_async(there, array, queue=queue),
        }

        def turn(series: str, contender: str, do: Callable[[], object]) -> None:
            begin = time.perf_counter_ns()
            for _ in range(SUBMISSIONS):
                do()
            case.add(series, "us", contender, (time.perf_counter_ns() - begin) / SUBMISSIONS / 1e3)
            queue.synchronize()
            vendor.synchronize()

        take_turns(rounds, [partial(turn, *name, do) for name, do in ways.items()])
        vendor.close()
    case.print()


if __name__ == "__main__":
    measure(arguments()[0])

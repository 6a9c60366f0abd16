# SPDX-License-Identifier: Apache-2.0
"""Copies between NumPy arrays and a CUDA GPU: ``copies.py ROUNDS MOST_REGIONS``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import numpy
from rounds import Case, arguments, take_turns

import pinning

SIZES = {
    "64 KiB": 64 << 10,
    "256 KiB": 256 << 10,
    "1 MiB": 1 << 20,
    "4 MiB": 4 << 20,
    "16 MiB": 16 << 20,
    "64 MiB": 64 << 20,
    "256 MiB": 256 << 20,
    "1 GiB": 1 << 30,
}
SUBMISSIONS = 200  # copies in one timing of what it costs to submit one; few enough for the driver's queue


def check(result: tuple[object, ...]) -> None:
    from cuda.bindings import driver

    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the driver says {result[0]}")


def measure(kind: str, size: int, to_device: bool, rounds: int) -> None:
    """Whole copies, from the call to the last byte."""
    from cuda.bindings import driver

    case = Case("copies", kind, 1)
    repeats = max(1, min(50, (64 << 20) // size))
    pageable, locked = numpy.ones(size, numpy.uint8), numpy.ones(size, numpy.uint8)
    device = pinning.device("cuda:0")
    queue = pinning.queues.default_queue(device)
    stream = queue.handle
    with pinning.alloc(size, device=device) as there, pinning.lock(locked, device=device):

        def by_driver(array: numpy.ndarray) -> None:
            ends = (there.ptr, array.ctypes.data) if to_device else (array.ctypes.data, there.ptr)
            check(driver.cuMemcpyAsync(*ends, size, stream))
            check(driver.cuStreamSynchronize(stream))

        def by_us(array: numpy.ndarray) -> None:
            ends = (there, array) if to_device else (array, there)
            pinning.copy_async(*ends, queue=queue).wait()

        def locked_for_once() -> None:
            with pinning.lock(pageable, device=device):
                by_us(pageable)

        ways: dict[str, Callable[[], None]] = {
            "pinning, pageable": partial(by_us, pageable),
            "driver, pageable": partial(by_driver, pageable),
            "pinning, locked": partial(by_us, locked),
            "driver, locked": partial(by_driver, locked),
            "lock + copy + unlock": locked_for_once,
        }

        def turn(name: str, do: Callable[[], None]) -> None:
            begin = time.perf_counter_ns()
            for _ in range(repeats):
                do()
            nanoseconds = (time.perf_counter_ns() - begin) / repeats
            case.add("to the device" if to_device else "to the host", "GB/s", name, size / nanoseconds)

        for do in ways.values():
            do()
            do()
        take_turns(rounds, [partial(turn, *way) for way in ways.items()])
    case.print()


def submissions(rounds: int) -> None:
    """What the calling thread pays to submit a small copy of locked memory."""
    from cuda.bindings import driver

    case = Case("copies", "submit", 1)
    array = numpy.ones(4096, numpy.uint8)
    device = pinning.device("cuda:0")
    queue = pinning.queues.default_queue(device)
    stream = queue.handle
    with pinning.alloc(4096, device=device) as there, pinning.lock(array, device=device):
        dst, src = there.ptr, array.ctypes.data
        ways: dict[str, Callable[[], object]] = {
            "copy_async": lambda: pinning.copy_async(there, array, queue=queue),
            "cuMemcpyAsync": lambda: driver.cuMemcpyAsync(dst, src, 4096, stream),
        }

        def turn(name: str, do: Callable[[], object]) -> None:
            begin = time.perf_counter_ns()
            for _ in range(SUBMISSIONS):
                do()
            case.add("submit", "us", name, (time.perf_counter_ns() - begin) / SUBMISSIONS / 1e3)
            queue.synchronize()

        for name, do in ways.items():
            turn(name, do)
        case = Case("copies", "submit", 1)
        take_turns(3 * rounds, [partial(turn, *way) for way in ways.items()])
    case.print()


if __name__ == "__main__":
    rounds, most, _ = arguments()
    if not any(device.name.startswith("cuda:") for device in pinning.devices()):
        print("no CUDA GPU here", file=sys.stderr)
        sys.exit(77)
    with pinning.queues.default_queue(pinning.device("cuda:0")).current():
        submissions(rounds)
        for kind, size in SIZES.items():
            for to_device in (True, False):
                measure(kind, size, to_device, rounds)

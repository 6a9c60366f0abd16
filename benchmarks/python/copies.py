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
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
SUBMISSIONS = 200  # copies in one timing of submissions; few enough for the driver's queue


def call(function: str, *arguments: object) -> object:
    """Call the driver; returns its result."""
    from cuda.bindings import driver

    code, *answers = getattr(driver, function)(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{function} says {code}")
    return answers[0] if answers else None


def measure(kind: str, size: int, to_device: bool, rounds: int) -> None:
    """Whole copies, from the call to the last byte."""
    case = Case("copies", kind, 1)
    series = "to the device" if to_device else "to the host"
    repeats = max(1, min(50, (64 << 20) // size))
    pageable, locked = numpy.ones(size, numpy.uint8), numpy.ones(size, numpy.uint8)
    stream = call("cuStreamCreate", NON_BLOCKING)
    with (
        pinning.Queue("cuda:0") as queue,
        pinning.alloc(size, device="cuda:0") as there,
        pinning.lock(locked, device="cuda:0"),
    ):

        def by_driver(array: numpy.ndarray) -> None:
            ends = (there.ptr, array.ctypes.data) if to_device else (array.ctypes.data, there.ptr)
            call("cuMemcpyAsync", *ends, size, stream)
            call("cuStreamSynchronize", stream)

        def by_us(array: numpy.ndarray) -> None:
            ends = (there, array) if to_device else (array, there)
            pinning.copy_async(*ends, queue=queue).wait()

        def locked_for_once() -> None:
            with pinning.lock(pageable, device="cuda:0"):
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
            case.add(series, "ms", name, (time.perf_counter_ns() - begin) / repeats / 1e6)

        for do in ways.values():
            do()
            do()
        take_turns(rounds, [partial(turn, *way) for way in ways.items()])
    call("cuStreamDestroy", stream)
    case.print()


def submissions(rounds: int) -> None:
    """What the calling thread pays to submit a small copy of locked memory."""
    from cuda.bindings import driver

    array = numpy.ones(4096, numpy.uint8)
    stream = call("cuStreamCreate", NON_BLOCKING)
    with (
        pinning.Queue("cuda:0") as queue,
        pinning.alloc(4096, device="cuda:0") as there,
        pinning.lock(array, device="cuda:0"),
    ):
        dst, src = there.ptr, array.ctypes.data
        copy_async, bare = pinning.copy_async, driver.cuMemcpyAsync

        def timed(do: Callable[[], object]) -> float:
            begin = time.perf_counter_ns()
            for _ in range(SUBMISSIONS):
                do()
            end = time.perf_counter_ns()
            queue.synchronize()
            call("cuStreamSynchronize", stream)
            return (end - begin) / SUBMISSIONS / 1e3

        def pair() -> tuple[float, float]:
            return timed(lambda: copy_async(there, array, queue=queue)), timed(lambda: bare(dst, src, 4096, stream))

        for _ in range(20):
            pair()
        case = Case("copies", "submit", 1)
        for _ in range(3 * rounds):
            ours, theirs = pair()
            case.add("submit", "us", "copy_async", ours)
            case.add("submit", "us", "cuMemcpyAsync", theirs)
            case.add("submit, over the driver's", "us", "copy_async", ours - theirs)
    call("cuStreamDestroy", stream)
    case.print()


if __name__ == "__main__":
    rounds, most, _ = arguments()
    if not any(device.name.startswith("cuda:") for device in pinning.devices()):
        print("no CUDA GPU here", file=sys.stderr)
        sys.exit(77)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", 0))  # the bare calls need one current in their thread
    submissions(rounds)
    for kind, size in SIZES.items():
        for to_device in (True, False):
            measure(kind, size, to_device, rounds)

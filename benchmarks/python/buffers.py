# SPDX-License-Identifier: Apache-2.0
"""Locking memory that has been touched already, on a CUDA GPU: ``buffers.py ROUNDS MOST_REGIONS``."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy
from rounds import Case, arguments, take_turns

import pinning

SIZES = {"64 KiB": 64 << 10, "1 MiB": 1 << 20, "16 MiB": 16 << 20, "256 MiB": 256 << 20, "1 GiB": 1 << 30}

Undo = Callable[[], object]


def contenders(array: numpy.ndarray) -> dict[str, Callable[[], Undo]]:
    """By name, functions that lock `array` and return a function that unlocks it."""
    from cuda.bindings import driver

    address = array.ctypes.data
    flags = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP

    def check(result: tuple[object, ...]) -> None:
        if result[0] != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"the driver says {result[0]}")

    def lock() -> Undo:
        return pinning.lock(array, device="cuda:0").unlock

    def register() -> Undo:
        check(driver.cuMemHostRegister(address, array.nbytes, flags))
        return lambda: check(driver.cuMemHostUnregister(address))

    found: dict[str, Callable[[], Undo]] = {"pinning.lock": lock, "cuMemHostRegister": register}
    if importlib.util.find_spec("torch"):
        import torch

        tensor = torch.from_numpy(array)

        def pin_memory() -> Undo:
            pinned = [tensor.pin_memory()]

            def release() -> None:
                pinned.clear()
                torch._C._host_emptyCache()  # or the next turn would reuse this memory

            return release

        if torch.cuda.is_available():
            found["tensor.pin_memory"] = pin_memory
    return found


def make_context() -> None:
    """Make a context current in this thread, as the bare driver call requires."""
    from cuda.bindings import driver

    _, context = driver.cuDevicePrimaryCtxRetain(0)
    driver.cuCtxSetCurrent(context)


def measure(kind: str, size: int, rounds: int) -> None:
    case = Case("buffers", kind, 1)

    def turn(name: str, do: Callable[[], Undo]) -> None:
        begin = time.perf_counter_ns()
        undo = do()
        between = time.perf_counter_ns()
        undo()
        end = time.perf_counter_ns()
        case.add("lock", "ms", name, (between - begin) / 1e6)
        case.add("unlock", "ms", name, (end - between) / 1e6)

    ways = contenders(numpy.ones(size, dtype=numpy.uint8))
    for do in ways.values():
        do()()  # makes the context, and loads what is loaded on first use
    take_turns(rounds, [partial(turn, *way) for way in ways.items()])
    case.print()


if __name__ == "__main__":
    rounds, most, _ = arguments()
    if not any(device.name.startswith("cuda:") for device in pinning.devices()):
        print("no CUDA GPU here", file=sys.stderr)
        sys.exit(77)
    make_context()
    for kind, size in SIZES.items():
        measure(kind, size, rounds)

# SPDX-License-Identifier: Apache-2.0
"""Allocating memory in a queue's order and freeing it again, over and over: ``pools.py ROUNDS MOST_REGIONS``.

On the first CUDA GPU, compared with the pools of the driver, CuPy and PyTorch; without one, on the host, with NumPy.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from functools import partial

import numpy
from rounds import Case, arguments, take_turns

import pinning

SIZES = {"1 KiB": 1 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}
REPEATS = 300  # pairs in one timing
DEPTH = 16  # allocations that exist at once in the second series

Alloc = Callable[[int], object]
Free = Callable[[object], object]


def contenders(queue: pinning.Queue, pool: pinning.Pool) -> dict[str, tuple[Alloc, Free]]:
    """By name, the functions that allocate and free."""
    found: dict[str, tuple[Alloc, Free]] = {"pinning": (lambda size: queue.alloc(size, pool=pool)[0], queue.free)}
    if queue.device.name.startswith("host"):
        found["numpy.empty"] = lambda size: numpy.empty(size, numpy.uint8), lambda array: None
        return found
    from cuda.bindings import driver

    stream = queue.handle
    _, primary = driver.cuDevicePrimaryCtxRetain(0)
    driver.cuCtxSetCurrent(primary)  # the bare driver calls need one

    def allocate(size: int) -> object:
        code, ptr = driver.cuMemAllocAsync(size, stream)
        if code:
            raise RuntimeError(f"the driver says {code}")
        return ptr

    _, handle = driver.cuDeviceGetDefaultMemPool(0)
    keep_all = driver.cuuint64_t(2**64 - 1)  # by default, it gives everything back when the stream is synchronized
    driver.cuMemPoolSetAttribute(handle, driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, keep_all)
    found["cuMemAllocAsync"] = allocate, lambda ptr: driver.cuMemFreeAsync(ptr, stream)
    if importlib.util.find_spec("cupy"):
        import cupy

        found["cupy.cuda.MemoryPool"] = cupy.cuda.MemoryPool().malloc, lambda memory: None  # the last reference frees
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            make, give = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
            found["torch.cuda.caching_allocator_alloc"] = make, give
    return found


def pairs(alloc: Alloc, free: Free, size: int) -> None:
    for _ in range(REPEATS):
        free(alloc(size))


def stacks(alloc: Alloc, free: Free, size: int) -> None:
    """Allocate and free several blocks, so that some are split and some merge."""
    for _ in range(REPEATS // DEPTH):
        held = [alloc(size // (each % 3 + 1)) for each in range(DEPTH)]
        while held:
            free(held.pop(len(held) // 2))


def measure(kind: str, size: int, ways: dict[str, tuple[Alloc, Free]], rounds: int) -> None:
    case = Case("pools", kind, 1)

    def turn(series: str, run: Callable[[Alloc, Free, int], None], name: str) -> None:
        alloc, free = ways[name]
        run(alloc, free, size)  # so that the pool has the memory
        begin = time.perf_counter_ns()
        run(alloc, free, size)
        count = REPEATS if run is pairs else REPEATS // DEPTH * DEPTH
        case.add(series, "us", name, (time.perf_counter_ns() - begin) / 1e3 / count)

    for series, run in (("alloc + free", pairs), (f"alloc + free, {DEPTH} at once", stacks)):
        take_turns(rounds, [partial(turn, series, run, name) for name in ways])
    case.print()


if __name__ == "__main__":
    rounds, _, _ = arguments()
    device = next((each for each in pinning.devices() if each.name == "cuda:0"), pinning.device("host"))
    with pinning.Queue(device) as queue, pinning.Context(device) as context, pinning.Pool(context) as pool:
        for kind, size in SIZES.items():
            measure(kind, size, contenders(queue, pool), rounds)

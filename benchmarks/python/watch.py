# SPDX-License-Identifier: Apache-2.0
"""The cost of watching locked memory: ``watch.py [DEVICE]``. Run it again with PINNING_WATCH=off.

In microseconds: a lock and its unlock, one more lock of locked memory, and munmap of memory that is locked, that was
locked, and that never was.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import pinning
from pinning.map.pinned_map import watch_problem

SIZE = 64 << 10
ROUNDS = 1000

libc = ctypes.CDLL(None)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mmap.restype = ctypes.c_void_p
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def pages() -> int:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    ptr: int = libc.mmap(None, SIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    ctypes.memset(ptr, 1, SIZE)
    return ptr


def microseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start) / 1e3


def munmap(before: Callable[[int], object]) -> float:
    took = []
    for _ in range(ROUNDS):
        ptr = pages()
        kept = before(ptr)
        took.append(microseconds(partial(libc.munmap, ptr, SIZE)))
        if isinstance(kept, pinning.Lock):
            kept.unlock()
    return median(took)


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else None
    device = pinning.default_device() if name is None else pinning.device(name)
    print(f"{device.name}; {watch_problem() or 'watched'}; microseconds, medians of {ROUNDS}")
    ptr = pages()

    def lock() -> None:
        pinning.lock((ptr, SIZE), device=device).unlock()

    print(f"lock and unlock           {median(microseconds(lock) for _ in range(ROUNDS)):8.2f}")
    with pinning.lock((ptr, SIZE), device=device):
        print(f"one more lock and unlock  {median(microseconds(lock) for _ in range(ROUNDS)):8.2f}")
    print(f"munmap, locked            {munmap(lambda ptr: pinning.lock((ptr, SIZE), device=device)):8.2f}")
    print(f"munmap, locked before     {munmap(lambda ptr: pinning.lock((ptr, SIZE), device=device).unlock()):8.2f}")
    print(f"munmap, never locked      {munmap(lambda ptr: None):8.2f}")


if __name__ == "__main__":
    main()

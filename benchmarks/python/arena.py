# SPDX-License-Identifier: Apache-2.0
"""Much locked memory on a CUDA GPU, in seconds and in memory used beyond the requested size: ``arena.py ROUNDS GIB``.

Each turn is a fresh process: it allocates untouched memory, waits until all of it is locked, and gives it back. `Arena`
is compared with what servers use: torch's allocator of pinned memory, a large array that is registered in one call, and
a loop of 64 MiB chunks that are allocated and registered one by one.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rounds import Case, arguments, take_turns

DEVICE = os.environ.get("ARENA_DEVICE", "cuda:0")
CHUNK = 64 << 20
GIB = 1 << 30

Done = Callable[[], object]


def arena(size: int, **options: object) -> tuple[float, Done]:
    import pinning

    made = pinning.Arena(size, DEVICE, **options)  # type: ignore[arg-type]
    made.wait(min(GIB, size))
    first = time.perf_counter()
    made.wait()
    return first, made.close


def torch_pinned(size: int) -> tuple[float, Done]:
    import torch

    tensor = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    first = time.perf_counter()

    def free() -> None:
        nonlocal tensor
        del tensor
        torch._C._host_emptyCache()

    return first, free


def registered(size: int, chunk: int) -> tuple[float, Done]:
    """Memory that is allocated, touched by its first writer and registered, `chunk` bytes at a time."""
    import pinning

    chunks: list[tuple[mmap.mmap, pinning.Lock]] = []
    first = 0.0
    for start in range(0, size, chunk):
        memory = mmap.mmap(-1, min(chunk, size - start), mmap.MAP_PRIVATE)
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(memory)), 1, len(memory))
        chunks.append((memory, pinning.lock(memory, device=DEVICE)))
        if not first and start + chunk >= min(GIB, size):
            first = time.perf_counter()

    def free() -> None:
        while chunks:
            memory, lock = chunks.pop()
            lock.unlock()
            del lock
            memory.close()

    return first, free


WAYS: dict[str, Callable[[int], tuple[float, Done]]] = {
    "Arena": arena,
    "Arena(unit=2 MiB)": partial(arena, unit=2 << 20),
    "Arena(huge_pages=False)": partial(arena, huge_pages=False),
    "torch.empty(pin_memory=True)": torch_pinned,
    "one array, registered": lambda size: registered(size, size),
    "64 MiB chunks, registered": lambda size: registered(size, CHUNK),
}


def prepare(name: str) -> None:
    """Pay the costs of the first use of a GPU."""
    if name.startswith("torch"):
        import torch

        torch.empty(1, pin_memory=True)
        torch.zeros(1, device="cuda")
    else:
        import pinning

        with pinning.Arena(1 << 20, DEVICE) as small:
            small.wait()


def memory(figure: str) -> int:
    """VmHWM (the peak) or VmRSS of this process, in bytes."""
    return int(Path("/proc/self/status").read_text().partition(f"{figure}:")[2].split()[0]) << 10


def turn(name: str, size: int) -> dict[str, float]:
    prepare(name)
    before = memory("VmRSS")
    begin = time.perf_counter()
    first, free = WAYS[name](size)
    ready = time.perf_counter()
    free()
    end = time.perf_counter()
    return {
        "first GiB": first - begin,
        "ready": ready - begin,
        "given back": end - ready,
        "peak over size": 100 * ((memory("VmHWM") - before) / size - 1),
    }


def main(rounds: int, gib: int) -> None:
    case = Case("arena", f"{gib} GiB", 1)

    def run(name: str) -> None:
        command = [sys.executable, __file__, "--turn", name, str(gib * GIB)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"{name}: {(done.stderr.splitlines() or ['it ended'])[-1]}", file=sys.stderr)
            return
        for series, value in json.loads(done.stdout).items():
            case.add(series, "%" if "peak" in series else "s", name, value)

    take_turns(rounds, [partial(run, name) for name in WAYS])
    case.print()


if __name__ == "__main__":
    if sys.argv[1] == "--turn":
        print(json.dumps(turn(sys.argv[2], int(sys.argv[3]))))
    else:
        main(*arguments()[:2])

# SPDX-License-Identifier: Apache-2.0
"""`pinning.lock` of memory already touched, beside the bare driver call and torch's `pin_memory`, in one run.

python benchmarks/registration.py [--json FILE]     needs a CUDA device, cuda-bindings and torch
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import pinning
import torch
from cuda.bindings import driver

GIB = 1 << 30
ROUNDS = 12


def checked(result: tuple[object, ...]) -> None:
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(result[0])


def milliseconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3


def bare(array: numpy.ndarray) -> tuple[float, float]:
    ptr = array.ctypes.data
    flags = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP
    taken = milliseconds(lambda: checked(driver.cuMemHostRegister(ptr, array.nbytes, flags)))
    return taken, milliseconds(lambda: checked(driver.cuMemHostUnregister(ptr)))


def ours(array: numpy.ndarray) -> tuple[float, float]:
    begin = time.perf_counter()
    lock = pinning.lock(array, device="cuda:0")
    taken = (time.perf_counter() - begin) * 1e3
    return taken, milliseconds(lock.unlock)


def pin_memory(array: numpy.ndarray) -> tuple[float, float]:
    tensor = torch.from_numpy(array)
    begin = time.perf_counter()
    pinned = tensor.pin_memory()
    taken = (time.perf_counter() - begin) * 1e3
    del pinned
    torch._C._host_emptyCache()  # so that the next round allocates again, as the first does
    return taken, 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    rows = []
    for size in (64 << 10, 1 << 20, 16 << 20, 256 << 20, GIB):
        array = numpy.ones(size, dtype=numpy.uint8)
        ways = {"cuMemHostRegister": bare, "pinning.lock": ours, "tensor.pin_memory": pin_memory}
        for way in ways.values():
            way(array)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(ROUNDS):
            order = list(ways)[turn % 3 :] + list(ways)[: turn % 3]  # nobody always comes after the same other one
            for name in order:
                times[name].append(ways[name](array))
        row: dict[str, object] = {"bytes": size}
        for name, pairs in times.items():
            locks = [pair[0] for pair in pairs]
            row[name] = {"ms": statistics.median(locks), "min": min(locks), "max": max(locks)}
            row[name + " undone"] = {"ms": statistics.median([pair[1] for pair in pairs])}
        per_round = lambda a, b: [x[0] / y[0] for x, y in zip(times[a], times[b], strict=True)]  # noqa: E731
        over_bare = per_round("pinning.lock", "cuMemHostRegister")
        under_torch = per_round("tensor.pin_memory", "pinning.lock")
        row["over bare"] = [statistics.median(over_bare), min(over_bare), max(over_bare)]
        row["faster than pin_memory"] = [statistics.median(under_torch), min(under_torch), max(under_torch)]
        rows.append(row)
        print(
            f"{size / 2**20:8.2f} MiB  "
            + "  ".join(f"{name} {row[name]['ms']:.3f} ms" for name in ways)  # type: ignore[index]
            + f"  ours/bare {statistics.median(over_bare):.3f} [{min(over_bare):.3f}..{max(over_bare):.3f}]"
            + f"  pin_memory/ours {statistics.median(under_torch):.1f}"
            + f" [{min(under_torch):.1f}..{max(under_torch):.1f}]"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()

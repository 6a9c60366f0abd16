# SPDX-License-Identifier: Apache-2.0
"""Copies as workers of a distributed engine make them: objects of a shared store, and received frames, to a GPU.

    python engines.py --device cuda:0 --mib 1024 --store-gib 32 --workers 8 --rounds 3

No engine is needed except Dask, for its own rows. A worker maps a file as Ray's object store is mapped and, in the way
"pinning.store", locks its objects as `pinning.ray` does. Each turn is a fresh process after a warm-up. Prints a JSON
line for each row, followed by a line with its target.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy

import pinning
from pinning.locking.store import ObjectLocks

MIB, GIB = 1 << 20, 1 << 30
Figures = dict[str, list[float]]


@contextmanager
def store(gib: int) -> Iterator[Path]:
    """A file like that of an object store: of its largest size, and empty."""
    path = Path("/dev/shm") / f"plasma-{os.getpid()}"
    try:
        with path.open("wb") as file:
            file.truncate(gib * GIB)
        yield path
    finally:
        path.unlink(missing_ok=True)


def mapped(path: Path) -> Any:
    with path.open("r+b") as file:
        return numpy.frombuffer(mmap.mmap(file.fileno(), 0), "u1")


def write(path: Path, starts: list[int], size: int) -> None:
    """Write objects, as another process would."""
    memory = mapped(path)
    for start in starts:
        memory[start : start + size] = 7


def rate(there: Any, array: Any) -> float:
    """GB/s of one copy, from the call to its end."""
    begin = time.perf_counter_ns()
    pinning.copy(there, array)
    return float(array.nbytes / (time.perf_counter_ns() - begin))


def warm_up(device: str, size: int) -> None:
    """Pay the costs of the first copies of a process, pageable and locked."""
    array = numpy.ones(min(size, 256 * MIB), "u1")
    with pinning.alloc(array.nbytes, device=device) as there:
        for _ in range(3):
            pinning.copy(there, array)
        with pinning.lock(array, device=device):
            pinning.copy(there, array)


def locked_rate(there: Any, size: int, device: str) -> float:
    with pinning.alloc(size, pinning.MemoryKind.HOST, device=device) as memory:
        array = numpy.asarray(memory)
        array[:] = 7
        found = median(rate(there, array) for _ in range(5))
        del array  # or the memory could not be freed
        return found


def wait_until_locked(array: Any, device: str) -> None:
    end = time.monotonic() + 120
    while not pinning.is_locked(array, device=device):
        assert time.monotonic() < end, "it does not get locked"
        time.sleep(0.0002)


def locks_for(device: str, **more: float) -> ObjectLocks:
    chosen = pinning.device(device)
    return ObjectLocks(lambda: chosen, MIB, "plasma", logging.getLogger("engines"), **more)


def object_turn(way: str, path: Path, size: int, device: str) -> dict[str, float]:
    """The first copies of an object; `way` is "pinning.store" or "as it is"."""
    warm_up(device, size)
    part = mapped(path)[64 : 64 + size]
    with pinning.alloc(size, device=device) as there:
        begin = time.perf_counter_ns()
        array = part
        if way == "pinning.store":
            (view,) = locks_for(device).use(part, [part])
            array = numpy.frombuffer(view, "u1")  # type: ignore[call-overload]
        pinning.copy(there, array)
        first = size / (time.perf_counter_ns() - begin)
        if way == "pinning.store":
            wait_until_locked(array, device)
        second = rate(there, array)
        return {"first": first, "second": second, "locked": locked_rate(there, size, device)}


def worker_turn(way: str, path: Path, size: int, device: str, start: int) -> dict[str, float]:
    """One of many workers that begin at once; `way` is "pinning.store" or "bare register"."""
    warm_up(device, size)
    part = mapped(path)[start : start + size]
    address = part.ctypes.data
    with pinning.alloc(size, device=device) as there:
        print("ready", flush=True)
        sys.stdin.readline()
        begin = time.perf_counter()
        if way == "pinning.store":
            (view,) = locks_for(device, pace=math.inf).use(part, [part])  # no copy comes first
            array = numpy.frombuffer(view, "u1")  # type: ignore[call-overload]
            wait_until_locked(array, device)
        else:
            pinning.device(device).data_lock(address, size, None)
        registered = time.perf_counter() - begin
        if way != "pinning.store":
            pinning.device(device).data_unlock(address)
            return {"register": registered}
        copied = rate(there, array)
        print("locked", flush=True)
        sys.stdin.readline()
        return {"register": registered, "GB/s": copied, "used": float(pinning.budget().used)}


def turn(*arguments: object) -> list[str]:
    return [sys.executable, __file__, "--turn", *map(str, arguments)]


def say(row: str, figures: object, text: str, met: bool) -> None:
    print(json.dumps({"row": row, "figures": figures}), flush=True)
    print(f"# {row}: {text}: {'met' if met else 'MISSED'}", flush=True)


def objects(device: str, size: int, gib: int, rounds: int) -> None:
    """An object of the store to the device, the first time and the second."""
    ways = "as it is", "pinning.store"
    found: dict[str, Figures] = {way: {"first": [], "second": [], "locked": []} for way in ways}
    with store(gib) as path:
        write(path, [64], size)
        for number in range(rounds):
            for way in ways[:: 1 if number % 2 else -1]:
                done = subprocess.run(turn("object", way, path, size, device), capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                for name, value in json.loads(done.stdout).items():
                    found[way][name].append(value)
    ours, theirs = ({name: median(values) for name, values in found[way].items()} for way in reversed(ways))
    say(
        "object, first use, GB/s",
        {way: found[way]["first"] for way in ways},
        f"{ours['first']:.1f} beside {theirs['first']:.1f} of the pageable copy, "
        f"{ours['first'] / theirs['first']:.2f} (1 asked)",
        ours["first"] >= theirs["first"],
    )
    say(
        "object, second use, GB/s",
        {**{way: found[way]["second"] for way in ways}, "locked": found["pinning.store"]["locked"]},
        f"{ours['second']:.1f}, {ours['second'] / ours['locked']:.2f} of locked (0.95 asked); "
        f"pageable {theirs['second']:.1f}",
        ours["second"] >= 0.95 * ours["locked"],
    )


def workers(device: str, size: int, gib: int, count: int, rounds: int) -> None:
    """Concurrent workers, each with its own object, and how much of the store is in memory then."""
    took: Figures = {"pinning.store": [], "bare register": []}
    rates: list[float] = []
    committed = 0
    starts = [64 + number * (gib * GIB // count) // 4096 * 4096 for number in range(count)]
    for number in range(rounds):
        for way in list(took)[:: 1 if number % 2 else -1]:
            with store(gib) as path:
                write(path, starts, size)
                commands = [turn("worker", way, path, size, device, start) for start in starts]
                begun = [subprocess.Popen(each, stdin=-1, stdout=-1, text=True, bufsize=1) for each in commands]
                heard = [read_line(each) for each in begun]
                assert heard == ["ready\n"] * count, heard
                go(begun)
                if way == "pinning.store":
                    heard = [read_line(each) for each in begun]
                    assert heard == ["locked\n"] * count, heard
                    committed = max(committed, path.stat().st_blocks * 512)
                    go(begun)
                said = [json.loads(each.communicate()[0]) for each in begun]
                took[way] += [each["register"] for each in said]
                rates += [each["GB/s"] for each in said if "GB/s" in each]
                assert all(each["used"] == size for each in said if "used" in each), "each counts its own"
    ours, bare = median(took["pinning.store"]), median(took["bare register"])
    say(
        f"{count} workers on one device, to the first locked copy, ms",
        {way: [round(1e3 * each, 2) for each in values] for way, values in took.items()},
        f"{1e3 * ours:.1f} beside {1e3 * bare:.1f} of the bare registers at once, {ours / bare:.2f} (1 asked, 1.1 is "
        f"taken for it); the slowest {1e3 * max(took['pinning.store']):.1f} beside "
        f"{1e3 * max(took['bare register']):.1f}; then {sum(rates) / rounds:.1f} GB/s in all",
        ours <= 1.1 * bare,
    )
    used = count * size
    say(
        f"in memory of a store of {gib} GiB of which {used / GIB:.3g} GiB are used, GiB",
        committed / GIB,
        f"{committed / used:.4f} of what is used (1.1 asked)",
        committed <= 1.1 * used,
    )


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def go(processes: list[subprocess.Popen[str]]) -> None:
    for each in processes:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()


def make_frame(size: int) -> Any:
    return numpy.full(size, 7, numpy.uint8)


def use_frame(array: Any, device: str, wait: bool) -> dict[str, float]:
    """The work of a task that receives an array from another worker."""
    warm_up(device, array.nbytes)
    if wait:
        wait_until_locked(array, device)
    with pinning.alloc(array.nbytes, device=device) as there:
        figures = {"received": rate(there, array), "again": rate(there, array)}
        return {**figures, "locked": locked_rate(there, array.nbytes, device)}


def frames(device: str, size: int, rounds: int) -> None:
    """Copies to the device of frames that a Dask worker has received from another."""
    import dask
    from distributed import Client, LocalCluster

    import pinning.dask

    dask.config.set({"distributed.comm.compression": None})
    cluster = LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0, silence_logs=50, host="127.0.0.1"
    )
    ways: dict[str, Figures] = {}
    with cluster, Client(cluster) as client:
        there, here = sorted(client.scheduler_info(n_workers=-1)["workers"])

        def measure(way: str, wait: bool) -> None:
            figures = ways.setdefault(way, {})
            for _ in range(rounds):
                array = client.submit(make_frame, size, workers=[there], pure=False)
                used = client.submit(use_frame, array, device, wait, workers=[here], pure=False).result(timeout=300)
                for name, value in used.items():
                    figures.setdefault(name, []).append(value)
                del array

        measure("as it is", False)
        client.register_plugin(pinning.dask.LockedFrames(4 * size, device))
        measure("LockedFrames", True)
    ours = {name: median(values) for name, values in ways["LockedFrames"].items()}
    say(
        "frames that a Dask worker has received, GB/s",
        ways,
        f"{ours['received']:.1f}, {ours['received'] / ours['locked']:.2f} of locked (0.9 asked); "
        f"without {median(ways['as it is']['received']):.1f}",
        ours["received"] >= 0.9 * ours["locked"],
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--mib", type=int, default=1024, help="of an object, and of all workers' objects together")
    parser.add_argument("--store-gib", type=int, default=32)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    size = given.mib * MIB
    objects(given.device, size, given.store_gib, given.rounds)
    workers(given.device, size // given.workers, given.store_gib, given.workers, given.rounds)
    if find_spec("distributed") is None:
        print("# no row of Dask: it is not installed")
    else:
        frames(given.device, size // 4, given.rounds)


TURNS: dict[str, Callable[..., dict[str, float]]] = {"object": object_turn, "worker": worker_turn}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--turn"]:
        kind, way, path, size, device, *start = sys.argv[2:]
        print(json.dumps(TURNS[kind](way, Path(path), int(size), device, *map(int, start))))
    else:
        main()

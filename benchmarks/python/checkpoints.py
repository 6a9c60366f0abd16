# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a CUDA GPU: ``checkpoints.py ROUNDS GIB [FOLDER]``, GB/s, each way in turn; in /dev/shm by default.

``free``: `save_file_async`, until the tensors may be written again; ``there``: until the file is complete. ``dd``: 16
processes at once that write one file or 16. Then loads: all of a file, and the half that tensor parallelism gives a
rank, cut in the first and in the second dimension; with several GPUs, all of it for two, in one call and one by one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

import pinning
from pinning.files import shard

GIB = 1 << 30
WRITERS = 16


def dd(path: Path, nbytes: int, one_file: bool) -> None:
    each = nbytes // WRITERS >> 20
    running = []
    for i in range(WRITERS):
        out = [f"of={path}", f"seek={i * each}", "conv=notrunc"] if one_file else [f"of={path}.{i}"]
        command = ["dd", "if=/dev/zero", "bs=1M", f"count={each}", *out]
        running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
    for process in running:
        process.wait()


def clear(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


def seconds(do: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    do()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def saves(path: Path, gib: int, rounds: int) -> dict[str, list[float]]:
    tensors = {f"{i}": torch.randint(0, 99, (GIB // 4,), dtype=torch.int32, device="cuda:0") for i in range(gib)}
    on_host = {name: tensor.cpu() for name, tensor in tensors.items()}
    nbytes = gib * GIB
    rates: dict[str, list[float]] = {}

    def turn(name: str, do: Callable[[], object]) -> None:
        clear(path)
        rates.setdefault(name, []).append(round(nbytes / seconds(do) / 1e9, 2))

    for _ in range(rounds):
        turn("pinning.save_file", lambda: pinning.save_file(tensors, path))
        turn("pinning.save_file of the host's", lambda: pinning.save_file(on_host, path))
        clear(path)
        begin = time.perf_counter()
        event = pinning.save_file_async(tensors, path)
        rates.setdefault("save_file_async, free", []).append(round(nbytes / (time.perf_counter() - begin) / 1e9, 2))
        event.wait()
        rates.setdefault("save_file_async, there", []).append(round(nbytes / (time.perf_counter() - begin) / 1e9, 2))
        assert all(torch.equal(each, tensors[name]) for name, each in pinning.load_file(path, "cuda:0").items())
        turn("dd, one file", partial(dd, path, nbytes, True))
        turn("dd, 16 files", partial(dd, path, nbytes, False))
        turn("torch.save", lambda: torch.save(tensors, path))
        with suppress(ImportError):
            from safetensors.torch import save_file

            turn("safetensors", lambda: save_file(tensors, path))
    clear(path)
    return rates


def loads(path: Path, gib: int, rounds: int) -> dict[str, list[float]]:
    pinning.save_file({f"{i}": torch.zeros(1 << 14, 1 << 14, dtype=torch.int32) for i in range(gib)}, path)
    rates: dict[str, list[float]] = {}

    def turn(name: str, nbytes: int, do: Callable[[], object]) -> None:
        torch.cuda.empty_cache()
        rates.setdefault(name, []).append(round(nbytes / seconds(do) / 1e9, 2))

    both = ["cuda:0", "cuda:1"] if torch.cuda.device_count() > 1 else []
    for _ in range(rounds):
        turn("all of it", gib * GIB, lambda: pinning.load_file(path, "cuda:0"))
        for dim in (0, 1):
            half = shard(dim, 1, 2)
            turn(f"half, dimension {dim}", gib * GIB // 2, partial(pinning.load_file, path, "cuda:0", slices=half))
        if both:
            turn("all for two", 2 * gib * GIB, lambda: pinning.load_file(path, dict.fromkeys(both)))
            turn("one by one", 2 * gib * GIB, lambda: [pinning.load_file(path, each) for each in both])
            plans = {each: shard(0, i, 2) for i, each in enumerate(both)}
            turn("halves for two", gib * GIB, partial(pinning.load_file, path, plans))
    clear(path)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", type=int)
    parser.add_argument("gib", type=int)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("/dev/shm"))
    given = parser.parse_args()
    path = given.folder / "checkpoint.safetensors"
    for measure in (saves, loads):
        for name, rates in measure(path, given.gib, given.rounds).items():
            row = {"row": "checkpoints", "kind": f"{measure.__name__}, {given.gib} GiB, {given.folder}", "unit": "GB/s"}
            print(json.dumps({**row, "contender": name, "rounds": rates}), flush=True)


if __name__ == "__main__":
    main()

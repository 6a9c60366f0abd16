# SPDX-License-Identifier: Apache-2.0
"""A safetensors file to a CUDA GPU, each way in a fresh process: ``files.py ROUNDS GIB [FOLDER] [--ways WAY ...]``.

Warm: the file is in /dev/shm, or in FOLDER's page cache if that has no room. The clock runs from the call to the last
byte on the GPU; imports and the GPU's context come before. Peak RSS is the largest increase during the calls.

Cold, with a FOLDER that is on a disk: a file of at most 4 GiB there, out of the page cache, beside ``dd iflag=direct``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MIB, GIB = 1 << 20, 1 << 30
BLOCK = 64 * MIB  # bytes of a large tensor; between two of them is one of 8 KiB, as in a transformer
SMALL = 8192
LONGEST = 60  # seconds of one process
Load = Callable[[str], dict[str, Any]]


# ---- the ways ----


def ours(path: str) -> dict[str, Any]:
    import pinning

    return pinning.load_file(path, "cuda:0", framework="torch")


def ours_without_torch(path: str) -> dict[str, Any]:
    import pinning

    return pinning.load_file(path, "cuda:0", framework="pinning")


def safetensors_cuda(path: str) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(path, device="cuda:0")


def safetensors_pin_to(path: str) -> dict[str, Any]:
    from safetensors.torch import load_file

    return pinned_to(load_file(path))


def mapped_to(path: str) -> dict[str, Any]:
    """What `safetensors` does, in case it is not installed."""
    return {name: tensor.to("cuda:0") for name, tensor in mapped(path).items()}


def mapped_pin_to(path: str) -> dict[str, Any]:
    return pinned_to(mapped(path))


def fastsafetensors(path: str) -> dict[str, Any]:
    from fastsafetensors import SafeTensorsFileLoader

    os.environ["FASTSAFETENSORS_ODIRECT"] = "0"  # the file is in the page cache
    loader = SafeTensorsFileLoader(None, "cuda:0", nogds=True)
    loader.add_filenames({0: [path]})
    files = loader.copy_files_to_device()
    return {name: files.get_tensor(name) for name in loader.get_keys()}


def runai(path: str) -> dict[str, Any]:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path, device="cuda:0")
        return dict(streamer.get_tensors())


def pinned_to(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.pin_memory().to("cuda:0", non_blocking=True) for name, tensor in tensors.items()}


def mapped(path: str) -> dict[str, Any]:
    import torch

    with Path(path).open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    length = int.from_bytes(whole[:8], "little")
    found = {}
    for name, said in json.loads(whole[8 : 8 + length]).items():
        begin, end = said["data_offsets"]
        found[name] = torch.frombuffer(whole, dtype=torch.uint8, count=end - begin, offset=8 + length + begin).view(
            torch.float16
        )
    return found


# Each with the modules that it needs.
WAYS: dict[str, tuple[Load, list[str]]] = {
    "ours": (ours, ["torch", "pinning"]),
    "ours, without torch": (ours_without_torch, ["pinning"]),
    "safetensors device='cuda'": (safetensors_cuda, ["torch", "safetensors.torch"]),
    "safetensors, pin_memory, to": (safetensors_pin_to, ["torch", "safetensors.torch"]),
    "mapped, to": (mapped_to, ["torch"]),
    "mapped, pin_memory, to": (mapped_pin_to, ["torch"]),
    "fastsafetensors": (fastsafetensors, ["torch", "fastsafetensors"]),
    "runai-model-streamer": (runai, ["torch", "runai_model_streamer"]),
}


# ---- one process ----


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def measure(way: str, path: str) -> dict[str, Any]:
    load, modules = WAYS[way]
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError as error:
        return {"missing": str(error)}
    import pinning

    device = pinning.device("cuda:0")
    synchronize: Callable[[], object] = device.synchronize  # type: ignore[attr-defined]
    if "torch" in modules:
        import torch

        torch.zeros(1, device="cuda:0")
        synchronize = torch.cuda.synchronize
    pinning.alloc(1, device=device).free()
    synchronize()
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    seconds = []
    tensors: dict[str, Any] = {}
    for _ in range(2):
        tensors.clear()
        begin = time.perf_counter()
        tensors = load(path)
        synchronize()
        seconds.append(time.perf_counter() - begin)
    peak = status("VmHWM") - before
    check(tensors, path)
    return {"seconds": seconds, "peak": peak}


def check(tensors: dict[str, Any], path: str) -> None:
    """Compare the first and the last bytes of some tensors."""
    with Path(path).open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        said = json.loads(file.read(length))
        assert said.keys() == tensors.keys()
        for name in list(said)[::37]:
            tensor = tensors[name].reshape(-1)
            begin, end = said[name]["data_offsets"]
            for part, at in ((tensor[:2048], begin), (tensor[-2048:], end - 4096)):
                there = part.view(dtype="uint8").copy_to_host() if hasattr(part, "copy_to_host") else bytes_of(part)
                file.seek(8 + length + at)
                assert bytes(there) == file.read(4096), f"wrong bytes in {name}"


def bytes_of(tensor: Any) -> Any:
    import torch

    return tensor.view(torch.uint8).cpu().numpy().tobytes()


def in_a_process(way: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", way, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return {"missing": f"was ended after {LONGEST} s"}
    if done.returncode:
        return {"missing": done.stderr.strip().splitlines()[-1:]}
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


# ---- all of them ----


THREADS = 8  # that write and read a file


def read(path: Path) -> int:
    """Read the file once, because the first read after a write takes twice as long; returns its size."""
    size = path.stat().st_size

    def part(start: int) -> None:
        buffer = bytearray(16 * MIB)
        with path.open("rb", buffering=0) as file:
            for at in range(start, size, THREADS * len(buffer)):
                file.seek(at)
                file.readinto(buffer)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(part, range(0, THREADS * 16 * MIB, 16 * MIB)))
    return size


def write(path: Path, size: int) -> None:
    """Write tensors of F16, a type that NumPy has too."""
    pairs = size // (BLOCK + SMALL)
    said, at = {}, 0
    for i in range(pairs):
        for name, nbytes in ((f"layers.{i}.weight", BLOCK), (f"layers.{i}.norm", SMALL)):
            said[name] = {"dtype": "F16", "shape": [nbytes // 2], "data_offsets": [at, at + nbytes]}
            at += nbytes
    header = json.dumps(said).encode()
    header += b" " * (-len(header) % 8)
    blocks = [os.urandom(BLOCK + SMALL) for _ in range(3)]
    with path.open("wb", buffering=0) as file, ThreadPoolExecutor(THREADS) as threads:
        file.write(len(header).to_bytes(8, "little") + header)

        def pair(i: int) -> None:
            assert os.pwrite(file.fileno(), blocks[i % 3], 8 + len(header) + i * len(blocks[0])) == len(blocks[0])

        list(threads.map(pair, range(pairs)))


def warm(folder: Path, gib: int, rounds: int, ways: list[str]) -> None:
    path = folder / "warm.safetensors"
    write(path, gib * GIB)
    moved = read(path)
    for way in ways:
        rates: list[list[float]] = []
        peaks = []
        for _ in range(rounds if way.startswith("ours") else 1):
            said = in_a_process(way, path)
            if "missing" in said:
                print(f"{way}: {said['missing']}", file=sys.stderr)
                break
            rates.append([moved / each / 1e9 for each in said["seconds"]])
            peaks.append(said["peak"] / MIB)
        if rates:
            row = {"row": "files", "kind": f"{gib} GiB, warm, {folder}", "unit": "GB/s", "contender": way}
            firsts, seconds = [each[0] for each in rates], [each[1] for each in rates]
            print(json.dumps({**row, "first": firsts, "second in the process": seconds, "peak MiB": peaks}), flush=True)
    path.unlink()


def cold(folder: Path, rounds: int) -> None:
    import pinning

    path = folder / "cold.safetensors"
    write(path, 4 * GIB)
    moved = path.stat().st_size
    rates: dict[str, list[float]] = {"ours": [], "dd, 1 MiB": [], "dd, 16 MiB": []}
    try:
        with pinning.Queue("cuda:0") as queue, pinning.alloc(moved, device="cuda:0") as there:
            for turn in range(rounds):
                for way, found in [*rates.items()][turn % 3 :] + [*rates.items()][: turn % 3]:
                    evict(path)
                    begin = time.perf_counter()
                    if way == "ours":
                        pinning.copy_file(there, path, queue=queue)
                    else:
                        size = f"{way.split()[1]}M"
                        command = ["dd", f"if={path}", "of=/dev/null", f"bs={size}", "iflag=direct"]
                        subprocess.run(command, check=True, capture_output=True)
                    found.append(moved / (time.perf_counter() - begin) / 1e9)
    finally:
        path.unlink()
    best = max(statistics.median(found) for way, found in rates.items() if way != "ours")
    ratio = statistics.median(rates["ours"]) / best
    row = {
        "row": "files",
        "kind": f"4 GiB, cold, {folder}",
        "unit": "GB/s",
        "rounds": rates,
        "ours / dd": round(ratio, 2),
    }
    print(json.dumps(row), flush=True)


def evict(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def roomy(gib: int, folder: Path | None) -> Path:
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > (gib + 1) * GIB:
        return memory
    return folder or Path(tempfile.gettempdir())


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(sys.argv[2], sys.argv[3])))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", type=int)
    parser.add_argument("gib", type=int)
    parser.add_argument("folder", type=Path, nargs="?", help="on a disk, for cold files")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=roomy(given.gib, given.folder)) as name:
        warm(Path(name), given.gib, given.rounds, given.ways)
    if given.folder is not None:
        with tempfile.TemporaryDirectory(dir=given.folder) as name:
            cold(Path(name), max(given.rounds, 3))


if __name__ == "__main__":
    main()

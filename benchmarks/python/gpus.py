# SPDX-License-Identifier: Apache-2.0
"""All CUDA GPUs of one host at once: what each more of them adds, and what they take from one another.

``gpus.py [SECTION ...] [--json FILE]``: figures are medians of the rounds; the JSON has all of them. ``by one`` is the
ratio to one GPU in the same round. CPU seconds are those of all threads. ``by peers`` is the share of the bytes that
went over peers' links. A section ends after ``--seconds``, and the rest of it is left out; one that fails prints its
error, and the next one begins. ``--ring 16`` measures smaller staging rings, of which more fit in the caches.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import multiprocessing
import os
import queue
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy
from rounds import take_turns

import pinning
from pinning.cli import doctor
from pinning.cli.status import NoStatusError, status_of
from pinning.copies import costs
from pinning.files import shard
from pinning.machine import numa
from pinning.queues.links import obstacle

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
OWN = 256 * MIB  # of a peer's own copies, and of the blocks for each GPU
BLOCK = 16 * KIB
TENSOR = (4096, 8192)  # of 16 bits: 64 MiB
LAYER = 8192  # a square of 16 bits: 128 MiB
KINDS, WAYS = ("locked", "pageable"), {"in": True, "out": False}

Row = dict[str, Any]  # a list is shown as its median
Section = Iterator[Row | str]  # rows of tables, and remarks


class Ends:
    """Memory of a GPU, memory of the host of that size, locked and pageable, and a queue for copies between them."""

    def __init__(self, stack: ExitStack, name: str, size: int, node: int | None = None) -> None:
        self.size = size
        self.queue = stack.enter_context(pinning.Queue(name, links="own"))
        self.there = stack.enter_context(pinning.alloc(size, device=name))
        locked = stack.enter_context(pinning.Arena(size, name, numa_node=node))
        locked.wait()
        self.host: dict[str, Any] = {"locked": locked}
        if node is None:
            self.host["pageable"] = numpy.full(size, 1, numpy.uint8)
        else:  # an arena of no device is not locked
            self.host["pageable"] = stack.enter_context(pinning.Arena(size, (), numa_node=node))
            self.host["pageable"].wait()

    def ends(self, kind: str, way: str) -> tuple[Any, Any]:
        return (self.there, self.host[kind]) if WAYS[way] else (self.host[kind], self.there)

    def submit(self, kind: str, way: str) -> pinning.Copy:
        return pinning.copy_async(*self.ends(kind, way), queue=self.queue)

    def move(self, kind: str, way: str) -> int:
        """Copy and wait; returns the number of bytes."""
        pinning.copy(*self.ends(kind, way), queue=self.queue)
        return self.size


def all_at_once(submits: list[Callable[[], pinning.Copy]], moved: int) -> int:
    for copy in [submit() for submit in submits]:
        copy.wait()
    return moved


def counts(most: int) -> list[int]:
    return sorted({1 << power for power in range(most.bit_length())} | {most})


def moved_by_peers() -> int:
    with suppress(NoStatusError):  # nothing was locked yet
        return status_of(os.getpid()).by_peers
    return 0


def carriers(names: list[str]) -> tuple[list[str], list[str]]:
    """The peers that can carry copies of the first GPU, and a remark for each of the others."""
    first, *others = [pinning.device(name) for name in names]
    why = {other.name: obstacle(first, other) for other in others}  # type: ignore[arg-type]
    return [name for name in why if not why[name]], [f"{name} is left out: {why[name]}" for name in why if why[name]]


def measure(options: argparse.Namespace, turns: Mapping[Any, Callable[[], int]]) -> dict[Any, Row]:
    """Figures of each turn, which returns the bytes that it has moved; once more before, which is not counted."""
    rates: dict[Any, list[float]] = {key: [] for key in turns}
    processors: dict[Any, list[float]] = {key: [] for key in turns}
    shares: dict[Any, list[float]] = {key: [] for key in turns}
    end = time.monotonic() + options.seconds / 4

    def turn(key: Any, do: Callable[[], int]) -> None:
        if rates[key] and time.monotonic() > end:
            return
        before, processor, begin = moved_by_peers(), time.process_time(), time.perf_counter()
        moved = do()
        rates[key].append(moved / (time.perf_counter() - begin) / 1e9)
        processors[key].append((time.process_time() - processor) / moved * GIB)
        shares[key].append((moved_by_peers() - before) / moved)

    for do in turns.values():
        do()
    take_turns(options.rounds, [partial(turn, *each) for each in turns.items()])
    return {key: {"GB/s": rates[key], "CPU s/GiB": processors[key], "by peers": shares[key]} for key in turns}


def by_count(head: Row, found: Mapping[int, Row]) -> Iterator[Row]:
    for count, row in found.items():
        ratios = [rate / one for rate, one in zip(row["GB/s"], found[1]["GB/s"], strict=False)]
        yield {"GPUs": count, **head, "GB/s": row["GB/s"], "by one": ratios, "CPU s/GiB": row["CPU s/GiB"]}


# ---- the sections ----


def topology(options: argparse.Namespace, names: list[str]) -> Section:
    report = doctor.run()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown processor")
    yield f"{model}: {os.cpu_count()} processors, {len(numa.usable_cpus(None))} of them usable; kernel {report.kernel}"
    yield f"NUMA: {', '.join(f'node {node}: {len(cpus)} processors' for node, cpus in numa.nodes().items())}"
    yield f"{report.memory.free / 1e9:.0f} GB of memory free; huge pages: {report.huge_pages}"
    of_each = f"to the device {costs.threads_to_device}, to the host {costs.threads_to_host}"
    yield f"staging: {costs.threads} threads ({of_each}), rings of {costs.ring_bytes // MIB} MiB"
    for device in report.devices:
        if device.name in names:
            link = device.link and f"PCIe {device.link.most_generation} x{device.link.lanes}"
            place = {"node": device.numa_node, "PCI address": device.pci_address, "bus": link}
            yield {"GPU": device.name, **place, "what": device.description}
    alike = defaultdict(list)
    for pair in report.pairs:
        alike[pair.link, pair.connection, pair.way].append(f"{pair.first}-{pair.second}")
    for (link, connection, way), pairs in alike.items():
        yield {"link": link, "connection": connection, "shared": way, "pairs": len(pairs), "first": pairs[0]}
    yield from (f"advice: {advice.why}" for advice in report.advice)


def host(options: argparse.Namespace, names: list[str]) -> Section:
    """Threads that copy between buffers of their own; each byte is read once and written once."""
    most = len(numa.usable_cpus(None))
    size = min(options.mib * MIB, max(32 * MIB, min(256 * MIB, 8 * GIB // most)))
    for count in counts(most):
        ready = threading.Barrier(count, timeout=options.seconds)

        def rate(ready: threading.Barrier = ready) -> float:
            source, to = numpy.full(size, 1, numpy.uint8), numpy.full(size, 2, numpy.uint8)
            moved = 0
            ready.wait()
            begin = time.perf_counter()
            while time.perf_counter() < begin + 0.5:
                numpy.copyto(to, source)
                moved += size
            return moved / (time.perf_counter() - begin) / 1e9

        with ThreadPoolExecutor(count) as threads:
            futures = [threads.submit(rate) for _ in range(count)]
            yield {"threads": count, "copied GB/s": sum(each.result() for each in futures)}


def process(options: argparse.Namespace, names: list[str]) -> Section:
    """Copies for 1, 2, 4, ... GPUs at once."""
    with ExitStack() as stack:
        gpus = [Ends(stack, name, options.mib * MIB) for name in names]
        for kind, way in product(KINDS, WAYS):
            turns = {
                count: partial(
                    all_at_once, [partial(gpu.submit, kind, way) for gpu in gpus[:count]], count * options.mib * MIB
                )
                for count in counts(len(gpus))
            }
            yield from by_count({"memory": kind, "way": way}, measure(options, turns))


def ranks(options: argparse.Namespace, names: list[str]) -> Section:
    """The same from a process for each GPU."""
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(len(names)), spawn.Queue()
    children = [
        spawn.Process(target=rank, args=(options, names, each, barrier, results), daemon=True)
        for each in range(len(names))
    ]
    said: list[Any] = []
    try:
        for child in children:
            child.start()
        while len(said) < len(children):
            try:
                said.append(results.get(timeout=1))
            except queue.Empty:
                if codes := [child.exitcode for child in children if child.exitcode]:
                    raise RuntimeError(f"ranks ended with exit status {codes}") from None
    finally:
        for child in [each for each in children if each.pid]:
            if len(said) < len(children):
                child.terminate()
            child.join()
    if errors := [each for each in said if isinstance(each, str)]:
        raise RuntimeError(min(errors, key=lambda each: "BrokenBarrierError" in each))
    for kind, way in product(KINDS, WAYS):
        found = {}
        for count in counts(len(names)):
            rounds = list(zip(*[each[kind, way, count] for each in said if (kind, way, count) in each], strict=True))
            moved = count * options.mib * MIB
            times = [max(end for _, end, _ in turn) - min(begin for begin, _, _ in turn) for turn in rounds[1:]]
            processors = [sum(processor for _, _, processor in turn) for turn in rounds[1:]]
            found[count] = {
                "GB/s": [moved / each / 1e9 for each in times],
                "CPU s/GiB": [each / moved * GIB for each in processors],
            }
        yield from by_count({"memory": kind, "way": way}, found)


def rank(options: argparse.Namespace, names: list[str], index: int, barrier: Any, results: Any) -> None:
    """Copy for one GPU, at the same time as other ranks; tell begin, end and processor time of each round."""
    found = defaultdict(list)
    try:
        costs.ring_bytes = options.ring * MIB
        with ExitStack() as stack:
            gpu = Ends(stack, names[index], options.mib * MIB)
            for kind, way, count in product(KINDS, WAYS, counts(len(names))):
                for _ in range(1 + options.rounds):
                    barrier.wait(options.seconds)
                    if index < count:
                        processor, begin = time.process_time(), time.perf_counter()
                        gpu.submit(kind, way).wait()
                        found[kind, way, count].append((begin, time.perf_counter(), time.process_time() - processor))
        results.put(dict(found))
    except BaseException:
        results.put(traceback.format_exc())
        barrier.abort()


def links(options: argparse.Namespace, names: list[str]) -> Section:
    """Copies of the first GPU over its own link and those of peers: submitted at once, and in rounds of `copy`."""
    able, remarks = carriers(names)
    yield from remarks
    with ExitStack() as stack:
        gpu = Ends(stack, names[0], options.mib * MIB)
        for kind, count in product(KINDS, counts(1 + len(able))):
            gpu.queue.links = able[: count - 1] or "own"
            turns: dict[Any, Callable[[], int]] = {}
            for way in WAYS:
                turns["at once", way] = partial(all_at_once, [partial(gpu.submit, kind, way)], gpu.size)
                turns["waited", way] = partial(gpu.move, kind, way)
            for (how, way), row in measure(options, turns).items():
                yield {"links": count, "memory": kind, "way": way, "copies": how, **row}


def peers(options: argparse.Namespace, names: list[str]) -> Section:
    """Locked copies of the peers alone, beside those of the first GPU over its own link, and over theirs as well."""
    able, remarks = carriers(names)
    yield from remarks
    if not able:
        yield f"left out: no GPU can carry copies of {names[0]}"
        return
    with ExitStack() as stack:
        first = Ends(stack, names[0], options.mib * MIB)
        others = [Ends(stack, name, min(OWN, options.mib * MIB)) for name in able]
        threads = stack.enter_context(ThreadPoolExecutor(len(others)))

        def rates(gpu: Ends, way: str, pause: float) -> list[float]:
            found = []
            gpu.move("locked", way)
            for _ in range(8 * options.rounds):
                time.sleep(pause)
                begin = time.perf_counter()
                gpu.move("locked", way)
                found.append(gpu.size / (time.perf_counter() - begin) / 1e9)
            return found

        for way, pause in product(WAYS, (0, 20)):
            alone = 0.0
            for doing in ("nothing", "own link", "all links"):
                first.queue.links = able if doing == "all links" else "own"
                futures = [threads.submit(rates, gpu, way, pause / 1e3) for gpu in others]
                before, begin, moved = moved_by_peers(), time.perf_counter(), 0
                while doing != "nothing" and not all(each.done() for each in futures):
                    moved += first.move("locked", way)
                wait(futures)
                rate = moved / (time.perf_counter() - begin) / 1e9
                found = sorted(rate for each in futures for rate in each.result())
                alone = alone or statistics.median(found)
                yield {
                    "way": way,
                    "pauses ms": pause,
                    f"{names[0]} uses": doing,
                    f"{names[0]} GB/s": rate,
                    "by peers": (moved_by_peers() - before) / (moved or 1),
                    "a peer GB/s": found,
                    "slowest tenth": found[len(found) // 10],
                    "by alone": [each / alone for each in found],
                }


def files(options: argparse.Namespace, names: list[str]) -> Section:
    """A file in the page cache: slices of it onto 1, 2, 4, ... GPUs, all of it onto each, and onto one over links."""
    memory = Path("/dev/shm")
    nbytes: int = max(options.file_mib // 64, 1) * 64 * MIB
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > nbytes + GIB
    data = numpy.random.default_rng(1).integers(0, 1 << 16, TENSOR, numpy.uint16)
    with tempfile.TemporaryDirectory(dir=options.folder or (memory if roomy else None)) as folder:
        path = Path(folder) / "model.safetensors"
        pinning.save_file({f"layers.{each}": data for each in range(nbytes // data.nbytes)}, path)
        yield f"{nbytes // MIB} MiB in {folder}"

        def load(count: int, dim: int | None, check: bool = False) -> int:
            plans = {name: None if dim is None else shard(dim, each, count) for each, name in enumerate(names[:count])}
            found = pinning.load_file(path, plans, framework="pinning")
            if check:
                for each, tensors in enumerate(found.values()):
                    right = data if dim is None else numpy.split(data, count, dim)[each]
                    assert (tensors["layers.0"].copy_to_host() == right).all(), "wrong bytes"
            return nbytes * (count if dim is None else 1)

        for dim in (0, 1, None):
            even = [count for count in counts(len(names)) if dim is None or TENSOR[dim] % count == 0]
            for count in even:
                load(count, dim, check=True)
            what = "all on each" if dim is None else f"slices of dim {dim}"
            found = measure(options, {count: partial(load, count, dim) for count in even})
            yield from by_count({"what": what}, found)
        able, remarks = carriers(names)
        yield from remarks

        def load_over(own_queue: pinning.Queue) -> int:
            pinning.load_file(path, queue=own_queue, framework="pinning")
            return nbytes

        for count in counts(1 + len(able)):
            with pinning.Queue(names[0], links=able[: count - 1] or "own") as own_queue:
                found = measure(options, {count: partial(load_over, own_queue)})
                yield {"links": count, "what": f"all on {names[0]}", **found[count]}


def parking(options: argparse.Namespace, names: list[str]) -> Section:
    """Modules of torch that leave all GPUs and come back: from a thread for each, and by one call."""
    if importlib.util.find_spec("torch") is None:
        yield "left out: torch is not installed"
        return
    import torch

    from pinning.torch import park, wake

    if not torch.cuda.is_available():
        yield "left out: torch has no CUDA GPU"
        return

    def model(name: str) -> torch.nn.Module:
        layer = partial(torch.nn.Linear, LAYER, LAYER, bias=False, device=name, dtype=torch.bfloat16)
        return torch.nn.Sequential(*[layer() for _ in range(max(options.park_mib // 128, 1))])

    def sums(modules: list[torch.nn.Module]) -> list[float]:
        return [each.float().sum().item() for module in modules for each in module.parameters()]

    def row(count: int, how: str, links: str) -> Row:
        modules = [model(name) for name in names[:count]]  # new ones: the first time locks memory of the host
        size = sum(each.nbytes for module in modules for each in module.parameters())
        before = sums(modules)
        rates: dict[Any, list[float]] = {park: [], wake: []}
        with ThreadPoolExecutor(count) as threads:
            for _ in range(1 + options.rounds):
                for do, found in rates.items():
                    begin = time.perf_counter()
                    if how == "one call":
                        do(*modules, links=links)
                    else:
                        list(threads.map(partial(do, links=links), modules))
                    found.append(size / (time.perf_counter() - begin) / 1e9)
        assert sums(modules) == before, "wrong bytes"
        firsts = {"first out": rates[park][0], "first in": rates[wake][0]}
        rest = {"out GB/s": rates[park][1:], "in GB/s": rates[wake][1:]}
        return {"GPUs": count, "how": how, "links": links, **firsts, **rest}

    most = len(names)
    cases = [(count, "a thread each", "own") for count in counts(most)]
    cases += [(1, "a thread each", "idle"), (most, "a thread each", "idle")]
    cases += [(most, "one call", "own"), (most, "one call", "idle")]
    for case in dict.fromkeys(cases):
        yield row(*case)
        gc.collect()
        torch.cuda.empty_cache()


def blocks(options: argparse.Namespace, names: list[str]) -> Section:
    """Blocks of 16 KiB at random places of the host's memory, for 1, 2, 4, ... GPUs at once."""
    size = options.mib * MIB
    count_each = min(OWN, size) // BLOCK
    order = numpy.arange(count_each)
    places = numpy.random.default_rng(1).permutation(size // BLOCK)[:count_each]
    with ExitStack() as stack:
        gpus = [Ends(stack, name, size) for name in names]

        def submit(gpu: Ends, kind: str, way: str) -> pinning.Copy:
            numbers = (order, places) if WAYS[way] else (places, order)
            to, source = gpu.ends(kind, way)
            return pinning.copy_blocks_async(to, numbers[0], source, numbers[1], BLOCK, queue=gpu.queue)

        for kind, way in product(KINDS, WAYS):
            turns = {
                count: partial(
                    all_at_once, [partial(submit, gpu, kind, way) for gpu in gpus[:count]], count * count_each * BLOCK
                )
                for count in counts(len(gpus))
            }
            yield from by_count({"memory": kind, "way": way}, measure(options, turns))


def nodes(options: argparse.Namespace, names: list[str]) -> Section:
    """Memory of each NUMA node, for the first GPU and the last."""
    present = list(numa.nodes())
    if len(present) < 2:
        yield "left out: the machine has one NUMA node, or does not report them"
        return
    for name, node in product(dict.fromkeys((names[0], names[-1])), present):
        if problem := numa.obstacle(node):
            yield f"node {node} is left out: {problem.why}"
            continue
        near = numa.node_of(pinning.device(name))
        distance = "unknown" if near is None else "near" if near == node else "far"
        with ExitStack() as stack:
            gpu = Ends(stack, name, options.mib * MIB, node)
            found = measure(options, {each: partial(gpu.move, *each) for each in product(KINDS, WAYS)})
            for kind in KINDS:
                pages = numa.placement(gpu.host[kind].ptr, gpu.size)
                there = f"{pages.get(node, 0) / gpu.size:.0%}" if pages else "unknown"
                place = {"GPU": name, "node": node, "distance": distance}
                rates = {f"{way} GB/s": found[kind, way]["GB/s"] for way in WAYS}
                processors = {f"{way} CPU s/GiB": found[kind, way]["CPU s/GiB"] for way in WAYS}
                yield {**place, "pages there": there, "memory": kind, **rates, **processors}


SECTIONS: dict[str, tuple[str, Callable[[argparse.Namespace, list[str]], Section]]] = {
    "topology": ("The machine", topology),
    "host": ("Threads that copy in the host's memory", host),
    "process": ("Copies for all GPUs at once, from one process", process),
    "ranks": ("Copies for all GPUs at once, from a process for each", ranks),
    "links": ("Copies of one GPU over several links", links),
    "peers": ("Copies of peers while one GPU uses their links", peers),
    "files": ("load_file", files),
    "parking": ("park and wake", parking),
    "blocks": ("copy_blocks, blocks of 16 KiB", blocks),
    "nodes": ("Memory of each NUMA node", nodes),
}


# ---- the program ----


def text(value: Any) -> str:
    if isinstance(value, list):
        value = statistics.median(value) if value else None
    if isinstance(value, float):
        return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}"
    return "-" if value is None else str(value)


def show(rows: Iterable[Row | str]) -> Iterator[Row | str]:
    """Print rows as they come, and pass them on."""
    head: list[str] = []
    widths: dict[str, int] = {}
    for row in rows:
        if isinstance(row, str):
            print(row, flush=True)
        else:
            if list(row) != head:
                head = list(row)
                widths = {name: max(len(name), len(text(value)) + 3, 7) for name, value in row.items()}
                print("  ".join(name.rjust(widths[name]) for name in head))
            print("  ".join(text(value).rjust(widths[name]) for name, value in row.items()), flush=True)
        yield row


def run(options: argparse.Namespace, name: str, gpus: list[str]) -> Row:
    """Run one section; returns its rows, its remarks, and its error if there was one."""
    title, section = SECTIONS[name]
    print(f"\n== {name}: {title}", flush=True)
    found: Row = {"section": name, "rows": [], "remarks": []}
    begin = time.monotonic()
    signal.alarm(2 * options.seconds)
    rows = section(options, gpus)
    try:
        for row in show(rows):
            found["remarks" if isinstance(row, str) else "rows"].append(row)
            if time.monotonic() > begin + options.seconds:
                found["remarks"].append(f"the rest is left out after {options.seconds} s")
                print(found["remarks"][-1], flush=True)
                break
        rows.close()  # type: ignore[attr-defined]
    except Exception:
        found["error"] = traceback.format_exc()
        print(f"FAILED\n{found['error']}", flush=True)
    signal.alarm(0)
    gc.collect()
    pinning.copies.trim_staging()
    found["seconds"] = time.monotonic() - begin
    print(f"({found['seconds']:.1f} s)", flush=True)
    return found


def give_up(number: int, frame: object) -> None:
    if number == signal.SIGTERM:
        sys.exit(1)  # removes the file
    raise TimeoutError("the section takes too long")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"by default all: {', '.join(SECTIONS)}")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--mib", type=int, default=1024, help="of copies for each GPU; 1024")
    parser.add_argument("--file-mib", type=int, default=4096, help="of the file; 4096")
    parser.add_argument("--park-mib", type=int, default=4096, help="of the module on each GPU; 4096")
    parser.add_argument("--ring", type=int, default=costs.ring_bytes // MIB, help="MiB of a staging ring")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=60, help="of a section, after which the rest is left out; 60")
    parser.add_argument("--folder", type=Path, help="for the file; by default /dev/shm, if it has room")
    options = parser.parse_args()
    for name in options.sections:
        if name not in SECTIONS:
            parser.error(f"there is no section {name!r}: {', '.join(SECTIONS)}")
    gpus = [device.name for device in pinning.devices() if device.name.startswith("cuda:")]
    if not gpus:
        print("no CUDA GPU here", file=sys.stderr)
        sys.exit(77)
    for number in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, give_up)
    costs.ring_bytes = options.ring * MIB
    found = []
    for name in options.sections or SECTIONS:
        found.append(run(options, name, gpus))
        if options.json:
            whole = {"arguments": vars(options), "GPUs": gpus, "sections": found}
            options.json.write_text(json.dumps(whole, indent=1, default=str))
    if failed := [each["section"] for each in found if "error" in each]:
        print(f"\nfailed: {', '.join(failed)}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()

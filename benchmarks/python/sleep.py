# SPDX-License-Identifier: Apache-2.0
"""Memory that sleeps and wakes at its addresses, with a captured graph, beside parked modules and torch_memory_saver.

``sleep.py [GIB]``: GB/s, and the GPU's memory that is left while all sleeps. Needs torch and a GPU; with two GPUs, both
links are used. torch_memory_saver takes part if it is installed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import pinning
from pinning.torch import park, sleep, sleep_async, sleepable, wake, wake_async

WIDTH = 8192


def model(gib: int) -> torch.nn.Module:
    layers = [torch.nn.Linear(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(8 * gib)]
    return torch.nn.Sequential(*layers).requires_grad_(False)


def timed(what: str, act: Callable[[], object], size: int) -> None:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    act()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    print(f"{what:34} {size / seconds / 1e9:7.1f} GB/s {seconds * 1e3:9.1f} ms", flush=True)


def free() -> int:
    return torch.cuda.mem_get_info()[0]  # type: ignore[no-any-return]


def ours(gib: int) -> None:
    data = torch.randn(16, WIDTH, device="cuda", dtype=torch.bfloat16)
    empty = free()
    with sleepable("weights", keep=False):
        net = model(gib)
    taken = empty - free()
    size = sum(each.nbytes for each in net.parameters())
    addresses = [each.data_ptr() for each in net.parameters()]
    print(f"{gib} GiB asked, {taken / (1 << 30):.2f} GiB taken")
    graph = torch.cuda.CUDAGraph()
    net(data)  # the libraries' own memory
    with torch.cuda.graph(graph):
        found = net(data)
    graph.replay()
    want = found.clone()
    before = free()
    timed("first sleep", lambda: sleep(keep=True), size)
    print(f"left on the GPU: {(before + taken - free()) / (1 << 20):.1f} MiB")
    timed("first wake", wake, size)
    for links in ("own", "idle"):
        for _ in range(3):
            timed(f"sleep, links {links}", lambda: sleep(keep=True, links=links), size)  # noqa: B023
            timed(f"wake, links {links}", lambda: wake(links=links), size)  # noqa: B023
    before = free()
    sleep_async("weights", keep=True).wait()
    print(f"left on the GPU later: {(before + taken - free()) / (1 << 20):.1f} MiB")
    begin = time.perf_counter()
    first = wake_async("weights", list(net))
    first[0].wait()
    print(f"the first layer is awake after {(time.perf_counter() - begin) * 1e3:.1f} ms", end=", ")
    first[-1].wait()
    print(f"all after {(time.perf_counter() - begin) * 1e3:.1f} ms")
    graph.replay()
    assert torch.equal(found, want) and [each.data_ptr() for each in net.parameters()] == addresses
    if gib <= 16:
        reloaded(net, size)
    graph.replay()
    assert torch.equal(found, want)
    print("graph: equal bytes")
    net.to("meta")
    sleep("weights")


def reloaded(net: torch.nn.Module, size: int) -> None:
    def reload() -> None:
        wake()
        for name, each in pinning.load_file(path, device="cuda:0").items():
            net.get_parameter(name).copy_(each)

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "weights.safetensors"
        pinning.save_file(dict(net.state_dict()), path)
        timed("drop", lambda: sleep(keep=False), size)
        timed("wake of what was dropped", wake, size)
        for _ in range(2):
            timed("load_file alone", lambda: pinning.load_file(path, device="cuda:0"), size)
        torch.cuda.empty_cache()
        sleep(keep=False)
        timed("wake, load_file and copy", reload, size)


def prepared(gib: int) -> None:
    with sleepable("prepared"):
        net = model(gib)
    size = sum(each.nbytes for each in net.parameters())
    time.sleep(gib / 8)  # a first epoch
    timed("first sleep, prepared meanwhile", lambda: sleep("prepared"), size)
    timed("first wake", lambda: wake("prepared"), size)
    begin = time.perf_counter()
    for _ in range(20):
        sleep("prepared", keep=False)
        wake("prepared")
    print(f"dropped and awake again: {(time.perf_counter() - begin) / 20 * 1e3:.1f} ms, {len(list(net))} layers")
    del net
    sleep("prepared")


def parked(gib: int) -> None:
    net = model(gib)
    size = sum(each.nbytes for each in net.parameters())
    for which in ("first", "second", "third"):
        timed(f"{which} park", lambda: park(net), size)
        timed(f"{which} wake", lambda: wake(net), size)


def theirs(gib: int) -> None:
    import torch_memory_saver as theirs

    saver = theirs.torch_memory_saver
    saver.hook_mode = "torch"
    with saver.region("weights", enable_cpu_backup=True):
        net = model(gib)
    size = sum(each.nbytes for each in net.parameters())
    for which in ("first", "second", "third"):
        timed(f"torch_memory_saver, {which} pause", saver.pause, size)
        timed(f"torch_memory_saver, {which} resume", saver.resume, size)


def main() -> None:
    gib = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    print(torch.cuda.get_device_name(), torch.__version__)
    for contender in (ours, prepared, parked, theirs):
        try:
            contender(gib)
        except ImportError as error:
            print(error)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

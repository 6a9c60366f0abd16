# SPDX-License-Identifier: Apache-2.0
"""A PyTorch program of two ranks whose memory sleeps at the same time; on two GPUs with NCCL, and its graphs."""

from __future__ import annotations

import copy
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing

from pinning.torch import sleep, sleepable, wake

MIB = 1 << 20
RANKS = 2


def rank_of(rank: int, rendezvous: str, cycles: int, bulk: int) -> None:
    several = torch.cuda.device_count() >= RANKS
    torch.cuda.set_device(rank if several else 0)
    dist.init_process_group("nccl" if several else "gloo", f"file://{rendezvous}", rank=rank, world_size=RANKS)
    torch.manual_seed(5)
    with sleepable("weights"):
        model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 16)).cuda()
        reduced = torch.zeros(64, 16, device="cuda")
        large = torch.full((bulk,), rank + 1, dtype=torch.uint8, device="cuda")
    awake = copy.deepcopy(model)  # outside: it never sleeps
    with sleepable("optimizer"):
        adam = torch.optim.Adam(model.parameters(), foreach=False)
    other = torch.optim.Adam(awake.parameters(), foreach=False)
    data = torch.randn(64, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(rank))

    def step(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad(set_to_none=False)
        net(data).square().mean().backward()
        for each in net.parameters():
            dist.all_reduce(each.grad)
        optimizer.step()

    with sleepable("optimizer"):  # its state and the gradients
        step(model, adam)
    step(awake, other)
    graph = None
    if several:  # what is captured sums what sleeps in place, over all ranks
        side = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(side):
            reduced.copy_(model(data))
            dist.all_reduce(reduced)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            reduced.copy_(model(data))
            dist.all_reduce(reduced)
    took = [0.0, 0.0]
    for cycle in range(cycles):
        dist.barrier()
        start = time.perf_counter()
        sleep()
        asleep = time.perf_counter()
        dist.barrier()
        if cycle % 10 == 0:
            torch.full((bulk // 2,), 255, dtype=torch.uint8, device="cuda")  # others use the memory
            torch.cuda.empty_cache()
        dist.barrier()
        again = time.perf_counter()
        wake()
        if cycle >= cycles // 2:
            took[0] += asleep - start
            took[1] += time.perf_counter() - again
        if graph is not None:
            graph.replay()
            with torch.no_grad():
                want = awake(data)
            dist.all_reduce(want)
            assert torch.allclose(reduced, want, atol=1e-4), cycle
        if cycle % 10 == 0:
            assert large.eq(rank + 1).all(), cycle
            step(model, adam)
            step(awake, other)
            pairs = zip(model.parameters(), awake.parameters(), strict=True)
            assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs), cycle
    rates = [bulk * (cycles - cycles // 2) / each / 1e9 for each in took]
    print(f"rank {rank}: sleep {rates[0]:.1f} GB/s, wake {rates[1]:.1f} GB/s", flush=True)
    del graph  # NCCL waits for graphs that have its work before it closes a group
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    cycles, bulk = (int(each) for each in (sys.argv[1:] or ("40", str(256 * MIB))))
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_of, (f"{folder}/ranks", cycles, bulk), nprocs=RANKS)
    print("ranks: all right")

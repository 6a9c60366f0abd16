# SPDX-License-Identifier: Apache-2.0
"""Typical work of torch programs, in one that knows nothing of pinning: "name GB/s" lines.

python programs.py loader | model | checkpoint | shards
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import torch


def gigabytes_per_second(size: int, work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return size / (time.perf_counter() - began) / 1e9


def loader() -> Iterator[tuple[str, float]]:
    """A DataLoader without `pin_memory`; each batch goes to the device and is added up."""
    items = torch.utils.data.TensorDataset(torch.rand(128, 3, 1024, 1024))  # of 12 MiB each
    sums = [torch.zeros(3, device="cuda")]

    def epoch(batch: int) -> None:
        for (images,) in torch.utils.data.DataLoader(items, batch_size=batch):
            sums.append(images.to("cuda").sum(dim=(0, 2, 3)))

    def copies() -> None:  # the copies of an epoch
        for first in range(0, 128, 8):
            items.tensors[0][first : first + 8].to("cuda")

    size = items.tensors[0].nbytes
    epoch(8)
    yield "loader, batches of 96 MiB", max(gigabytes_per_second(size, lambda: epoch(8)) for _ in range(3))
    yield "its copies alone", max(gigabytes_per_second(size, copies) for _ in range(3))


def transformer_of(device: str) -> tuple[torch.nn.Module, int]:
    """A transformer of 3.2 GB, and its size in bytes."""
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(2048, 16, 8192, dropout=0, batch_first=True, device=device)
    transformer = torch.nn.TransformerEncoder(layer, 16)
    return transformer, sum(each.nbytes for each in transformer.parameters())


def model() -> Iterator[tuple[str, float]]:
    """The transformer, to the device and back."""
    transformer, size = transformer_of("cpu")
    for _ in range(3):
        yield "model to the device", gigabytes_per_second(size, lambda: transformer.to("cuda"))
        yield "model to the host", gigabytes_per_second(size, lambda: transformer.to("cpu"))


def in_a_group() -> None:
    """One process is a group of torch.distributed by itself."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl")


def checkpoint() -> Iterator[tuple[str, float]]:
    """torch.distributed.checkpoint: `async_save` to /dev/shm by each kind of staging; what is loaded must be equal."""
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.staging import BlockingAsyncStager

    in_a_group()
    transformer, size = transformer_of("cuda")
    folder = tempfile.mkdtemp(dir="/dev/shm")
    for pinned in (True, False):
        kind = "pinned" if pinned else "pageable"
        stager = BlockingAsyncStager(cache_staged_state_dict=pinned)
        for _ in range(3):
            began = time.perf_counter()
            saving = dcp.async_save(transformer.state_dict(), checkpoint_id=folder, async_stager=stager)
            yield f"staged, {kind}", size / (time.perf_counter() - began) / 1e9
            saving.result()
            yield f"saved, {kind}", size / (time.perf_counter() - began) / 1e9
        loaded = {name: torch.empty_like(each) for name, each in transformer.state_dict().items()}
        yield f"loaded, {kind}", gigabytes_per_second(size, lambda: dcp.load(loaded, checkpoint_id=folder))  # noqa: B023
        assert all(torch.equal(loaded[name], each) for name, each in transformer.state_dict().items())
    shutil.rmtree(folder)
    torch.distributed.destroy_process_group()


def shards() -> Iterator[tuple[str, float]]:
    """FSDP2 with parameters, gradients and optimizer in the host: steps a second, and the loss after ten."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    in_a_group()
    for pinned in (True, False):
        transformer, _ = transformer_of("cpu")
        policy = CPUOffloadPolicy(pin_memory=pinned)
        for layer in transformer.layers:
            fully_shard(layer, offload_policy=policy)
        fully_shard(transformer, offload_policy=policy)
        optimizer = torch.optim.SGD(transformer.parameters(), lr=1e-3)
        batch = torch.linspace(-1, 1, 4 * 128 * 2048, device="cuda").view(4, 128, 2048)

        def step() -> float:
            loss = transformer(batch).square().mean()  # noqa: B023
            loss.backward()
            optimizer.step()  # noqa: B023
            optimizer.zero_grad()  # noqa: B023
            return float(loss)

        step()
        began = time.perf_counter()
        losses = [step() for _ in range(10)]
        kind = "pinned" if pinned else "pageable"
        yield f"steps a second, {kind}", 10 / (time.perf_counter() - began)
        yield f"loss x 1000, {kind}", losses[-1] * 1000
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    best: dict[str, float] = {}
    programs = {each.__name__: each for each in (loader, model, checkpoint, shards)}
    for what, figure in programs[sys.argv[1]]():
        best[what] = max(figure, best.get(what, 0))
    for what, figure in best.items():
        print(f"{what} {figure:.1f}")

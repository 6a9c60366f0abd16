# SPDX-License-Identifier: Apache-2.0
"""Batches of a DataLoader to the GPU: torch's ``pin_memory=True``, and workers that write to locked memory.

    python benchmarks/python/dataloader.py

Needs torch and an NVIDIA GPU. The contenders take turns; a row has GB/s of whole epochs, and of a copy alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import pinning.torch

BATCH, COUNT, WORKERS, ROUNDS = 32, 96, 8, 3
SAMPLE = 1 << 18  # numbers, 1 MiB


class Samples(Dataset):  # type: ignore[misc]
    """Samples that cost nothing to make."""

    def __init__(self) -> None:
        self._sample = torch.arange(SAMPLE, dtype=torch.float32)

    def __len__(self) -> int:
        return BATCH * COUNT

    def __getitem__(self, at: int) -> tuple[Any, int]:
        return self._sample, at


def epoch(loader: Any) -> tuple[float, float, int]:
    """GB/s from the first batch on, and of the copies alone; how many batches were pinned."""
    copying, moved, pinned, total = [], 0, 0, torch.zeros((), dtype=torch.int64, device="cuda")
    start = time.perf_counter()
    for numbers, labels in loader:
        pinned += numbers.is_pinned() and labels.is_pinned()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        there = numbers.to("cuda", non_blocking=True)
        events[1].record()
        total += labels.to("cuda", non_blocking=True).sum() + (there[:, -1] != SAMPLE - 1).sum() * (1 << 40)
        copying.append(events)
        moved += numbers.nbytes
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    assert total.item() == sum(range(BATCH * COUNT)), "a batch has changed while it was copied"
    rate = median(BATCH * SAMPLE * 4 / (first.elapsed_time(last) / 1e3) for first, last in copying)
    return moved / seconds / 1e9, rate / 1e9, pinned


def main() -> None:
    torch.cuda.init()
    collate = pinning.torch.Collate(BATCH * SAMPLE * 4 + 4096, 2 * WORKERS + 8)
    common: dict[str, Any] = {"batch_size": BATCH, "num_workers": WORKERS, "persistent_workers": True, "timeout": 60}
    contenders: dict[str, Callable[[], tuple[float, float, int]]] = {}
    for name, more in (
        ("torch, pageable", {}),
        ("torch, pin_memory=True", {"pin_memory": True}),
        ("pinning.torch.Collate", {"collate_fn": collate}),
        ("pinning.torch.Collate, pin_memory=True", {"collate_fn": collate, "pin_memory": True}),
    ):
        loader = DataLoader(Samples(), **common, **more)
        contenders[name] = partial(epoch, loader)
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            found[name].append(run())
    print(
        f"{COUNT} batches of {BATCH} MiB, {WORKERS} workers; {torch.cuda.get_device_name()}, torch {torch.__version__}"
    )
    for name, rows in found.items():
        epochs, copies, pinned = zip(*rows, strict=True)
        print(f"{name:40} epoch {median(epochs):6.2f} GB/s ({min(epochs):.2f}-{max(epochs):.2f})", end="")
        print(f"   copy of a batch {median(copies):6.2f} GB/s   pinned {min(pinned)} to {max(pinned)} of {COUNT}")
    print(f"batches that found no room: {collate.missed}")


if __name__ == "__main__":
    main()

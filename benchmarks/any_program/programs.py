# SPDX-License-Identifier: Apache-2.0
"""Typical work of torch programs, in one that knows nothing of pinning: "name GB/s" lines.

python programs.py loader | model
"""

from __future__ import annotations

import sys
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


def model() -> Iterator[tuple[str, float]]:
    """A transformer of 3.2 GB, to the device and back."""
    layer = torch.nn.TransformerEncoderLayer(2048, 16, 8192, device="cpu")
    transformer = torch.nn.TransformerEncoder(layer, 16)
    size = sum(each.nbytes for each in transformer.parameters())
    for _ in range(3):
        yield "model to the device", gigabytes_per_second(size, lambda: transformer.to("cuda"))
        yield "model to the host", gigabytes_per_second(size, lambda: transformer.to("cpu"))


if __name__ == "__main__":
    best: dict[str, float] = {}
    for what, figure in {"loader": loader, "model": model}[sys.argv[1]]():
        best[what] = max(figure, best.get(what, 0))
    for what, figure in best.items():
        print(f"{what} {figure:.1f}")

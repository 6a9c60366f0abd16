# SPDX-License-Identifier: Apache-2.0
"""Datasets for test_collate.py, in a module that workers can import however they are started."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset


class Numbers(Dataset):  # type: ignore[misc]
    """Samples of a tensor, an array, a number and a text."""

    def __init__(self, count: int = 40, size: int = 100) -> None:
        self._count, self._size = count, size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> Any:
        return {
            "tensor": torch.full((self._size,), float(at)),
            "pair": (numpy.full((2, 3), at), at),
            "text": str(at),
        }


class Killed(Numbers):
    """Its worker is killed by a signal at a sample."""

    def __getitem__(self, at: int) -> Any:
        if at == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(at)


class Stream(IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Iterator[Any]:
        return iter(torch.full((10,), float(at)) for at in range(40))

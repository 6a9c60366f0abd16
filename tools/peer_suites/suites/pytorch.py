# SPDX-License-Identifier: Apache-2.0
"""PyTorch: its tests of pinned memory, copies, streams and graphs. PATH is a source of about the installed release."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from commands import STAGED, pytest
from results import Result

FILES = ["test"]
WAYS = [STAGED]
EXPLAINED: dict[str, str] = {}
# Left out are tests that fill the GPU, start compilers or measure memory for minutes.
TESTS = (
    "(test_dataloader and pin) or (test_torch and pin_memory) or (test_cuda and (pin or register or non_blocking "
    "or blocking or serialization or type_conver or numpy or stream or event or record or callback or graph or mempool "
    "or threads or manual_seed or memory_allocation) and not (oom or expandable or snapshot or plots or optim))"
)


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    files = [f"test_{name}.py" for name in ("cuda", "dataloader", "torch")]
    chosen = [] if only else ["-k", TESTS]
    return pytest(checkout / "test", work, way, only, *files, *chosen, plugin="pytorch_in_place")

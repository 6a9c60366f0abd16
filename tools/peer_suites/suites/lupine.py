# SPDX-License-Identifier: Apache-2.0
"""lupine, another library in place of CUDA's driver: the programs with which it tests itself, over the real driver."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from commands import STAGED
from cuda_programs import compiled, run_programs
from results import Result

FILES = ["test"]
WAYS = ["pinning run", STAGED]
EXPLAINED: dict[str, str] = {}


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    sources = {each.stem: [each] for each in sorted((checkout / "test").glob("*.cu")) if not each.stem.startswith("cu")}
    return run_programs(compiled(sources, work / "programs"), way, only)

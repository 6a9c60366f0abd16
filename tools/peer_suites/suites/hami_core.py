# SPDX-License-Identifier: Apache-2.0
"""HAMi-core, another preloaded library: the programs that test its hooks of allocations and registrations."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from commands import STAGED
from cuda_programs import compiled, run_programs
from results import Result

FILES = ["src/include", "test"]
WAYS = ["pinning run", STAGED]
EXPLAINED: dict[str, str] = {}


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    sources = {each.stem: [each] for each in sorted((checkout / "test").glob("*.c*")) if each.suffix in (".c", ".cu")}
    flags = [f"-I{checkout / 'src'}", "-DTEST_DEVICE_ID=0", "-lnvidia-ml"]
    return run_programs(compiled(sources, work / "programs", *flags), way, only)

# SPDX-License-Identifier: Apache-2.0
"""LLVM's programs for mapping, offloading and libomptarget's functions that run on the CPU: all must be as bare."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from results import Result

from suites.openmp_vv import EARLY, EXPLAINED, WAYS, run_programs

__all__ = ["EARLY", "EXPLAINED", "WAYS"]
FILES = ["offload/test/mapping", "offload/test/offloading", "offload/test/api"]
RUNS = re.compile(r"^// RUN: .*%libomptarget-\S*run\S*-generic", re.MULTILINE)  # for any device


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    return run_programs(checkout / "offload" / "test", RUNS, [], work, way, only)

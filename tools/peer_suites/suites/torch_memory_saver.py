# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver: the tests of its examples, under `pinning run`, or with its names for our memory that sleeps."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from commands import IN_PLACE, STAGED, pytest
from results import Result

FILES = ["test"]  # not the package, which would be imported instead of the installed one
OURS = "pinning.torch.sleepable"
WAYS = [OURS, STAGED]
_ALL = "asks that all memory of the process sleeps, by TMS_INIT_ENABLE: ours is what a context allocates"
_KINDS = "asks for a kind of host memory; ours is locked, and kept for the next time"
EXPLAINED = {
    "training_engine|cuda_vmm_granularity|nested_region|preload_backend_from_env": _ALL,
    "test_disk_backup": "contents are kept in memory, not in files",
    r"test_cpu_backup\[": "asks that the bytes in the host can be kept after a wake",
    "cpu_backup_rss|backend_from_env|retain_from_env|mmap_restore": _KINDS,
}


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    ours = [str(IN_PLACE / "memory_saver")] if way == OURS else []
    path = os.pathsep.join([*ours, str(IN_PLACE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return pytest(checkout / "test", work, way, only, "test_examples.py", PYTHONPATH=path)

# SPDX-License-Identifier: Apache-2.0
"""One process in which torch, CuPy and the driver pin memory at random. PATH is an environment that has them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from pathlib import Path

from commands import IN_PLACE
from results import FAILED, PASSED, SKIPPED, Result

WAYS = ["pinning in the process"]
EXPLAINED: dict[str, str] = {}
OURS = ["lock", "lock of arrays", "what is found"]  # threads that do not run bare; they count as passed there
ALLOCATOR = "pinned_use_cuda_host_register:True,pinned_num_register_threads:4"


def version(path: Path) -> str:
    program = "import torch; print('torch', torch.__version__)"
    return subprocess.run([path / "bin" / "python", "-c", program], capture_output=True, text=True).stdout.strip()


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    with_ours = [] if way == "bare" else ["ours"]
    # Both names of the variable: the newer replaces the older.
    variables = {"PYTORCH_ALLOC_CONF": ALLOCATOR, "PYTORCH_CUDA_ALLOC_CONF": ALLOCATOR}
    command = [
        checkout / "bin" / "python",
        IN_PLACE / "beside.py",
        os.environ.get("PEER_SUITES_SECONDS", "30"),
        *with_ours,
    ]
    said = subprocess.run(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True).stdout
    results = {} if with_ours else dict.fromkeys(OURS, Result(PASSED))
    for line in said.splitlines():
        case, _, reason = line.partition(": ")
        state = PASSED if reason.startswith("passed") else SKIPPED if reason.startswith("skipped") else FAILED
        results[case] = Result(state, reason=reason)
    return results

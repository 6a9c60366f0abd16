# SPDX-License-Identifier: Apache-2.0
"""PyTorch: its tests of checkpoints and sharded modules over several GPUs, as in the suite `pytorch`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from commands import STAGED, pytest
from results import Result

FILES = ["test"]
WAYS = [STAGED]
EXPLAINED: dict[str, str] = {}
FOLDERS = ("checkpoint", "checkpoint/fsdp", "_composable/fsdp")
NAMES = (
    "test_state_dict_utils",
    "test_file_system_checkpoint",
    "test_fsspec",
    "test_fsdp_model_state",
    "test_fsdp_dsd",
    "test_fully_shard_state_dict",
    "test_fully_shard_training",
)
# Each case starts a process for each GPU, so several run at once. Those left out compile their models, or need more
# than two GPUs.
TESTS = "not compile and not hsdp and not 2d and not 3d and not (training and not offload)"


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    paths = [f"distributed/{folder}/{name}.py" for folder in FOLDERS for name in NAMES]
    files = [path for path in paths if (checkout / "test" / path).exists()]
    chosen = [] if only else ["-k", TESTS]
    return pytest(checkout / "test", work, way, only, *files, *chosen, "-n", "12", plugin="pytorch_in_place")

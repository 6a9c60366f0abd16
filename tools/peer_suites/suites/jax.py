# SPDX-License-Identifier: Apache-2.0
"""JAX: its tests of memory kinds, of copies between devices and of asynchronous values."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from commands import STAGED, pytest
from results import Result

FILES = ["tests"]
WAYS = [STAGED]
EXPLAINED: dict[str, str] = {}
TESTS = ["memories_test.py", "multi_device_test.py", "buffer_callback_test.py", "array_interoperability_test.py"]


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    folder = checkout / "tests"
    files = [each for each in TESTS if (folder / each).exists()]
    return pytest(folder, work, way, only, *files, XLA_PYTHON_CLIENT_PREALLOCATE="false")

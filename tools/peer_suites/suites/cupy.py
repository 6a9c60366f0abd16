# SPDX-License-Identifier: Apache-2.0
"""CuPy: its tests of memory, streams, graphs, arrays and DLPack. PATH is a clone at the installed version's tag."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from commands import STAGED, pytest
from results import Result

FILES = ["tests", "pyproject.toml"]  # not the package, which would be imported instead of the installed one
WAYS = [STAGED, "pinning.cupy"]
EXPLAINED: dict[str, str] = {}
TESTS = [
    *(f"cuda_tests/test_{name}.py" for name in ("memory", "pinned_memory", "stream", "graph", "runtime", "driver")),
    *(f"core_tests/test_{name}.py" for name in ("dlpack", "ndarray", "ndarray_copy_and_view", "ndarray_get")),
    "core_tests/test_ndarray_cuda_array_interface.py",
    "creation_tests/test_from_data.py",
]


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    plugin = "cupy_in_place" if way == "pinning.cupy" else None
    return pytest(checkout / "tests", work, way, only, *(f"cupy_tests/{each}" for each in TESTS), plugin=plugin)

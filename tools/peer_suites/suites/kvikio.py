# SPDX-License-Identifier: Apache-2.0
"""KvikIO: the tests of its Python package that read and write files. PATH is a clone at about the installed release."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from commands import STAGED, pytest
from results import Result

FILES = ["python/kvikio/tests"]
WAYS = [STAGED]
EXPLAINED: dict[str, str] = {}
TESTS = ["test_async_io.py", "test_basic_io.py", "test_defaults.py", "test_mmap.py", "test_numpy.py"]


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    return pytest(checkout / FILES[0], work, way, only, *TESTS)

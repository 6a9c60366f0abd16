# SPDX-License-Identifier: Apache-2.0
"""RMM: the tests of its Python package. PATH is a clone at about the installed release."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from commands import STAGED, pytest
from results import Result

FILES = ["python/rmm/rmm/tests"]
WAYS = [STAGED]
EXPLAINED: dict[str, str] = {}


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    return pytest(checkout / FILES[0], work, way, only, ".")

# SPDX-License-Identifier: Apache-2.0
"""dask/distributed: its tests of serialisation and communication, which receive into `LockedFrames`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from commands import pytest
from results import Result

WAYS = ["LockedFrames"]
EXPLAINED: dict[str, str] = {}


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    version = checkout / "distributed" / "_version.py"  # generated at installation
    if not version.exists():
        version.write_text('__version__ = "0"\n')
    folders = ["distributed/protocol/tests", "distributed/comm/tests"]
    plugin = None if way == "bare" else "distributed_in_place"
    return pytest(checkout, work, way, only, "--timeout", "120", *folders, plugin=plugin)

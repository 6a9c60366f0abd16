# SPDX-License-Identifier: Apache-2.0
"""Files that the processes of one test run share: the first process that needs one makes it, the others wait."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def run_folder(config: pytest.Config, factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of xdist share in this run. A run that a test starts has its own."""
    folder = factory.getbasetemp()
    shared = (folder.parent if hasattr(config, "workerinput") else folder) / "shared"
    shared.mkdir(exist_ok=True)
    return shared


@contextmanager
def made_once(target: Path, wait: bool = True) -> Iterator[bool | None]:
    """Claim `target`: yield whether it exists already, or None, without `wait`, while another process makes it."""
    with Path(f"{target}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
        else:
            yield target.exists()

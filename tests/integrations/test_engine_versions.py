# SPDX-License-Identifier: Apache-2.0
"""Versions of engines that `pinning.ray` and `pinning.dask` do not support: one clear error, with the remedy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "ray": ["ray/__init__.py", "ray/_private/__init__.py"],
    "distributed": [
        "distributed/__init__.py",
        "distributed/comm/__init__.py",
        "distributed/comm/tcp.py",
        "distributed/protocol/__init__.py",
        "distributed/protocol/utils.py",
    ],
}


@pytest.mark.parametrize(
    ("module", "engine", "said"),
    [
        ("pinning.ray", "ray", "pinning.ray needs Ray 2.10 or newer"),
        ("pinning.dask", "distributed", "pinning.dask needs distributed 2024.1 or newer"),
    ],
)
def test_an_engine_of_a_wrong_version(module: str, engine: str, said: str, tmp_path: Path) -> None:
    for file in FILES[engine]:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("class WorkerPlugin: pass\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith(f"ImportError: {said} (") and f"pip install '{engine}>=" in error

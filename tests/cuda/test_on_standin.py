# SPDX-License-Identifier: Apache-2.0
"""Runs each standin_*.py of this folder in a process of its own, whose driver is the stand-in libcuda.so.1.

A stand-in checks the ABI and the sequence of calls, not a real driver's semantics.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from standins import libcuda


@pytest.mark.parametrize(
    "file", ["standin_locking.py", "standin_pointers.py", "standin_faults.py", "standin_device.py"]
)
def test_on_the_standin(file: str, standin_folder: Path) -> None:
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).parent / file)]
    environment = libcuda.environment(standin_folder, "devices=4")
    child = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=120)
    if child.returncode:
        pytest.fail(child.stdout + child.stderr, pytrace=False)

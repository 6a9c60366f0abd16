# SPDX-License-Identifier: Apache-2.0
"""Runs each standin_*.py of this folder in a process of its own, whose runtime is the stand-in libamdhip64.so.

A stand-in checks the ABI and the sequence of calls, not a real runtime's semantics.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from standins.child import run_pytest
from standins.libhip import DRIVER


@pytest.mark.parametrize(
    "file",
    [
        *("standin_locking.py", "standin_pointers.py", "standin_faults.py", "standin_device.py"),
        *("standin_memory.py", "standin_queues.py", "standin_copies.py"),
    ],
)
def test_on_the_standin(file: str, standin_folder: Path) -> None:
    run_pytest(Path(__file__).parent / file, environment=DRIVER.environment(standin_folder, "devices=8"))

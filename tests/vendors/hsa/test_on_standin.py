# SPDX-License-Identifier: Apache-2.0
"""Runs each standin_*.py of this folder in a process of its own, whose runtime is the stand-in libhsa-runtime64.so.1.

A stand-in checks the ABI and the sequence of calls, not a real runtime's semantics.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from standins.child import run_pytest
from standins.libhsa import DRIVER


@pytest.mark.parametrize(
    "file",
    [
        *("standin_locking.py", "standin_pointers.py", "standin_copies.py", "standin_faults.py", "standin_device.py"),
        *("standin_memory.py", "standin_queues.py", "standin_layers.py"),
    ],
)
def test_on_the_standin(file: str, standin_folder: Path) -> None:
    run_pytest(Path(__file__).parent / file, environment=DRIVER.environment(standin_folder, "gpus=4"))


def test_on_the_standin_without_peers(standin_folder: Path) -> None:
    environment = DRIVER.environment(standin_folder, "gpus=2;no_peers")
    run_pytest(Path(__file__).parent / "standin_lonely.py", environment=environment)

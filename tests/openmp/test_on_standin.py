# SPDX-License-Identifier: Apache-2.0
"""Runs each standin_*.py of this folder in a process of its own, with the tool in it and the stand-in libcuda.so.1.

A stand-in checks the sequence of calls, not a real driver's semantics.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import TOOL

from standins.child import run_pytest
from standins.libcuda import DRIVER

HERE = Path(__file__).parent
POLICY = {"PINNING_LOCK_MIN_BYTES": "4096"}


@pytest.mark.parametrize(
    ("file", "variables"),
    [
        ("standin_tool.py", {}),
        ("standin_sequences.py", {}),
        ("standin_sequences.py", {"PINNING_LOCK_BUDGET": "40KiB", "PINNING_LOCK_AFTER": "1"}),
        ("standin_sequences.py", {"PINNING_LOCK_UNTIL": "unmapped"}),
        ("standin_unseen.py", {}),
    ],
    ids=["rules", "sequences", "sequences, little room", "sequences, until unmapped", "frees unseen"],
)
def test_on_the_standin(file: str, variables: dict[str, str], standin_folder: Path) -> None:
    preload = {} if file == "standin_unseen.py" else {"LD_PRELOAD": str(TOOL)}
    environment = DRIVER.environment(standin_folder, "devices=2")
    run_pytest(HERE / file, environment={**environment, **POLICY, **variables, **preload})

# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and want of memory at every bytecode: nothing is lost, nothing is locked, and the next call works.

A sample of the bytecodes, another one each day; all of them where CI is set, or EVERY_BYTECODE.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from every_bytecode import SCENARIOS

PROGRAM = Path(__file__).with_name("every_bytecode.py")
ALL = bool(os.environ.get("CI") or os.environ.get("EVERY_BYTECODE"))
STEP = 1 if ALL else 61


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "MemoryError"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_raised_at_any_bytecode(scenario: str, error: str) -> None:
    first = 1 + int(time.time()) // 86400 % STEP
    command = [sys.executable, "-W", "ignore", str(PROGRAM), scenario, error, str(first), str(STEP)]
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parent)}
    program = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1700, check=False)
    *problems, summary = program.stdout.splitlines() or [""]
    assert (problems, program.returncode) == ([], 0), program.stderr
    assert summary.endswith(" 0 problems"), summary

# SPDX-License-Identifier: Apache-2.0
"""As tests/runtime/test_late_work.py, with a stand-in driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import submits_at_exit
from folders import PYTHONPATH
from standins.libcuda import DRIVER


@pytest.mark.parametrize("operation", submits_at_exit.OPERATIONS)
def test_daemon_threads_go_on_submitting_until_the_end(standin_folder: Path, operation: str) -> None:
    environment = DRIVER.environment(standin_folder, "devices=2")
    environment |= {"PYTHONPATH": PYTHONPATH, "PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, "-W", "ignore", submits_at_exit.__file__, "cuda:0", operation]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

# SPDX-License-Identifier: Apache-2.0
"""As tests/runtime/test_late_work.py, with a stand-in driver."""

from __future__ import annotations

from pathlib import Path

import pytest

import submits_at_exit
from own_process import python
from standins.libcuda import DRIVER


@pytest.mark.parametrize("operation", submits_at_exit.OPERATIONS)
def test_daemon_threads_go_on_submitting_until_the_end(standin_folder: Path, operation: str) -> None:
    environment = DRIVER.environment(standin_folder, "devices=2")
    done = python("-W", "ignore", submits_at_exit.__file__, "cuda:0", operation, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

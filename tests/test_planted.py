# SPDX-License-Identifier: Apache-2.0
"""The bugs that measure the tests can still be planted: each place is where `tools/planted/bugs.toml` says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_bug_has_its_place() -> None:
    command = [sys.executable, "-P", ROOT / "tools/planted", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")

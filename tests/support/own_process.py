# SPDX-License-Identifier: Apache-2.0
"""Programs in processes of their own, because a library once loaded stays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping


def run(program: str, environment: Mapping[str, str] = os.environ) -> str:
    """What `program` prints, in an interpreter of its own."""
    command = [sys.executable, "-P", "-W", "ignore::DeprecationWarning", "-c", program]  # of forks beside threads
    child = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=300)
    assert (child.returncode, child.stderr) == (0, "")
    return child.stdout

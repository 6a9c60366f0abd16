# SPDX-License-Identifier: Apache-2.0
"""Programs in processes of their own, because a library once loaded stays."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping

from folders import SUPPORT

QUIET = ("-W", "ignore:This process:DeprecationWarning")  # of a fork beside threads, from Python 3.12 on


def python(
    *arguments: object, env: Mapping[str, str] = os.environ, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments until its process ends; its program can import what tests can."""
    path = os.pathsep.join([str(SUPPORT), str(SUPPORT.parent), *filter(None, [env.get("PYTHONPATH")])])
    environment = {**env, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, "-P", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)


def run(program: str, environment: Mapping[str, str] = os.environ) -> str:
    """What `program` prints, in an interpreter of its own; it must end well and say nothing else."""
    child = python(*QUIET, "-c", textwrap.dedent(program), env=environment)
    assert child.returncode == 0, child.stderr  # conftest.py reads whether a limit is why
    assert child.stderr == "", child.stderr
    return child.stdout

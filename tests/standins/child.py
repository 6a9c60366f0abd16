# SPDX-License-Identifier: Apache-2.0
"""Run tests in a process of their own, because a process keeps the driver that it has loaded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def run_pytest(*arguments: str | Path, environment: Mapping[str, str], timeout: int = 540) -> str:
    """Return what ``pytest *arguments`` prints in a process with this environment; if it fails, so does the test."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, arguments)]
    child = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=timeout)
    if child.returncode:
        pytest.fail(child.stdout + child.stderr, pytrace=False)
    return child.stdout

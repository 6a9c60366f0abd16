# SPDX-License-Identifier: Apache-2.0
"""libpinning.so for 64-bit ARM, cross-compiled, and programs that use it under qemu."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from folders import ROOT

MISSING = 77  # exit status of the script if a tool is missing


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_native_programs_run_on_aarch64(tmp_path: Path) -> None:
    done = subprocess.run([ROOT / "tools" / "aarch64", tmp_path], capture_output=True, text=True)
    if done.returncode == MISSING:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "copies: 5 fast, 0 slow; left: 0 locked, 0 on the device" in done.stdout
    assert "regions left: 0" in done.stdout

# SPDX-License-Identifier: Apache-2.0
"""Many queues on a real GPU, with few or many hardware channels, beside calls that wait for all queues: no deadlock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "many_queues.py"
SECONDS = float(os.environ.get("PINNING_STRESS_SECONDS", "8"))


@pytest.mark.usefixtures("real_gpu")
@pytest.mark.parametrize("channels", [1, 8, 32])
@pytest.mark.parametrize("threads", [1, 4, 16, 64])
def test_it_ends_with_every_byte_right(threads: int, channels: int) -> None:
    environment = {**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": str(channels)}
    command = [sys.executable, str(PROGRAM), str(threads), str(SECONDS), str(channels)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stderr

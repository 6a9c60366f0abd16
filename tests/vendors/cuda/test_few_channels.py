# SPDX-License-Identifier: Apache-2.0
"""Queues that share one, two or eight hardware channels, where a wait at the head blocks all work behind it.

Meanwhile other threads lock, unlock, allocate and free, with driver calls that wait for all queues. The program must
end, with every byte right. The driver is the stand-in.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from own_process import python
from standins.libcuda import DRIVER

PROGRAM = Path(__file__).parent / "many_queues.py"


@pytest.mark.parametrize("channels", [1, 2, 8])
@pytest.mark.parametrize("threads", [1, 2, 8, 16])
def test_it_ends_with_every_byte_right(standin_folder: Path, threads: int, channels: int) -> None:
    environment = DRIVER.environment(standin_folder, f"channels={channels}")
    done = python(PROGRAM, threads, 1, channels, 9, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("channels", [1, 2, 8])
@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_copies_over_several_links_end_with_every_byte_right(standin_folder: Path, gpus: int, channels: int) -> None:
    environment = DRIVER.environment(standin_folder, f"devices={gpus};nvswitch;channels={channels}")
    done = python(PROGRAM, 3, 1, channels, 144, "idle", env=environment)
    assert done.returncode == 0, done.stderr

# SPDX-License-Identifier: Apache-2.0
"""A peer, and only the peer, is lost while a copy uses its link: the bytes are right, or the copy has failed.

If the caller waits, they are right. Nothing hangs, and the device's own queue still works. The driver is the stand-in.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from own_process import python
from standins.libcuda import DRIVER

PROGRAM = Path(__file__).parent / "lost_peer.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    "when", ["calls:1", "calls:4", "calls:15", "calls:25", "calls:45", "work:1", "work:5", "work:9"]
)
@pytest.mark.parametrize("waited", [True, False])
@pytest.mark.parametrize(
    ("what", "direction"),
    [("locked", "in"), ("locked", "out"), ("pageable", "in"), ("pageable", "out"), ("file", "in")],
)
def test_every_byte_is_right_or_it_says_so(
    standin_folder: Path, tmp_path: Path, what: str, direction: str, waited: bool, when: str
) -> None:
    environment = DRIVER.environment(standin_folder, "devices=2;nvswitch")
    done = python(PROGRAM, when, what, direction, int(waited), tmp_path / "file", env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout in (["right\n"] if waited else ["right\n", "failed\n"])

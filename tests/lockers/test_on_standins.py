# SPDX-License-Identifier: Apache-2.0
"""The native lockers of libpinning, each in a process of its own, whose driver is the stand-in.

A stand-in checks the ABI and the sequence of calls, not a real driver's semantics.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from locker_vendors import VENDORS

from standins.child import run_pytest
from standins.standin import MissingError


@pytest.mark.parametrize(
    ("name", "file"),
    [
        *((name, "standin_locker.py") for name in VENDORS),
        ("cuda", "standin_cuda.py"),
        ("hip", "standin_hip.py"),
        ("host", "standin_host.py"),
    ],
)
def test_on_the_standin(name: str, file: str, tmp_path: Path) -> None:
    vendor = VENDORS[name]
    try:
        folder = vendor.driver.build(tmp_path)
    except MissingError as missing:
        pytest.skip(str(missing))
    environment = {**vendor.driver.environment(folder, vendor.configuration), "LOCKER": name}
    run_pytest(Path(__file__).parent / file, environment=environment)

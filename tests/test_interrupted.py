# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and want of memory at any moment: nothing is lost, nothing stays locked, and the next call works.

At a sample of the bytecodes, and of signals at random moments, other ones each day; at all bytecodes and thousands of
moments where CI is set, or INTERRUPT_OFTEN. On the host, and on the stand-in for the NVIDIA driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from interrupted import SCENARIOS
from standins.libcuda import DRIVER
from standins.standin import MissingError

HERE = Path(__file__).parent
OFTEN = bool(os.environ.get("CI") or os.environ.get("INTERRUPT_OFTEN"))
STEP = 1 if OFTEN else 61
SIGNALS = 300 if OFTEN else 40
TODAY = int(time.time()) // 86400

Environment = dict[str, str]


@pytest.fixture(scope="session")
def host() -> Environment:
    return {**os.environ, "PYTHONPATH": str(HERE)}


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory, host: Environment) -> Environment:
    pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings: pip install 'pinning[cuda]'")
    try:
        folder = DRIVER.build(tmp_path_factory.mktemp("libcuda"))
    except MissingError as missing:
        pytest.skip(str(missing))
    return {**DRIVER.environment(folder, base=host), "INTERRUPTED": "cuda:0"}


def run(environment: Environment, program: str, *arguments: object) -> None:
    command = [sys.executable, "-W", "ignore", str(HERE / program), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1700, check=False)
    *problems, summary = done.stdout.splitlines() or [""]
    assert (problems, done.returncode) == ([], 0), done.stderr
    assert summary.endswith(" 0 problems"), summary


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "MemoryError"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_raised_at_any_bytecode(host: Environment, scenario: str, error: str) -> None:
    run(host, "every_bytecode.py", scenario, error, 1 + TODAY % STEP, STEP)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "MemoryError"])
@pytest.mark.parametrize("scenario", ["copy_staged", "copy_often", "batch", "copy_file", "save_and_load"])
def test_raised_at_any_bytecode_of_paths_that_the_host_has_not(standin: Environment, scenario: str, error: str) -> None:
    run(standin, "every_bytecode.py", scenario, error, 1 + TODAY % STEP, STEP)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("device", ["host", "standin"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_signals_at_any_moment(request: pytest.FixtureRequest, device: str, scenario: str) -> None:
    run(request.getfixturevalue(device), "under_signals.py", scenario, SIGNALS, TODAY)

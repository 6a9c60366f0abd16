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
SIGNALS = 300 if OFTEN else 16
TODAY = int(time.time()) // 86400

TIMEOUT = 600.0  # seconds; a program gives up by itself after two minutes without progress
ENOUGH = 3  # programs that fail

# Where little is tried, one process does it all.
ALL = [[each] for each in SCENARIOS] if OFTEN else [list(SCENARIOS)]
NOT_ON_THE_HOST = ["copy_staged", "copy_often", "batch", "copy_file", "save_and_load"]
ALL_OF_THE_DEVICE = [[each] for each in NOT_ON_THE_HOST] if OFTEN else [NOT_ON_THE_HOST]

Environment = dict[str, str]
failed: list[str] = []


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
    if len(failed) >= ENOUGH:
        pytest.skip("others have failed before; this may take long to fail")
    command = [sys.executable, "-W", "ignore", str(HERE / program), *map(str, arguments)]
    failed.append(program)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    *problems, summary = done.stdout.splitlines() or [""]
    assert (problems, done.returncode) == ([], 0), done.stdout + done.stderr
    assert summary.endswith(" 0 problems"), summary
    failed.pop()


def named(scenarios: list[str]) -> str:
    return scenarios[0] if OFTEN else "all"


@pytest.mark.timeout(TIMEOUT + 60)
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "MemoryError"])
@pytest.mark.parametrize("scenarios", ALL, ids=named)
def test_raised_at_any_bytecode(host: Environment, scenarios: list[str], error: str) -> None:
    run(host, "every_bytecode.py", error, 1 + TODAY % STEP, STEP, *scenarios)


@pytest.mark.timeout(TIMEOUT + 60)
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "MemoryError"])
@pytest.mark.parametrize("scenarios", ALL_OF_THE_DEVICE, ids=named)
def test_raised_at_any_bytecode_of_paths_that_the_host_has_not(
    standin: Environment, scenarios: list[str], error: str
) -> None:
    run(standin, "every_bytecode.py", error, 1 + TODAY % STEP, STEP, *scenarios)


@pytest.mark.timeout(TIMEOUT + 60)
@pytest.mark.parametrize("device", ["host", "standin"])
@pytest.mark.parametrize("scenarios", ALL, ids=named)
def test_signals_at_any_moment(request: pytest.FixtureRequest, device: str, scenarios: list[str]) -> None:
    run(request.getfixturevalue(device), "under_signals.py", SIGNALS, TODAY, *scenarios)

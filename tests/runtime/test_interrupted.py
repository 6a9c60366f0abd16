# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and lack of memory at any moment: nothing leaks, nothing stays locked, and the next call works.

The quick tests try a sample of the bytecodes, and signals at random moments, different ones each day; the slow tests
try all bytecodes and thousands of moments. On the host, and on the stand-in for the NVIDIA driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from folders import PYTHONPATH, SUPPORT
from interrupted import SCENARIOS
from standins.libcuda import DRIVER
from standins.standin import Driver

STEP = 97  # a sample has one of this many bytecodes
TODAY = int(time.time()) // 86400

TIMEOUT = 600.0  # seconds; a program gives up by itself after two minutes without progress
ENOUGH = 3  # programs that fail

NOT_ON_THE_HOST = ["copy_staged", "copy_over_links", "batch", "copy_file", "save_and_load"]

Environment = dict[str, str]
failed: list[str] = []


@pytest.fixture(scope="session")
def host() -> Environment:
    return {**os.environ, "PYTHONPATH": PYTHONPATH}


@pytest.fixture(scope="session")
def standin(build: Callable[[Driver], Path], host: Environment) -> Environment:
    pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings: pip install cuda-bindings")
    return {**DRIVER.environment(build(DRIVER), "devices=2", base=host), "INTERRUPTED": "cuda:0"}


def run(environment: Environment, program: str, *arguments: object) -> None:
    if len(failed) >= ENOUGH:
        pytest.skip("others have failed before; this may take long to fail")
    command = [sys.executable, "-W", "ignore", str(SUPPORT / program), *map(str, arguments)]
    failed.append(program)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    *problems, summary = done.stdout.splitlines() or [""]
    assert (problems, done.returncode) == ([], 0), done.stdout + done.stderr
    assert summary.endswith(" 0 problems"), summary
    failed.pop()


def sample_of(scenario: str) -> tuple[int, int]:
    """The first bytecode and the step: all bytecodes, unless there are thousands that write files or copy much."""
    return (1 + TODAY % 7, 7) if scenario in ("save_and_load", "copy_over_links", "copy_arrays") else (1, 1)


pytestmark = pytest.mark.timeout(TIMEOUT + 60)
errors = pytest.mark.parametrize("error", ["KeyboardInterrupt", "MemoryError"])
devices = pytest.mark.parametrize("device", ["host", "standin"])


@pytest.mark.sample
@errors
@devices
def test_raised_at_some_bytecodes(request: pytest.FixtureRequest, device: str, error: str) -> None:
    scenarios = SCENARIOS if device == "host" else NOT_ON_THE_HOST
    run(request.getfixturevalue(device), "every_bytecode.py", error, 1 + TODAY % STEP, STEP, *scenarios)


@pytest.mark.sample
@devices
def test_signals_at_some_moments(request: pytest.FixtureRequest, device: str) -> None:
    run(request.getfixturevalue(device), "under_signals.py", 10, TODAY, *SCENARIOS)


@pytest.mark.slow
@errors
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_raised_at_any_bytecode(host: Environment, scenario: str, error: str) -> None:
    run(host, "every_bytecode.py", error, *sample_of(scenario), scenario)


@pytest.mark.slow
@errors
@pytest.mark.parametrize("scenario", NOT_ON_THE_HOST)
def test_raised_at_any_bytecode_of_paths_that_the_host_has_not(standin: Environment, scenario: str, error: str) -> None:
    run(standin, "every_bytecode.py", error, *sample_of(scenario), scenario)


@pytest.mark.slow
@devices
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_signals_at_any_moment(request: pytest.FixtureRequest, device: str, scenario: str) -> None:
    run(request.getfixturevalue(device), "under_signals.py", 300, TODAY, scenario)

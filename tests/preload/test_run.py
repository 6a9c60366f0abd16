# SPDX-License-Identifier: Apache-2.0
"""``pinning run`` for programs with and without CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def pinning_run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", "from pinning_command import main; main()", "run"]
    return subprocess.run(
        [*command, *map(str, arguments)], env={**os.environ, **variables}, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    ("options", "expected"), [([], "\n"), (["--copies", "off"], "off\n"), (["--copies", "on"], "on\n")]
)
def test_copies_are_an_option(options: list[str], expected: str) -> None:
    assert pinning_run(*options, "--", "sh", "-c", 'echo "$PINNING_COPIES"').stdout == expected


def test_another_word_is_refused() -> None:
    done = pinning_run("--copies", "fast", "--", "true")
    assert (done.returncode, "'fast' is not one of off, on" in done.stderr) == (2, True)


def test_a_program_that_never_opens_the_driver_begins_no_thread(tmp_path: Path) -> None:
    program = "import os; print(len(os.listdir('/proc/self/task')), 'libcuda' in open('/proc/self/maps').read())"
    done = pinning_run("--report-file", tmp_path / "report", "--", sys.executable, "-P", "-c", program)
    assert (done.stdout, done.stderr) == ("1 False\n", "")
    said = "nothing was staged or locked: CUDA's driver was not opened, and no OpenMP runtime is loaded"
    assert (tmp_path / "report").read_text() == f"pinning: {said}\n"

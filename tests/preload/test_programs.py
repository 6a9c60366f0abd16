# SPDX-License-Identifier: Apache-2.0
"""The report of a program's copies; and programs in unusual environments, which behave as without the library."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pinning
from pinning.cli.status import status_of
from standins.libcuda import DRIVER
from standins.standin import Driver, MissingError

TOOL = pinning.library_dirs()[0] / "libpinning_omp.so"
PROGRAM = [sys.executable, "-P", str(Path(__file__).parent / "plain_copies.py")]
MIB = 1 << 20


@pytest.fixture
def environment(build: Callable[[Driver], Path]) -> dict[str, str]:
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("needs two processors: with one nothing is staged")
    try:
        plain = DRIVER.environment(build(DRIVER), "", dict(os.environ))
    except MissingError as error:
        pytest.skip(str(error))
    return {**plain, "LD_PRELOAD": str(TOOL), "PINNING_COPIES_MIN_BYTES": "64KiB"}


def report(environment: dict[str, str], *what: str, **variables: str) -> str:
    done = subprocess.run(
        [*PROGRAM, *what],
        env={**environment, "PINNING_REPORT": "-", **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
    return done.stderr


@pytest.mark.skipif(
    platform.python_implementation() != "CPython" or sys.version_info[:2] not in {(3, 11), (3, 12)},
    reason="needs an interpreter that says where a thread is: CPython 3.11 or 3.12",
)
def test_the_report_names_the_line_of_python(environment: dict[str, str]) -> None:
    lines = Path(PROGRAM[-1]).read_text().splitlines()
    there = next(i for i, line in enumerate(lines, 1) if "cuMemcpyHtoD_v2" in line)
    back = next(i for i, line in enumerate(lines, 1) if "cuMemcpyDtoH_v2" in line)
    said = report(environment)
    assert f"pinning: by plain_copies.py:{there} in there, " in said
    assert f"pinning: by plain_copies.py:{back} in and_back, " in said
    assert "pinning: copied again from or to the same ordinary memory: 4 MiB in 4: locked by the program" in said


@pytest.mark.parametrize("runtime", ["libgomp.so.1", "/usr/lib/llvm-19/lib/libomp.so.5"])
def test_a_program_that_moves_nothing_by_openmp_is_told_nothing_of_it(
    environment: dict[str, str], runtime: str
) -> None:
    program = f"import ctypes; ctypes.CDLL({runtime!r})"
    if subprocess.run([sys.executable, "-c", program], capture_output=True).returncode:
        pytest.skip(f"needs an OpenMP runtime: {runtime}")
    said = report(environment, runtime)
    assert all(line.startswith("pinning: ") for line in said.splitlines())
    assert "copied to devices" in said
    assert "OpenMP" not in said
    assert "locked, " not in said  # "0 buffers locked, ..."


def test_the_bytes_show_while_the_program_runs(environment: dict[str, str]) -> None:
    command = [*PROGRAM, "wait"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None and program.stdout is not None
        assert program.stdout.readline() == "right\n"
        moved = status_of(program.pid).moved
        program.stdin.close()
    # the first one is copied before there are blocks
    assert moved["staged"] + moved["plain"] == 6 * MIB
    assert moved["staged"] >= 5 * MIB
    assert (moved["direct"], moved["small"], moved["lock"]) == (MIB, 1000, 0)


def test_a_process_without_descriptors(environment: dict[str, str]) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    done = subprocess.run(
        [*PROGRAM, "full"],
        env={**environment, "PINNING_REPORT": "-"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, most)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
    assert "copied to devices" in done.stderr


def test_a_process_that_is_traced(environment: dict[str, str]) -> None:
    strace = shutil.which("strace") or pytest.skip("needs strace: apt-get install strace")
    traced = [strace, "-f", "-q", "-o", "/dev/null"]
    if subprocess.run([*traced, "true"], capture_output=True).returncode:
        pytest.skip("needs ptrace: this container forbids it")
    done = subprocess.run([*traced, *PROGRAM], env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")

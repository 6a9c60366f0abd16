# SPDX-License-Identifier: Apache-2.0
"""The report of a program's copies; and programs in unusual environments, which behave as without the library."""

from __future__ import annotations

import json
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
from installed import tool
from pinning.cli.status import status_of
from pinning.conformance.faults import eventually
from standins.libcuda import DRIVER
from standins.standin import Driver

TOOL = pinning.build.library_dirs()[0] / "libpinning_run.so"
PROGRAM = [sys.executable, "-P", str(Path(__file__).parent / "plain_copies.py")]
MIB = 1 << 20
# Copies through all pinned blocks more than once.
RACES = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum { SIZE = (96 << 20) + 4321 };
static void *driver;
#define CALL(name, ...) if (((int (*)())dlsym(driver, name))(__VA_ARGS__) != 0) return 1
int main(void) {
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  void *context;
  unsigned long long memory;
  CALL("cuInit", 0);
  CALL("cuDevicePrimaryCtxRetain", &context, 0);
  CALL("cuCtxSetCurrent", context);
  CALL("cuMemAlloc_v2", &memory, (size_t)SIZE);
  for (int i = 0; i < 3; i++) {
    char *const source = malloc(SIZE), *const back = malloc(SIZE);
    memset(source, i, SIZE);
    CALL("cuMemcpyHtoD_v2", memory, source + 1, (size_t)SIZE - 1);
    memset(source, 9, SIZE);
    CALL("cuMemcpyDtoH_v2", back + 1, memory, (size_t)SIZE - 1);
    if (back[1] != i || back[SIZE - 1] != i) return 2;
    memset(back, 9, SIZE);
    free(source);
    free(back);
  }
  puts("right");
  return 0;
}
"""


@pytest.fixture
def environment(build: Callable[[Driver], Path]) -> dict[str, str]:
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("needs two processors: with one nothing is staged")
    return {**DRIVER.environment(build(DRIVER)), "LD_PRELOAD": str(TOOL), "PINNING_COPIES_MIN_BYTES": "64KiB"}


def report(environment: dict[str, str], *what: str, before: Callable[[], None] | None = None) -> str:
    variables = {**environment, "PINNING_REPORT": "-"}
    done = subprocess.run(
        [*PROGRAM, *what], env=variables, preexec_fn=before, capture_output=True, text=True, timeout=300
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
    assert "pinning: copied again from or to the same ordinary memory: 3 MiB in 3: locked by the program" in said


def test_the_trace_tells_where_in_the_host_each_copy_begins_or_ends(
    environment: dict[str, str], tmp_path: Path
) -> None:
    report({**environment, "PINNING_TRACE": str(tmp_path / "trace.json")})
    bars = [event for event in json.loads((tmp_path / "trace.json").read_text()) if event["ph"] == "X"]
    pinned, *sources = (bar["args"]["address"] for bar in bars if bar["name"] == "copy to device")
    back, another, again = (bar["args"]["address"] for bar in bars if bar["name"] == "copy from device")
    assert len(sources) == 3
    assert pinned not in sources
    assert (len(set(sources)), back) == (1, again)
    assert len({*sources, back, another}) == 3


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
    assert (moved["direct"], moved["small"]) == (MIB, 1000)


def test_threads_sleep_where_the_clock_stands_still(environment: dict[str, str], tmp_path: Path) -> None:
    """As under libfaketime. A thread that spins is never asleep."""
    compiler = tool("gcc", "apt-get install gcc")
    source, frozen = tmp_path / "frozen.c", tmp_path / "frozen.so"
    source.write_text("""#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
  *time = (struct timespec){clock == CLOCK_REALTIME ? 1700000000 : 1000, 0};
  return 0;
}""")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", source, "-o", frozen], check=True)
    program = (
        "import sys, pinning\nqueue = pinning.Queue('host')\nqueue.call(int).wait()\nprint('right', flush=True)\n"
        "sys.stdin.readline()"
    )
    for command in ([*PROGRAM, "wait"], [sys.executable, "-P", "-c", program]):
        variables = {**environment, "LD_PRELOAD": f"{TOOL}:{frozen}"}
        with subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as started:
            assert started.stdin is not None and started.stdout is not None
            try:
                assert started.stdout.readline() == "right\n"
                tasks = list(Path(f"/proc/{started.pid}/task").iterdir())
                assert len(tasks) > 1
                for task in tasks:
                    assert eventually(lambda task=task: ") S " in (task / "stat").read_text())
            finally:
                started.kill()


def test_a_program_with_a_thread_sanitizer_reports_no_race(environment: dict[str, str], tmp_path: Path) -> None:
    """Which sees the copies of our threads, but not the order that they keep. The device's own copies it never sees."""
    compiler = tool("gcc", "apt-get install gcc")
    source, program, suppressed = tmp_path / "program.c", tmp_path / "program", tmp_path / "suppressed"
    source.write_text(RACES)
    suppressed.write_text("called_from_lib:libcuda.so.1\n")
    command = [compiler, "-O1", "-g", "-fsanitize=thread", source, "-o", program, "-ldl"]
    variables = {**environment, "TSAN_OPTIONS": f"suppressions={suppressed}", "PINNING_REPORT": "-"}
    made = subprocess.run(command, capture_output=True).returncode == 0
    plain = {name: value for name, value in variables.items() if name != "LD_PRELOAD"}
    if not made or subprocess.run([program], env=plain, capture_output=True).returncode:
        pytest.skip("needs gcc's thread sanitizer")
    done = subprocess.run([program], env=variables, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
    assert "staged" in done.stderr


def test_a_process_without_descriptors(environment: dict[str, str]) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = report(environment, "full", before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, most)))
    assert "copied to devices" in said


def test_a_process_that_is_traced(environment: dict[str, str]) -> None:
    strace = shutil.which("strace") or pytest.skip("needs strace: apt-get install strace")
    traced = [strace, "-f", "-q", "-o", "/dev/null"]
    if subprocess.run([*traced, "true"], capture_output=True).returncode:
        pytest.skip("needs ptrace: this container forbids it")
    done = subprocess.run([*traced, *PROGRAM], env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")

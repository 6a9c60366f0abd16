# SPDX-License-Identifier: Apache-2.0
"""Each example of examples/openmp does the same with the tool as without it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import EXAMPLES, run, run_plain, tidied

ARGUMENTS = {"stream": [2, 4], "stencil": [256, 20], "small_maps": [3], "nested": [256], "threads": [128]}
POLICIES: dict[str, dict[str, object]] = {
    "as by default": {},
    "everything": {"lock_min_bytes": 1, "lock_after": 1},
    "small buffers": {"lock_min_bytes": 4096},
    "until unmapped": {"lock_min_bytes": 4096, "lock_until": "unmapped"},
    "loaded by the runtime": {"lock_min_bytes": 4096, "preload": False},
    "little room": {"lock_min_bytes": 4096, "lock_after": 1, "lock_budget": "300KiB"},
    "off": {"lock_mapped": "off"},
}


def test_all_examples_are_here() -> None:
    assert {source.stem for source in EXAMPLES.glob("*.c")} == set(ARGUMENTS)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_it_does_the_same_with_the_tool(name: str, program: Callable[[Path], Path]) -> None:
    built = program(EXAMPLES / f"{name}.c")
    plain = run_plain(built, *ARGUMENTS[name])
    assert plain.code == 0
    assert plain.out
    for policy, variables in POLICIES.items():
        ran = run(built, *ARGUMENTS[name], **variables)
        assert (ran.code, ran.out) == (plain.code, plain.out), policy
        assert not any("stays locked" in line for line in ran.said), ran.errors


@pytest.mark.parametrize("name", ["stream", "nested", "threads"])
def test_most_of_what_it_moves_again_and_again_is_locked(name: str, program: Callable[[Path], Path]) -> None:
    ran = run(program(EXAMPLES / f"{name}.c"), *ARGUMENTS[name], lock_min_bytes=32768)
    for direction in ("to", "from"):
        fast, other = ran.moved(direction)
        assert fast > 0
        assert name != "stream" or fast > other


def test_small_buffers_are_left_alone(program: Callable[[Path], Path]) -> None:
    ran = run(program(EXAMPLES / "small_maps.c"), 3)
    assert ran.locked == 0


def pinning_run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", "from pinning.cli import app; app(prog_name='pinning')", "run"]
    with tidied():
        return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=100)


def test_pinning_run_is_the_program_with_the_tool(program: Callable[[Path], Path], tmp_path: Path) -> None:
    built = program(EXAMPLES / "stream.c")
    plain = run_plain(built, 2, 4)
    done = pinning_run("--report", "--trace", tmp_path / "trace.json", "--", built, 2, 4)
    assert (done.returncode, done.stdout) == (plain.code, plain.out)
    assert "pinning: 3 buffers locked, 6 MiB at most" in done.stderr
    assert (tmp_path / "trace.json").read_text().endswith("]\n")
    off = pinning_run("--lock-mapped", "off", "--report-file", tmp_path / "report", built, 2, 4)
    assert (off.returncode, off.stdout) == (plain.code, plain.out)
    assert "0 buffers locked" in (tmp_path / "report").read_text()


def test_pinning_run_ends_as_the_program_does() -> None:
    assert pinning_run("--", "sh", "-c", "exit 7").returncode == 7
    assert pinning_run("sh", "-c", "kill -9 $$").returncode == -9
    assert pinning_run("--", "printf", "%s|", "--report", "a b").stdout == "--report|a b|"


def test_pinning_run_of_nothing() -> None:
    done = pinning_run("--", "./no-such-program")
    assert done.returncode == 1
    assert "there is no program ./no-such-program" in done.stderr
    assert pinning_run().returncode == 2

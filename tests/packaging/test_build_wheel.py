# SPDX-License-Identifier: Apache-2.0
"""The script with which `make` builds the wheel: it reports progress, and however it ends, the next run works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from folders import ROOT

SCRIPT = ROOT / "tools" / "build_wheel.py"
BEGINS = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--wheel-dir") + 1])
folder.mkdir()
print("  Installing build dependencies: started")
print("  Installing build dependencies: finished with status 'done'")
print("  Building wheel for pinning (pyproject.toml): started")
print("  [1/2] Building CXX object one.o", flush=True)
"""
ENDS = 'print("  [2/2] Building CXX object two.o"); (folder / "pinning-1.whl").write_text("whole")'
HANGS = "time.sleep(600)"
FAILS = 'print("  error: two.cpp has no end"); sys.exit(1)'


def start(folder: Path, pip: str) -> subprocess.Popen[str]:
    """Start the build, with this program as pip, in a process group of its own, as a shell does."""
    (folder / "pip.py").write_text(BEGINS + pip)
    return subprocess.Popen(
        [sys.executable, SCRIPT, folder / "wheel"],
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def build(folder: Path, pip: str) -> tuple[int, str, str]:
    with start(folder, pip) as process:
        said, complained = process.communicate()
    return process.returncode, said, complained


def wheels(folder: Path) -> list[str]:
    return [path.read_text() for path in (folder / "wheel").glob("*.whl")]


def test_a_build_says_how_far_it_is(tmp_path: Path) -> None:
    code, said, _ = build(tmp_path, ENDS)
    assert (code, wheels(tmp_path)) == (0, ["whole"])
    assert [line.split(maxsplit=1)[1] for line in said.splitlines()] == [
        "fetching what the build needs",
        "generating and compiling",
        "generating and compiling: 1 of 2",
        "generating and compiling: 2 of 2",
    ]


@pytest.mark.parametrize("before", [False, True], ids=["the first", "after another"])
def test_a_build_that_is_interrupted_leaves_what_was_there(tmp_path: Path, before: bool) -> None:
    if before:
        build(tmp_path, ENDS)
    with start(tmp_path, HANGS) as process:
        assert process.stdout
        assert process.stderr
        for line in process.stdout:
            if "1 of 2" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        assert "Interrupted" in process.stderr.read()
    assert process.returncode == 130
    assert wheels(tmp_path) == ["whole"] * before
    assert (tmp_path / "wheel").exists() is before
    assert build(tmp_path, ENDS)[0] == 0
    assert wheels(tmp_path) == ["whole"]


def test_a_build_that_fails_says_why(tmp_path: Path) -> None:
    code, _, complained = build(tmp_path, FAILS)
    assert code == 1
    assert "two.cpp has no end" in complained
    assert not (tmp_path / "wheel").exists()

# SPDX-License-Identifier: Apache-2.0
"""A forked child does not wait for what threads of its parent held."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import pinning
from installed import ROOT, run
from limits import needs_room_to_lock
from pinning.cli.run import library


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beside_threads")
    compiler = shutil.which("cc") or shutil.which("gcc") or pytest.skip("needs a C compiler: apt-get install gcc")
    headers = [f"-I{each}" for each in pinning.include_dirs()]
    linked = [f"{flag}{each}" for each in pinning.library_dirs() for flag in ("-L", "-Wl,-rpath,")]
    source = ROOT / "tests" / "native" / "beside_threads.c"
    run(compiler, "-pthread", *headers, source, "-lpinning", *linked, "-o", folder / "program", folder=folder)
    return folder / "program"


def ran(program: Path, *arguments: str, preload: str = "") -> str:
    """Its output; a time-out means that it hangs, or nearly."""
    command, environment = [str(program), *arguments], {**os.environ, "LD_PRELOAD": preload}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    return done.stdout + done.stderr


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("with_tool", [False, True], ids=["alone", "under pinning run"])
def test_a_child_does_not_wait_for_threads_of_its_parent(program: Path, threads: str, with_tool: bool) -> None:
    needs_room_to_lock(1 << 20)
    assert ran(program, threads, preload=str(library()) if with_tool else "") == "right\n"

# SPDX-License-Identifier: Apache-2.0
"""``pinning run``: the program with the tool, or a line that says why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import (
    EXAMPLES,
    SOURCES,
    MissingClangError,
    clang,
    compile_program,
    run_plain,
    tidied,
    where_the_runtime_is,
)

from installed import tool

NEVER = "pinning: nothing was staged or locked: "


def pinning_run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", "from pinning_command import main; main()", "run"]
    environment = {**os.environ, **where_the_runtime_is(), **variables}
    with tidied():
        return subprocess.run(
            [*command, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=600
        )


def test_it_is_the_program_with_the_tool(program: Callable[[Path], Path], tmp_path: Path) -> None:
    built = program(EXAMPLES / "stream.c")
    plain = run_plain(built, 2, 4)
    for _ in range(2):  # the second run overwrites the files of the first
        done = pinning_run("--report", "--trace", tmp_path / "trace.json", "--", built, 2, 4)
        assert (done.returncode, done.stdout) == (plain.code, plain.out)
        assert "pinning: 3 buffers locked, 6 MiB at most" in done.stderr
        assert (tmp_path / "trace.json").read_text().endswith("]\n")
    off = pinning_run("--lock-mapped", "off", "--report-file", tmp_path / "report", built, 2, 4)
    assert (off.returncode, off.stdout) == (plain.code, plain.out)
    assert "0 buffers locked" in (tmp_path / "report").read_text()
    assert {file.name for file in tmp_path.iterdir()} == {"trace.json", "report"}


def test_it_ends_as_the_program_does() -> None:
    assert pinning_run("--", "sh", "-c", "exit 7").returncode == 7
    assert pinning_run("sh", "-c", "kill -9 $$").returncode == -9
    assert pinning_run("--", "printf", "%s|", "--report", "a b").stdout == "--report|a b|"


def test_what_is_no_program_gives_the_codes_of_a_shell(tmp_path: Path) -> None:
    done = pinning_run("--", "./no-such-program")
    assert (done.returncode, "there is no program ./no-such-program" in done.stderr) == (127, True)
    binary = tmp_path / "binary"
    binary.write_bytes(b"no\0program")
    pinning_run("--trace", binary, "--", "./no-such-program")
    assert binary.read_bytes() == b"no\0program"
    for mode, why in [(0o644, "Permission denied"), (0o755, "Exec format error")]:
        binary.chmod(mode)
        done = pinning_run("--", binary)
        assert (done.returncode, why in " ".join(done.stderr.split())) == (126, True)
    assert pinning_run("--", tmp_path).returncode == 126
    assert pinning_run().returncode == 2


def test_a_program_that_no_runtime_tells_of_is_said(tmp_path: Path) -> None:
    done = pinning_run("--report", "true")
    neither = f"{NEVER}CUDA's driver was not opened, and no OpenMP runtime is loaded\n"
    assert (done.returncode, done.stderr) == (0, neither)
    assert pinning_run("--lock-mapped", "mandatory", "true").stderr == f"{NEVER}no OpenMP runtime is loaded\n"
    assert pinning_run("--lock-mapped", "mandatory", "true").returncode == 1
    assert pinning_run("--lock-mapped", "mandatory", "sh", "-c", "exit 3").returncode == 3


def test_a_program_that_only_starts_others_is_no_such_program(tmp_path: Path) -> None:
    assert pinning_run("--report", "--lock-mapped", "mandatory", "sh", "-c", "ls / > /dev/null; true").stderr == ""
    starts = [sys.executable, "-c", "import os, subprocess; os.chdir('/'); subprocess.run('true')"]
    report, trace = tmp_path / "report", tmp_path / "trace.json"
    files = ["--report-file", os.path.relpath(report), "--trace", os.path.relpath(trace)]
    report.symlink_to("gone")  # which the report replaces
    for _ in range(2):
        assert pinning_run(*files, *starts).stderr == ""
        assert "those that it has started report for themselves" in report.read_text()
        assert len(json.loads(trace.read_text())) == 1
        assert set(tmp_path.iterdir()) == {report, trace}
    assert pinning_run(*files, "sh", "-c", "kill -9 $$").returncode == -9
    assert "it ended by a signal" in report.read_text()
    assert json.loads(trace.read_text()) == []


@pytest.mark.parametrize("option", ["--report-file", "--trace"])
def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path, option: str) -> None:
    full = tmp_path / "not" / "there"
    done = pinning_run(option, full, "--", "echo", "started")
    said = f"pinning: {full} cannot be written: No such file or directory; nothing was started\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
    assert "Is a directory" in pinning_run(option, tmp_path, "--", "true").stderr


def compiled_by_gcc(folder: Path, construct: str) -> Path:
    compiler = tool("gcc", "apt-get install gcc")
    source, built = folder / f"{construct}.c", folder / construct
    source.write_text(
        f'#include <stdio.h>\nint main(void) {{\n#pragma omp {construct}\n{{}}\nprintf("done"); return 0; }}'
    )
    if subprocess.run([compiler, "-fopenmp", source, "-o", built]).returncode:
        pytest.skip("needs GCC's OpenMP runtime: apt-get install libgomp1")
    return built


@pytest.mark.parametrize("construct", ["", "parallel"])
def test_a_program_that_does_not_offload_is_not_told(tmp_path: Path, construct: str) -> None:
    done = pinning_run("--", compiled_by_gcc(tmp_path, construct) if construct else "true")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_of_clang_that_comes_to_no_construct_is_not_told(tmp_path: Path) -> None:
    try:
        compiler = clang()
    except MissingClangError as missing:
        pytest.skip(str(missing))
    source, built = tmp_path / "idle.c", tmp_path / "idle"
    source.write_text("int main(int n, char** a) {\n if (n > 9)\n#pragma omp parallel\n{}\nreturn a == 0; }")
    subprocess.run([compiler, "-fopenmp", source, "-o", built], check=True)
    assert (pinning_run("--", built).returncode, pinning_run("--", built).stderr) == (0, "")
    assert "the program has come to no OpenMP construct" in pinning_run("--report", "--", built).stderr


def test_a_program_that_gcc_compiled_to_offload(tmp_path: Path) -> None:
    built = compiled_by_gcc(tmp_path, "target")
    done = pinning_run(built)
    assert (done.returncode, done.stdout) == (0, "done")
    assert done.stderr.startswith(f"{NEVER}libgomp.so.1, GCC's OpenMP runtime, has no OMPT interface; ")
    done = pinning_run("--lock-mapped", "mandatory", "--", "sh", "-c", f"{built}; echo $?")
    assert (done.stdout, done.stderr.startswith(NEVER)) == ("done1\n", True)


def test_a_program_that_no_library_can_be_loaded_into(tmp_path: Path) -> None:
    compiler = tool("gcc", "apt-get install gcc")
    source, built = tmp_path / "program.c", tmp_path / "program"
    source.write_text('#include <stdio.h>\nint main(void) { puts("done"); return 3; }')
    if subprocess.run([compiler, "-static", source, "-o", built]).returncode:
        pytest.skip("needs a static libc: apt-get install libc6-dev")
    why = f"the tool cannot be loaded into {built}, so nothing is locked: it is statically linked"
    done = pinning_run(built)
    assert (done.returncode, done.stdout, done.stderr) == (3, "done\n", f"pinning: {why}\n")
    done = pinning_run("--lock-mapped", "mandatory", built)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"pinning: {why}\n")
    done = pinning_run("--trace", tmp_path / "trace.json", built)
    assert (done.returncode, done.stdout, f"{why}; run it without" in done.stderr) == (1, "", True)


def test_a_program_that_is_a_tool_itself(program: Callable[[Path], Path], tmp_path: Path) -> None:
    program(SOURCES / "own_tool.c")  # skips if it cannot be compiled
    built = compile_program(SOURCES / "own_tool.c", tmp_path / "own_tool", "-rdynamic")
    done = pinning_run("--report", built)
    assert (done.returncode, done.stderr) == (
        0,
        f"{NEVER}{built} has an OMPT tool of its own, and a runtime takes only one\n",
    )


def test_a_runtime_that_is_told_to_start_no_tool(program: Callable[[Path], Path]) -> None:
    done = pinning_run("--report", program(EXAMPLES / "stream.c"), 1, 1, OMP_TOOL="disabled")
    assert (done.returncode, done.stderr) == (0, f"{NEVER}OMP_TOOL=disabled forbids it; unset that\n")

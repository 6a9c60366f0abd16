# SPDX-License-Identifier: Apache-2.0
"""OpenMP_VV: its C and C++ programs that map, on LLVM's CPU devices: status and output must be as bare."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from commands import run_by
from results import FAILED, PASSED, SKIPPED, Result

sys.path.append(str(Path(__file__).parents[3] / "tests" / "openmp"))

from programs import clang, libraries, run_plain

MAPS = re.compile(r"\bmap *\(|\btarget\s+(enter|exit|update)\b|\bomp_target_")
ADDRESSES = re.compile(r"\b0x[0-9a-f]+")  # different in each run
VARIABLES_OF_RUN = re.compile(r"^// RUN:.*?\benv (\w+=\S+)", re.MULTILINE)  # of tests for lit
EARLY = {"PINNING_LOCK_AFTER": "1", "PINNING_LOCK_MIN_BYTES": "1"}
VARIABLES = {
    "locks at the first transfer, of 1 byte": EARLY,
    "locks end with the mapping": EARLY | {"PINNING_LOCK_UNTIL": "unmapped"},
}
WAYS = list(VARIABLES)
EXPLAINED: dict[str, str] = {}


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    return run_programs(checkout / "tests", MAPS, [f"-I{checkout / 'ompvv'}"], work, way, only)


def run_programs(
    folder: Path,
    has: re.Pattern[str],
    flags: Collection[str],
    work: Path,
    way: str,
    only: Collection[str] | None,
) -> dict[str, Result]:
    """The result of each program below a folder whose source matches the pattern."""
    results: dict[str, Result] = {}
    for source in sorted(folder.rglob("*.c*")):
        case, text = str(source.relative_to(folder)), source.read_text(errors="replace")
        if has.search(text) and (only is None or case in only):
            program = _compiled(source, work / "programs" / case.replace("/", "-"), flags)
            results[case] = _run(program, way, dict(each.split("=", 1) for each in VARIABLES_OF_RUN.findall(text)))
    return results


def _compiled(source: Path, program: Path, more: Collection[str]) -> Path:
    """The program; an empty file if this compiler refuses the source."""
    if not program.exists():
        program.parent.mkdir(exist_ok=True)
        folder = libraries(clang())
        language = ["-x", "c++"] if source.suffix == ".cpp" else []
        flags = ["-w", "-O1", "-fopenmp", "-fopenmp-targets=x86_64-pc-linux-gnu", *more]
        link = [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lm", *(["-lstdc++"] if language else [])]
        made = subprocess.run([clang(), *flags, *language, source, *link, "-o", program], capture_output=True)
        if made.returncode != 0:
            program.write_bytes(b"")
    return program


def _run(program: Path, way: str, variables: dict[str, str]) -> Result:
    if program.stat().st_size == 0:
        return Result(SKIPPED, reason="the compiler refuses it")
    ours = run_by("pinning run") if way in VARIABLES else []
    environment = {**os.environ, **variables, **VARIABLES.get(way, {})}
    ran = run_plain(Path("/usr/bin/timeout"), "120", *ours, program, environment=environment)
    state = PASSED if ran.code == 0 else FAILED
    output = ADDRESSES.sub("0x", f"{ran.code} {ran.out}{ran.errors}")
    return Result(state, output, f"status {ran.code}")

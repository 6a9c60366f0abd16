# SPDX-License-Identifier: Apache-2.0
"""OpenMP_VV: its programs in C and C++ that map, on the CPU's devices of LLVM: status and output are to be as bare."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from results import FAILED, PASSED, SKIPPED, Result

sys.path.append(str(Path(__file__).parents[3] / "tests" / "openmp"))

from programs import clang, libraries, run_plain

MAPS = re.compile(r"\bmap *\(|\btarget\s+(enter|exit|update)\b|\bomp_target_")
ADDRESSES = re.compile(r"\b0x[0-9a-f]+")  # which no two runs have in common
EARLY = {"PINNING_LOCK_AFTER": "1", "PINNING_LOCK_MIN_BYTES": "1"}
VARIABLES = {
    "locks at the first transfer, of 1 byte": EARLY,
    "locks end with the mapping": EARLY | {"PINNING_LOCK_UNTIL": "unmapped"},
}
WAYS = list(VARIABLES)
EXPLAINED: dict[str, str] = {}


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    sources = sorted(
        path for path in (checkout / "tests").rglob("*.c*") if MAPS.search(path.read_text(errors="replace"))
    )
    results: dict[str, Result] = {}
    for source in sources:
        case = str(source.relative_to(checkout / "tests"))
        if only is None or case in only:
            results[case] = _run(_compiled(source, checkout, work), way)
    return results


def _compiled(source: Path, checkout: Path, work: Path) -> Path:
    """The program; an empty file where this compiler does not take the source."""
    program = work / "programs" / str(source.relative_to(checkout / "tests")).replace("/", "-")
    if not program.exists():
        program.parent.mkdir(exist_ok=True)
        folder = libraries(clang())
        language = ["-x", "c++"] if source.suffix == ".cpp" else []
        flags = ["-w", "-O1", "-fopenmp", "-fopenmp-targets=x86_64-pc-linux-gnu", f"-I{checkout / 'ompvv'}"]
        link = [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lm", *(["-lstdc++"] if language else [])]
        made = subprocess.run([clang(), *flags, *language, source, *link, "-o", program], capture_output=True)
        if made.returncode != 0:
            program.write_bytes(b"")
    return program


def _run(program: Path, way: str) -> Result:
    if program.stat().st_size == 0:
        return Result(SKIPPED, reason="the compiler refuses it")
    ours = [sys.executable, "-m", "pinning", "run", "--"] if way in VARIABLES else []
    ran = run_plain(
        Path("/usr/bin/timeout"), "120", *ours, program, environment={**os.environ, **VARIABLES.get(way, {})}
    )
    state = PASSED if ran.code == 0 else FAILED
    output = ADDRESSES.sub("0x", f"{ran.code} {ran.out}{ran.errors}")
    return Result(state, output, f"status {ran.code}")

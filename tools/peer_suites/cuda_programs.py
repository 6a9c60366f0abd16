# SPDX-License-Identifier: Apache-2.0
"""CUDA programs that say what they did: except for times, status and output must be as bare."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from commands import run_by
from results import FAILED, PASSED, SKIPPED, Result

LIMIT = 10  # seconds of a bare run
TIMES = re.compile(r"time|second|bandwidth|throughput|/s|\bm?s\b|\bus\b|flops|latency", re.IGNORECASE)
ADDRESSES = re.compile(r"\b0x[0-9a-f]+", re.IGNORECASE)
DIGITS = re.compile(r"[\d.]+(e[+-]?\d+)?")

unsteady: dict[str, set[str]] = {}  # lines, without their digits, in which two bare runs of a program differed
slow: set[str] = set()  # programs that reached the limit


def run_programs(
    commands: Mapping[str, Sequence[str | Path]], way: str, only: Collection[str] | None
) -> dict[str, Result]:
    """The result of each command, by the name of its case; a program runs in its own folder."""
    cases = [case for case in commands if only is None or case in only]
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(cases, pool.map(lambda case: _run(case, commands[case], way), cases), strict=True))


def compiled(sources: Mapping[str, Sequence[Path]], work: Path, *flags: str) -> dict[str, Sequence[str | Path]]:
    """Compile each case's sources to one program with nvcc; the commands that run them."""
    work.mkdir(exist_ok=True)
    nvcc = shutil.which("nvcc") or "nvcc"
    stubs = Path(nvcc).resolve().parents[1] / "lib64" / "stubs"

    def compile_one(case: str) -> None:
        if not (work / case).exists():
            command = [nvcc, "-w", "-arch=native", *sources[case], *flags, f"-L{stubs}", "-lcuda", "-o", work / case]
            with (work / f"{case}.log").open("w") as said:
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, sources))
    return {case: [work / case] for case in sources}


def _run(case: str, command: Sequence[str | Path], way: str) -> Result:
    if not Path(command[0]).exists():
        return Result(SKIPPED, reason="cannot be built here")
    runs = [] if case in slow else [_said(command, way) for _ in range(2 if way == "bare" else 1)]
    if not runs or any(status is None for status, _ in runs):
        slow.update([case] if way == "bare" else [])
        return Result(SKIPPED if case in slow else FAILED, reason="takes too long")
    status, lines = runs[0]
    if way == "bare":
        other = set(lines) ^ set(runs[1][1])
        unsteady.setdefault(case, set()).update(DIGITS.sub("#", line) for line in other)
    steady = [line for line in lines if DIGITS.sub("#", line) not in unsteady.get(case, ())]
    return Result(FAILED if status else PASSED, "\n".join(steady), f"status {status}" if status else "another output")


def _said(command: Sequence[str | Path], way: str) -> tuple[int | None, list[str]]:
    """The status and the lines without times; the status is None if the program took too long."""
    limit = str(LIMIT if way == "bare" else 4 * LIMIT)
    ran = subprocess.run(
        ["timeout", "-k", "2", limit, *run_by(way), *command],
        cwd=Path(command[0]).parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        errors="replace",
    )
    lines = [ADDRESSES.sub("0x", line) for line in ran.stdout.splitlines() if not TIMES.search(line)]
    return (None, []) if ran.returncode in (124, 137) else (ran.returncode, lines)

# SPDX-License-Identifier: Apache-2.0
"""HeCBench: small CUDA programs that make their own data. Except for times, status and output must be as bare."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from commands import STAGED, run_by
from results import FAILED, PASSED, SKIPPED, Result

# With these arguments they run for seconds; with those of the makefiles, for minutes.
PROGRAMS = """
ace 10; adam 10000 20 10; addBiasResidualLayerNorm 10; aidw 10 1 10; aligned-types; asmooth 2048 200 9 10;
atan2 1000000 10; atomicAggregate 100; background-subtract 4096 2048 0 32; bincount 10000000 10; binomial;
bitonic-sort 22 2; bitpermute 10; black-scholes 10; blas-dot 67108864 10; blas-gemm 79 91 83 10;
blockAccess 8192 8192 10; bsearch 8388608 10; burger 2050 2025 10; bwt 1000000; chacha20 1000; cobahh 1000000 10;
concat 10; concurrentKernels 4; convolution1D 16777216 10; cross 10000000 10; crossEntropy 10; dct8x8 2048 2048 10;
dense-embedding 10000 256 10; fft 3 10; floydwarshall 1024 10 16; geam 8192 8192 10; graphExecution; interleave 10;
jenkins-hash 256 16777216 10; knn 10; laplace3d 128 128 128 10 1; matrixT 8192 8192 10; memcpy 16; memtest 10;
nbody 16000 10; overlap; popcount 16777216 10; reverse 10; shuffle 200000 10; simpleMultiDevice 10;
softmax 100000 784 0 10; streamCreateCopyDestroy; streamOrderedAllocation; threadcpy 10; vadd 16384 8192 10;
zoom 1 3 2160 4096 10
"""
COMMANDS = {words[0]: words[1:] for words in map(str.split, PROGRAMS.split(";"))}
FILES = [f"src/{name}-cuda" for name in COMMANDS]
WAYS = ["pinning run", STAGED]
EXPLAINED: dict[str, str] = {}
LIMIT = 10  # seconds of a bare run
TIMES = re.compile(r"time|second|bandwidth|throughput|/s|\bm?s\b|\bus\b|flops", re.IGNORECASE)
DIGITS = re.compile(r"[\d.]+(e[+-]?\d+)?")

unsteady: dict[str, set[str]] = {}  # lines, without their digits, in which two bare runs of a program differed
slow: set[str] = set()  # programs that reached the limit


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    cases = [case for case in COMMANDS if only is None or case in only]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda case: _build(checkout, case), cases))
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(cases, pool.map(lambda case: _run(checkout, case, way), cases), strict=True))


def _folder(checkout: Path, case: str) -> Path:
    return checkout / "src" / f"{case}-cuda"


def _build(checkout: Path, case: str) -> None:
    command = ["make", "-C", _folder(checkout, case), "ARCH=native"]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _run(checkout: Path, case: str, way: str) -> Result:
    folder = _folder(checkout, case)
    if not (folder / "main").exists():
        return Result(SKIPPED, reason="cannot be built here")
    runs = [] if case in slow else [_said(folder, case, way) for _ in range(2 if way == "bare" else 1)]
    if not runs or any(status is None for status, _ in runs):
        slow.update([case] if way == "bare" else [])
        return Result(SKIPPED if case in slow else FAILED, reason="takes too long")
    status, lines = runs[0]
    if way == "bare":
        other = set(lines) ^ set(runs[1][1])
        unsteady.setdefault(case, set()).update(DIGITS.sub("#", line) for line in other)
    steady = [line for line in lines if DIGITS.sub("#", line) not in unsteady.get(case, ())]
    return Result(FAILED if status else PASSED, "\n".join(steady), f"status {status}" if status else "another output")


def _said(folder: Path, case: str, way: str) -> tuple[int | None, list[str]]:
    """The status and the lines without times; the status is None if the program took too long."""
    limit = str(LIMIT if way == "bare" else 4 * LIMIT)
    ran = subprocess.run(
        ["timeout", "-k", "2", limit, *run_by(way), folder / "main", *COMMANDS[case]],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        errors="replace",
    )
    lines = [line for line in ran.stdout.splitlines() if not TIMES.search(line)]
    return (None, []) if ran.returncode in (124, 137) else (ran.returncode, lines)

# SPDX-License-Identifier: Apache-2.0
"""HeCBench: small CUDA programs that make their own data. Except for times, status and output must be as bare."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from commands import STAGED
from cuda_programs import run_programs
from results import Result

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


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    folders = {case: checkout / "src" / f"{case}-cuda" for case in COMMANDS if only is None or case in only}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_build, folders.values()))
    return run_programs({case: [folder / "main", *COMMANDS[case]] for case, folder in folders.items()}, way, only)


def _build(folder: Path) -> None:
    command = ["make", "-C", folder, "ARCH=native"]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

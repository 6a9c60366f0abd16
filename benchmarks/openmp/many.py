# SPDX-License-Identifier: Apache-2.0
"""The cost of many small locks to an OpenMP program: processor time with and without the tool, in turns.

clang-19 -O2 -fopenmp -fopenmp-targets=x86_64-pc-linux-gnu benchmarks/openmp/many.c -o many
python benchmarks/openmp/many.py ./many --json figures.json
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from pinning_command.run import environment

TOOL = {"PINNING_LOCK_MIN_BYTES": "4096"}
VARIANTS: dict[str, tuple[list[str], dict[str, str] | None]] = {
    "without the tool": ([], None),
    "mlock and munlock by hand": (["mlock"], None),
    "the same, and userfaultfd": (["watched"], None),
    "the tool, off": ([], {"PINNING_LOCK_MAPPED": "off"}),
    "the tool, without the watch": ([], {**TOOL, "PINNING_WATCH": "off"}),
    "the tool": ([], TOOL),
}


def main(
    program: Annotated[Path, typer.Argument(help="many.c, compiled for the CPU's devices.", exists=True)],
    count: Annotated[int, typer.Option(help="Buffers.")] = 16000,
    size: Annotated[int, typer.Option(help="Bytes of each.")] = 8192,
    rounds: Annotated[int, typer.Option(help="Turns of each variant.")] = 15,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", dir_okay=False)] = None,
) -> None:
    """Compare the processors' time of a program with and without many locks."""
    turns: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for _ in range(rounds):
        for variant in VARIANTS:
            turns[variant].append(seconds(program.resolve(), count, size, variant))
    plain = turns["without the tool"]
    for variant, taken in turns.items():
        ratios = [one / other for one, other in zip(taken, plain, strict=True)]
        print(
            f"{variant:28} {statistics.median(taken):.3f} s ({min(taken):.3f}..{max(taken):.3f}), "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
        )
    if json_file:
        json_file.write_text(json.dumps(turns, indent=2) + "\n")


def seconds(program: Path, count: int, size: int, variant: str) -> float:
    """Processor seconds of one run."""
    arguments, policy = VARIANTS[variant]
    variables = dict(os.environ)
    if policy is not None:
        variables = {**environment(os.environ), **policy}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([program, str(count), str(size), *arguments], env=variables, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    typer.run(main)

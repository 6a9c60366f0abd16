# SPDX-License-Identifier: Apache-2.0
"""One OpenMP program without the tool, with it, and with buffers locked by hand, in turns.

clang-19 -O2 -fopenmp -fopenmp-targets=nvptx64-nvidia-cuda benchmarks/openmp/transfers.c -o transfers
python benchmarks/openmp/run.py ./transfers --json figures.json
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pinning_command.run import environment

VARIANTS = ("plain", "tool", "by hand")
Figures = dict[str, float]


def main(
    program: Annotated[Path, typer.Argument(help="transfers.c, compiled for the device.", exists=True)],
    mib: Annotated[int, typer.Option(help="The largest buffer.")] = 1024,
    rounds: Annotated[int, typer.Option(help="Turns of each variant.")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", dir_okay=False)] = None,
) -> None:
    """Compare a program's transfers without the tool, with it, and with buffers that it locks itself."""
    console = Console(width=110)
    turns: dict[str, list[Figures]] = {variant: [] for variant in VARIANTS}
    reports = []
    with console.status("") as status:
        for turn in range(rounds):
            for variant in VARIANTS:
                status.update(f"{variant}, {turn + 1} of {rounds}")
                figures, said = measure(program.resolve(), mib, variant)
                turns[variant].append(figures)
                if variant == "tool":
                    reports.append(said)
    medians = {
        name: {variant: statistics.median(turn[name] for turn in turns[variant]) for variant in VARIANTS}
        for name in turns["plain"][0]
    }
    console.print(table(medians))
    print(reports[-1])
    for verdict in verdicts(medians):
        print(verdict)
    if json_file:
        json_file.write_text(json.dumps({"medians": medians, "turns": turns, "report": reports[-1]}, indent=2) + "\n")


def measure(program: Path, mib: int, variant: str) -> tuple[Figures, str]:
    variables: Mapping[str, str] = os.environ
    if variant == "tool":
        variables = environment(os.environ, {"PINNING_REPORT": "-"})
    command = [str(program), str(mib), *(["locked"] if variant == "by hand" else [])]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    figures: Figures = json.loads(done.stdout)
    return figures, done.stderr


def table(medians: Mapping[str, Mapping[str, float]]) -> Table:
    made = Table("", *VARIANTS, "tool : plain", "tool : by hand")
    for name, row in medians.items():
        ratios = (better(name, row["tool"], row["plain"]), better(name, row["tool"], row["by hand"]))
        made.add_row(name, *(f"{row[variant]:.4g}" for variant in VARIANTS), *(f"{ratio:.2f}x" for ratio in ratios))
    return made


def better(name: str, one: float, other: float) -> float:
    """How many times better `one` is: a rate may be higher, a time lower."""
    return one / other if name.endswith("GB/s") else other / one


def verdicts(medians: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The targets for a GPU."""
    large = {name: row for name, row in medians.items() if name.startswith(("map to", "map from", "update"))}
    biggest = [row for name, row in large.items() if name.endswith("GB/s")][-5:]
    small = next(row for name, row in medians.items() if name.startswith("map of 4 KiB"))
    faster = min(row["tool"] / row["plain"] for row in biggest)
    as_by_hand = min(row["tool"] / row["by hand"] for row in biggest)
    checks = {
        f"large transfers at least 4x faster: {faster:.2f}x": faster >= 4,
        f"large transfers within 3 % of those locked by hand: {as_by_hand:.2f}x": as_by_hand >= 0.97,
        "small maps no slower than 3 %": small["tool"] <= 1.03 * small["plain"],
    }
    return [f"{'yes' if met else 'NO '} {name}" for name, met in checks.items()]


if __name__ == "__main__":
    typer.run(main)

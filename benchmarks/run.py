# SPDX-License-Identifier: Apache-2.0
"""Compares the page table and the pinned map with their peers, side by side in one run."""

from __future__ import annotations

import datetime
import importlib.util
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from harness import machine
from harness.compiler import BENCHMARKS, CXX, ROOT
from harness.plot import draw_lookups
from harness.programs import ROWS, Run
from harness.report import Report
from rich.console import Console

RESULTS = BENCHMARKS / "results"
FIGURE = ROOT / "docs" / "figures" / "lookup.png"


def main(
    rows: Annotated[list[str] | None, typer.Argument(help=f"Some of: {', '.join(ROWS)}. All by default.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.", dir_okay=False)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds, at most 10 000 regions: rough figures.")] = False,
) -> None:
    """Compare the page table and the pinned map with their peers, side by side in one run.

    A run of all rows, unless it is quick, also writes benchmarks/results/DATE-MACHINE.md and .json and the plot in
    docs/figures/lookup.png.
    """
    unknown = [row for row in rows or () if row not in ROWS]
    if unknown:
        raise typer.BadParameter(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    if shutil.which(CXX) is None:
        raise typer.BadParameter(f"no C++ compiler: {CXX} is not found; install one, or name it in CXX")
    console = Console()
    run = Run(rows or list(ROWS), quick)
    command = shlex.join(["python", "benchmarks/run.py", *sys.argv[1:]])
    report = Report(run, datetime.date.today().isoformat(), command, machine.facts())
    with console.status("") as status:
        run.execute(status.update)
    report.show(console)

    written = []
    if json:
        json.write_text(report.as_json())
        written.append(json)
    if not quick and not rows:
        RESULTS.mkdir(exist_ok=True)
        stem = f"{report.date}-{machine.slug()}"
        (RESULTS / f"{stem}.md").write_text(report.as_markdown())
        (RESULTS / f"{stem}.json").write_text(report.as_json())
        written += [RESULTS / f"{stem}.md", RESULTS / f"{stem}.json"]
        if importlib.util.find_spec("matplotlib"):
            draw_lookups(run.figures, machine.name(), FIGURE)
            written.append(FIGURE)
        else:
            console.print("[yellow]no plot: matplotlib is missing; `pip install matplotlib` installs it.")
    for path in written:
        console.print(f"wrote {path}", highlight=False)
    if run.failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

# SPDX-License-Identifier: Apache-2.0
"""Programs as they are, and with the preloaded library that stages their copies; and `pinning.copy`, in one run.

python benchmarks/any_program/run.py [--json FILE] [NAME ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pinning_command.run import library

HERE = Path(__file__).parent
LIBRARIES = ["cudart", "cudart-shared", "torch", "cupy", "numba", "jax", "cuda"]
TORCH_PROGRAMS = ["loader", "model", "checkpoint", "shards"]
Figures = dict[str, float]


def figures(command: list[str], preload: str) -> Figures:
    """The figures that a program prints; empty if it cannot run."""
    environment = {**os.environ, "LD_PRELOAD": preload, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode:
        print(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-300:]}", file=sys.stderr)
        return {}
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in done.stdout.splitlines())}


def built(kind: str, folder: Path) -> Path:
    program = folder / kind
    shared = ["-cudart", "shared"] if kind.endswith("shared") else []
    subprocess.run(["nvcc", "-std=c++20", "-O2", str(HERE / "copies.cu"), "-o", str(program), *shared], check=True)
    return program


def main(
    programs: Annotated[list[str] | None, typer.Argument()] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", dir_okay=False)] = None,
) -> None:
    """Compare programs without the library and with it."""
    measured: dict[str, dict[str, Figures]] = {}
    script = [sys.executable, "-P", str(HERE / "library.py")]
    with tempfile.TemporaryDirectory() as folder:
        for name in programs or [*LIBRARIES, *TORCH_PROGRAMS]:
            if name.startswith("cudart"):
                command = [str(built(name, Path(folder))), "time"]
            elif name in TORCH_PROGRAMS:
                command = [sys.executable, "-P", str(HERE / "programs.py"), name]
            else:
                command = [*script, name]
            measured[name] = {"bare": figures(command, ""), "preloaded": figures(command, str(library()))}
    measured["pinning.copy"] = {"bare": figures([*script, "pinning"], ""), "preloaded": {}}
    table = Table("program", "copy", "bare", "preloaded", "ratio")
    for name, variants in measured.items():
        for copy, bare in variants["bare"].items():
            preloaded = variants["preloaded"].get(copy)
            ratio = f"{preloaded / bare:.2f}" if preloaded else ""
            table.add_row(name, copy, f"{bare:.2f}", f"{preloaded:.2f}" if preloaded else "", ratio)
    Console(width=100).print(table)
    if json_file:
        json_file.write_text(json.dumps(measured, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)

# SPDX-License-Identifier: Apache-2.0
"""Whether programs do the same with the tool as without it, on whatever device they were compiled for.

python benchmarks/openmp/same.py ./nested ./threads ./crossing
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from pinning_command.run import environment

POLICIES: dict[str, dict[str, str]] = {
    "as by default": {},
    "everything": {"PINNING_LOCK_MIN_BYTES": "1", "PINNING_LOCK_AFTER": "1"},
    "small buffers": {"PINNING_LOCK_MIN_BYTES": "4096"},
    "until unmapped": {"PINNING_LOCK_MIN_BYTES": "4096", "PINNING_LOCK_UNTIL": "unmapped"},
    "little room": {"PINNING_LOCK_MIN_BYTES": "4096", "PINNING_LOCK_AFTER": "1", "PINNING_LOCK_BUDGET": "300KiB"},
}


def main(programs: Annotated[list[Path], typer.Argument(exists=True)], rounds: int = 3) -> None:
    """Run each program without the tool and with it under several policies; exits with 1 where they differ."""
    differ = False
    for program in programs:
        plain = outcome(program, dict(os.environ))
        for policy, variables in POLICIES.items():
            watched = environment({**os.environ, **variables}, {"PINNING_REPORT": "-"})
            same = all(outcome(program, watched)[:2] == plain[:2] for _ in range(rounds))
            print(f"{'same' if same else 'DIFFERS'}  {program.name}, {policy}")
            if not same:
                print(plain, outcome(program, watched), sep="\n")
            differ = differ or not same
    raise typer.Exit(int(differ))


def outcome(program: Path, variables: dict[str, str]) -> tuple[int, str, str]:
    done = subprocess.run([program.resolve()], env=variables, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


if __name__ == "__main__":
    typer.run(main)

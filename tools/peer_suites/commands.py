# SPDX-License-Identifier: Apache-2.0
"""Commands that several suites run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from results import Result, of_junit

import pinning

IN_PLACE = Path(__file__).parent / "in_place"
STAGED = "pinning run, copies of 1 byte"
HELD = "a lock is held and watched"


def run_by(way: str, python: str | Path = sys.executable) -> list[str | Path]:
    """The prefix of a command: `pinning run` for ways that begin so; STAGED stages even copies of one byte."""
    small = ["/usr/bin/env", "PINNING_COPIES_MIN_BYTES=1"] if way == STAGED else []
    return [*small, python, "-P", "-m", "pinning", "run", "--"] if way.startswith("pinning run") else []


def holds(way: str, work: Path) -> dict[str, str]:
    """The variables with which a program's processes hold a watched lock, if the way is HELD."""
    if way != HELD:
        return {}
    library, ours = work / "held.so", pinning.build.library_dirs()[0]
    options = ["-shared", "-fPIC", f"-I{pinning.build.include_dirs()[0]}", f"-L{ours}", f"-Wl,-rpath,{ours}"]
    subprocess.run(["cc", *options, IN_PLACE / "held.c", "-lpinning", "-o", library], check=True)
    return {"LD_PRELOAD": str(library)}


def pytest(
    folder: Path,
    work: Path,
    way: str,
    only: Collection[str] | None,
    *arguments: str,
    python: str | Path = sys.executable,
    plugin: str | None = None,
    **variables: str,
) -> dict[str, Result]:
    """Run the tests of a folder with pytest; `plugin` of `in_place` is loaded first, and reads PEER_SUITES_WAY."""
    report, log = (work / f"{way.replace(' ', '-')}.{ending}" for ending in ("xml", "log"))
    report.unlink(missing_ok=True)
    # A case is called FILE.CLASS.TEST[PARAMETERS], of which -k takes the test's name.
    names = sorted({case.split("[")[0].rsplit(".", 1)[-1] for case in only or ()})
    chosen = ["-k", " or ".join(names)] if names else []
    placed = ["-p", plugin] if plugin else []
    options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--junit-xml", report]
    path = [str(IN_PLACE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PEER_SUITES_WAY": way, **variables}
    environment.pop("PYTHONSAFEPATH", None)
    with log.open("w") as output:
        subprocess.run(
            [*run_by(way, python), python, "-m", "pytest", *placed, *options, *chosen, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return of_junit(report)

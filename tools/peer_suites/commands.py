# SPDX-License-Identifier: Apache-2.0
"""Commands that several suites run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from results import Result, of_junit

IN_PLACE = Path(__file__).parent / "in_place"


def pytest(
    folder: Path, work: Path, way: str, only: Collection[str] | None, *arguments: str, before: Collection[str] = ()
) -> dict[str, Result]:
    """The tests of a folder by this interpreter's pytest, and by the plugin of the suite's name ours in place."""
    report = work / f"{way.replace(' ', '-')}.xml"
    report.unlink(missing_ok=True)
    # Our case is FILE.CLASS.TEST[PARAMETERS], of which -k takes the test's name.
    names = sorted({case.split("[")[0].rsplit(".", 1)[-1] for case in only or ()})
    chosen = ["-k", " or ".join(names)] if names else []
    plugin = [] if way == "bare" else ["-p", f"{work.name}_in_place"]
    command = [*before, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *plugin]
    environment = {**os.environ, "PYTHONPATH": str(IN_PLACE), "PEER_SUITES_WAY": way}
    environment.pop("PYTHONSAFEPATH", None)
    with (work / f"{way.replace(' ', '-')}.log").open("w") as log:
        subprocess.run(
            [*command, *chosen, "--junit-xml", report, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    return of_junit(report)

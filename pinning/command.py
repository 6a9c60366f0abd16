# SPDX-License-Identifier: Apache-2.0
"""``pinning`` and ``python -m pinning``: the command line, and what builds ask for, which needs no extra."""

import sys
from collections.abc import Callable

import pinning

ANSWERS: dict[str, Callable[[], object]] = {
    "--version": lambda: f"pinning {pinning.__version__}",
    "--cmake-dir": pinning.cmake_dir,
    "--pkgconfig-dir": pinning.pkgconfig_dir,
}


def main() -> None:
    """Run the command of ``sys.argv``."""
    if answer := ANSWERS.get(" ".join(sys.argv[1:])):
        print(answer())
        return
    try:
        from pinning.cli import app
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        sys.exit("pinning's commands need typer and rich: pip install 'pinning[cli]'")
    app(prog_name="pinning")

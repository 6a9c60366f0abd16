# SPDX-License-Identifier: Apache-2.0
"""``pinning`` and ``python -m pinning``: the options for builds, or else the command line, if it is installed."""

import sys

from pinning.cli.answers import ANSWERS


def main() -> None:
    """Run the command of ``sys.argv``."""
    if answer := ANSWERS.get(" ".join(sys.argv[1:])):
        print(answer())
        return
    try:
        from pinning.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        sys.exit("pinning's commands need typer and rich: pip install typer rich")
    app(prog_name="pinning")

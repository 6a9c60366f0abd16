# SPDX-License-Identifier: Apache-2.0
"""``pinning`` and ``python -m pinning``. Only the commands that need `pinning` import it: that takes a while."""

import sys


def main() -> None:
    """Run the command of ``sys.argv``: ``run`` and the options for builds work without the ``cli`` extra."""
    words = sys.argv[1:]
    if words[:1] == ["run"]:
        from pinning_command import run

        if given := run.parsed(words[1:]):
            sys.exit(run.start(*given))
    elif len(words) == 1 and words[0].startswith("--"):
        from pinning_command.answers import ANSWERS

        if answer := ANSWERS.get(words[0]):
            print(answer())
            return
    try:
        from pinning_command.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        sys.exit("pinning's commands need typer and rich: pip install typer rich")
    app(prog_name="pinning")

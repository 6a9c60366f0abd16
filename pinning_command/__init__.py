# SPDX-License-Identifier: Apache-2.0
"""``pinning`` and ``python -m pinning``. Only the commands that need `pinning` import it: that takes a while."""

import codecs
import io
import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Run the command of ``sys.argv``: ``run`` and the options for builds work without the ``cli`` extra."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # else typer exits with 1, which means that nothing can be locked
    words = sys.argv[1:]
    if words[:1] == ["run"]:
        from pinning_command import run

        if given := run.parsed(words[1:]):
            sys.exit(run.start(*given))
    elif words and words[0].startswith("--"):
        from pinning_command.answers import ANSWERS

        if all(word in ANSWERS for word in words):
            for word in words:
                print(ANSWERS[word]())
            return
    try:
        from pinning_command.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        sys.exit("pinning's commands need typer and rich: pip install typer rich")
    _prepare_output()
    try:
        try:
            app(prog_name="pinning")
        finally:
            sys.stdout.flush()
    except OSError as error:  # the output cannot be written
        with suppress(OSError):  # no descriptor is left
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python writes at exit
        sys.exit(f"pinning: {error}")


def _prepare_output() -> None:
    """Standard output may be closed, or of an encoding that lacks a character."""
    if sys.stdout is None:
        sys.stdout = io.StringIO()
    codecs.register_error("pinning", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="pinning")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """As the handler "replace" of codecs, but the marks for yes and no remain different."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join({"✓": "+", "✗": "x"}.get(character, "?") for character in lacking), error.end

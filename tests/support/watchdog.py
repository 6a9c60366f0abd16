# SPDX-License-Identifier: Apache-2.0
"""Ends a test that pytest's own limit cannot end, because the process hangs in native code.

A process of its own, which needs nothing of the one that it watches: it reads each test's name and seconds, and when
they are over prints the stacks of all threads, and kills the process.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from stacks import stacks

PR_SET_PTRACER = 0x59616D61


class Watchdog:
    """Watches this process from now on."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
            start_new_session=True,  # not ended by Ctrl-C, but by the end of the process
        )
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, self._process.pid, 0, 0, 0)  # fails where any process may look
        self._owner = os.getpid()

    def begin(self, name: str, seconds: float) -> None:
        """A test begins; `end` is to be called within `seconds`."""
        self._tell(f"{seconds} {name}")

    def end(self) -> None:
        self._tell("")

    def _tell(self, line: str) -> None:
        if os.getpid() == self._owner:  # not in a child that a test has forked
            assert self._process.stdin
            print(line, file=self._process.stdin, flush=True)


def main(watched: int) -> None:
    test, limit = "", None
    while select.select([sys.stdin], [], [], limit)[0]:
        line = sys.stdin.readline()
        if not line:
            return
        seconds, _, test = line.strip().partition(" ")
        limit = float(seconds) if seconds else None
    print(f"\n{test} did not end within {limit} s:\n{stacks(watched)}", file=sys.stderr, flush=True)
    os.kill(watched, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))

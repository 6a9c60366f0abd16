# SPDX-License-Identifier: Apache-2.0
"""``build_wheel.py FOLDER``: builds the wheel of this repository into a folder with pip, and shows the progress.

The folder is replaced only when the wheel is complete; a build that ends before leaves the old folder.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import deque
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).parent.parent
STAGES = {
    "Installing build dependencies": "fetching what the build needs",
    "Preparing metadata": "asking CMake",
    "Building wheel": "generating and compiling",
}
STEP = re.compile(r"\s*\[(\d+)/(\d+)\] ")  # as Ninja prints it: [3/80] Building ...


class Progress:
    """One line, updated in place, on a terminal; elsewhere a line for each stage and each tenth of its steps."""

    def __init__(self) -> None:
        self.begin = monotonic()
        self.terminal = sys.stdout.isatty()
        self.stage_now = ""
        self.tenth = 0

    def stage(self, what: str) -> None:
        if what != self.stage_now:
            self.stage_now = what
            self._say(what)

    def step(self, done: int, total: int) -> None:
        tenth = 10 * done // total
        if self.terminal or tenth > self.tenth:
            self.tenth = tenth
            self._say(f"{self.stage_now}: {done} of {total}")

    def end(self) -> None:
        if self.terminal:
            print("\r\033[K", end="", flush=True)

    def _say(self, what: str) -> None:
        minutes, seconds = divmod(int(monotonic() - self.begin), 60)
        line = f"  {minutes}:{seconds:02} {what}"
        print(f"\r\033[K{line}" if self.terminal else line, end="" if self.terminal else "\n", flush=True)


def build(into: Path) -> int:
    """Run pip; returns its exit code. If it fails, its last lines are shown."""
    last: deque[str] = deque(maxlen=40)
    progress = Progress()
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--disable-pip-version-check", "--no-deps"]
    with subprocess.Popen(
        [*command, "--wheel-dir", into, ROOT], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout
        for line in pip.stdout:
            last.append(line)
            if step := STEP.match(line):
                progress.step(int(step[1]), int(step[2]))
            elif stage := next((said for begins, said in STAGES.items() if line.lstrip().startswith(begins)), None):
                progress.stage(stage)
    progress.end()
    if pip.returncode:
        print(*last, sep="", file=sys.stderr)
    return pip.returncode


def main() -> int:
    folder = Path(sys.argv[1]).absolute()
    growing = folder.with_name(f"{folder.name}.growing")
    shutil.rmtree(growing, ignore_errors=True)
    try:
        if code := build(growing):
            return code
    except KeyboardInterrupt:
        print("\nInterrupted: nothing is built; make again begins anew.", file=sys.stderr)
        return 130
    shutil.rmtree(folder, ignore_errors=True)
    growing.rename(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

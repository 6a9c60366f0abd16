# SPDX-License-Identifier: Apache-2.0
"""The rows and the programs behind them. Each program prints `Figures`, one a line, as it goes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from harness import compiler
from harness.figures import Figures, count
from harness.peers import LLVM, PEERS, DebianLibrary, Peer

SKIPPED = 77  # the exit status of a program that this machine cannot run


@dataclass(frozen=True)
class Row:
    """The programs that one word on the command line runs.

    Attributes
    ----------
    native, python : str
        The names of its programs.
    rounds : int
        How often each contender takes its turn.
    """

    says: str
    rounds: int
    native: str | None = None
    python: str | None = None


ROWS = {
    "find": Row("looking up an address in C++", 9, native="find"),
    "update": Row("inserting and removing in C++", 15, native="update"),
    "memory": Row("resident memory", 2, native="memory"),
    "writer": Row("a reader beside a writer that never pauses", 9, native="writer"),
    "vendor": Row("a lookup while a vendor's call takes one second", 3, native="vendor_call"),
    "python": Row("looking up one pointer from Python", 11, python="lookup"),
    "batch": Row("looking up a million pointers from Python", 7, python="batch"),
    "pairs": Row("locking and unlocking what is locked already", 11, native="pairs", python="pairs"),
    "buffers": Row("locking touched memory on a GPU", 5, python="buffers"),
    "queues": Row("submitting work to a queue of the host", 11, python="queues"),
    "copies": Row("copying between arrays and a GPU", 7, python="copies"),
    "pools": Row("allocating and freeing in the order of a queue", 7, python="pools"),
}


@dataclass
class Run:
    """The output of the programs of some rows.

    Attributes
    ----------
    skipped, failed : dict
        The reason, by row.
    """

    rows: Sequence[str]
    quick: bool
    figures: list[Figures] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    missing: list[Peer] = field(default_factory=list)

    def execute(self, progress: Callable[[str], object]) -> None:
        """Build and run everything, one program at a time."""
        progress("looking for peers")
        for peer in PEERS:
            if not set(peer.rows) & set(self.rows):
                continue
            version = peer.version()
            if version is None:
                self.missing.append(peer)
            else:
                self.versions[peer.name] = version
        for name in self.rows:
            try:
                self._execute_row(name, progress)
            except RuntimeError as error:
                self.failed[name] = str(error)

    def _execute_row(self, name: str, progress: Callable[[str], object]) -> None:
        row = ROWS[name]
        limits = [str(min(row.rounds, 3) if self.quick else row.rounds), "10000" if self.quick else "1000000"]
        if name == "pairs" and LLVM.name in self.versions:
            progress(f"{name}: compiling LLVM's map")
            limits.append(str(compiler.llvm_map()))
        if row.native:
            progress(f"{name}: compiling")
            libraries = [peer for peer in PEERS if isinstance(peer, DebianLibrary) and peer.name in self.versions]
            flags = [flag for peer in libraries for flag in (f"-D{peer.macro}", f"-l{peer.library}")]
            self._collect(name, [str(compiler.program(row.native, flags)), *limits], progress)
        if row.python:
            if not importlib.util.find_spec("pagetable") or not importlib.util.find_spec("pinning"):
                self.skipped[name] = "pinning is not installed for this Python: pip install ."
                return
            compiler.empty_module()
            script = compiler.BENCHMARKS / "python" / f"{row.python}.py"
            self._collect(name, [sys.executable, str(script), *limits], progress)

    def _collect(self, name: str, command: list[str], progress: Callable[[str], object]) -> None:
        place = f"{name} ({list(self.rows).index(name) + 1} of {len(self.rows)})"
        progress(f"{place}: {ROWS[name].says}")
        try:
            for figures in _lines(command):
                self.figures.append(figures)
                progress(f"{place}: {figures.kind}, {count(figures.regions)} regions, {figures.series}")
        except UnableError as reason:
            self.skipped[name] = str(reason)


class UnableError(Exception):
    """This machine cannot run a program."""


def _lines(command: list[str]) -> Iterator[Figures]:
    path = os.pathsep.join(filter(None, (str(compiler.BUILD), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    # Not a pipe: a program with many warnings would block, because the pipe is not read meanwhile.
    with tempfile.TemporaryFile("w+") as errors:
        program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        assert program.stdout is not None
        with program:
            try:
                for line in program.stdout:
                    yield Figures.parse(line)
            except BaseException:
                program.kill()
                raise
        errors.seek(0)
        said = errors.read().strip()
    if program.returncode == SKIPPED:
        raise UnableError(said)
    if program.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {program.returncode}:\n{said}")

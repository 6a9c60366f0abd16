# SPDX-License-Identifier: Apache-2.0
"""Compile OpenMP programs for LLVM's CPU devices, and run them with and without the tool."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pinning

TOOL = pinning.build.library_dirs()[0] / "libpinning_run.so"
EXAMPLES = Path(__file__).parents[2] / "examples" / "openmp"
SOURCES = Path(__file__).parent / "sources"


def kernel_tells() -> bool:
    """Whether the kernel reports memory that is unmapped, by userfaultfd."""
    number = {"x86_64": 323, "aarch64": 282}.get(platform.machine(), -1)
    user_mode_only = 1
    file = int(ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_int(user_mode_only)))
    if file >= 0:
        os.close(file)
    return file >= 0


class MissingClangError(Exception):
    """There is no compiler that offloads; the message says what to install."""


NEEDS = "needs clang with OpenMP offloading: apt-get install clang-19 clang-tools-19 libomp-19-dev"


def clang() -> str:
    """The compiler that offloads to the CPU."""
    found = shutil.which("clang-19") or shutil.which("clang")
    if found is None or not (libraries(found) / "libomptarget.so").exists():
        raise MissingClangError(NEEDS)
    if shutil.which("clang-offload-packager", path=str(Path(found).resolve().parent)) is None:
        raise MissingClangError(NEEDS)
    return found


@cache
def libraries(compiler: str) -> Path:
    """Folder of the compiler's OpenMP runtime."""
    command = [compiler, "-print-resource-dir"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()).resolve().parents[1]


def compile_program(source: Path, program: Path, *options: str) -> Path:
    compiler = clang()
    folder = libraries(compiler)
    target = ["-fopenmp", "-fopenmp-targets=x86_64-pc-linux-gnu", f"-L{folder}", f"-Wl,-rpath,{folder}"]
    subprocess.run(
        [compiler, "-O1", "-Wall", "-Werror", *target, *options, str(source), "-o", str(program)], check=True
    )
    return program


def where_the_runtime_is() -> dict[str, str]:
    """Variables with which the loader finds libomp.so, by which name libomptarget finds the tools' interface."""
    try:
        return {
            "LD_LIBRARY_PATH": ":".join([str(libraries(clang())), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
        }
    except MissingClangError:
        return {}


@dataclass(frozen=True)
class Ran:
    """Exit status and output of a program. `said`: the tool's lines on standard error, without ``pinning: ``."""

    code: int
    out: str
    errors: str

    @property
    def said(self) -> list[str]:
        return [line.removeprefix("pinning: ") for line in self.errors.splitlines() if line.startswith("pinning: ")]

    @property
    def locked(self) -> int:
        """Number of locked buffers in the report."""
        return int(self._figure(r"(\d+) buffers locked"))

    def moved(self, direction: str) -> tuple[int, int]:
        """Numbers of transfers ``"to"`` or ``"from"`` devices, of locked and of other memory."""
        line = rf"{direction} devices: .* in (\d+) transfers of locked memory, .* in (\d+) of other"
        return int(self._figure(line)), int(self._figure(line, 2))

    @property
    def refused(self) -> list[str]:
        return [line.removeprefix("not locked: ") for line in self.said if line.startswith("not locked: ")]

    def _figure(self, pattern: str, group: int = 1) -> str:
        for line in self.said:
            if found := re.match(pattern, line):
                return found[group]
        raise AssertionError(f"{pattern} is not in {self.errors}")


def run(
    program: Path,
    *arguments: object,
    preload: bool = True,
    before: Callable[[], None] | None = None,
    **variables: object,
) -> Ran:
    """Run a program with the tool, loaded first as by `pinning run` or by the runtime; `variables` in lower case."""
    more = {f"PINNING_{name.upper()}": str(value) for name, value in variables.items()}
    tool = {"LD_PRELOAD" if preload else "OMP_TOOL_LIBRARIES": str(TOOL), "PINNING_REPORT": "-"}
    return run_plain(program, *arguments, before=before, environment={**os.environ, **tool, **more})


def run_plain(
    program: Path,
    *arguments: object,
    before: Callable[[], None] | None = None,
    environment: dict[str, str] | None = None,
) -> Ran:
    with tidied():
        done = subprocess.run(
            [program, *map(str, arguments)],
            env={**(environment or os.environ), **where_the_runtime_is()},
            preexec_fn=before,
            capture_output=True,
            text=True,
            timeout=600,
        )
    return Ran(done.returncode, done.stdout, done.stderr)


@contextmanager
def tidied() -> Iterator[None]:
    """Delete the files that LLVM's CPU devices leave in /tmp, whatever TMPDIR says: one for each device used.

    One program at a time, because such a file does not show which program made it.
    """
    folder = os.open("/tmp", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    before = set(Path("/tmp").glob("tmpfile_??????"))
    try:
        yield
    finally:
        for file in set(Path("/tmp").glob("tmpfile_??????")) - before:
            with suppress(OSError):
                file.unlink()
        os.close(folder)

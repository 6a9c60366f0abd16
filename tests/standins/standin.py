# SPDX-License-Identifier: Apache-2.0
"""Build a vendor's stand-in driver, and control it in a process that has loaded it.

Each vendor has a module beside this one, lib<name>.py, whose `DRIVER` describes the build:

    folder = libcuda.DRIVER.build(tmp_path)                                # MissingError says what to install
    subprocess.run(program, env=libcuda.DRIVER.environment(folder, "devices=2"))

Only a process started with that environment has the stand-in as its driver, so tests on the stand-in and tests on a
real driver can share a run. standin.h documents what every stand-in understands.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent

# A function that the vendor's header does not declare, or declares otherwise, fails to compile.
STRICT = ["-Werror=missing-prototypes", "-Werror=implicit-function-declaration"]


class MissingError(Exception):
    """Something that building or using a stand-in needs is not installed; the message says what to install."""


class StandIn:
    """The stand-in in this process, logging to the file `log`."""

    def __init__(self, library: str, log: Path) -> None:
        self._library = ctypes.CDLL(library)
        self._library.standin_configure.argtypes = [ctypes.c_char_p]
        self._library.standin_registrations.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._library.standin_registrations.restype = ctypes.c_size_t
        self._log = log

    def configure(self, text: str = "") -> None:
        """Start again: an empty log, no failures or delays but those in `text`; delayed calls continue."""
        self._library.standin_configure(f"newlog={self._log};{text}".encode())

    def calls(self, function: str = "") -> list[str]:
        """The calls since `configure`, or those of one function: its name and arguments, separated by spaces."""
        calls = self._log.read_text().splitlines()
        return [call.strip() for call in calls if not function or call.split()[0] == function]

    def wait_for(self, function: str, calls: int = 1) -> None:
        """Wait until other threads have called a function so many times since `configure`."""
        while len(self.calls(function)) < calls:
            time.sleep(0.001)

    def registrations(self) -> set[tuple[int, int]]:
        """Host address and size of everything registered."""
        count = self._library.standin_registrations(None, 0)
        pairs = (ctypes.c_uint64 * (2 * count))()
        self._library.standin_registrations(pairs, count)
        return set(zip(pairs[::2], pairs[1::2], strict=True))


@dataclass(frozen=True)
class Driver:
    """A stand-in driver.

    Attributes
    ----------
    soname : str
        Name of the file and SONAME, such as ``"libcuda.so.1"``.
    source : str
        Its C file, relative to this folder.
    variable : str
        Environment variable that configures it at load, such as ``"STANDIN_CUDA"``.
    includes : callable
        The vendor's include folders; raises MissingError.
    options : sequence of str
        More options for the compiler, such as ``"-D__HIP_PLATFORM_AMD__"``.
    variables : mapping of str to str
        More environment variables of a process; ``{folder}`` in a value becomes the folder of the stand-in.
    """

    soname: str
    source: str
    variable: str
    includes: Callable[[], Sequence[Path]]
    options: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def build(self, folder: Path) -> Path:
        """Compile it into `folder`, and return that."""
        self.compile(HERE / self.source, folder / self.soname).check_returncode()
        return folder

    def compile(self, source: Path, library: Path) -> subprocess.CompletedProcess[str]:
        """Compile `source` instead of its own; may fail, with the compiler's output in `stderr`."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if not compiler:
            raise MissingError(f"the stand-in {self.soname} needs a C compiler: apt-get install gcc")
        folders = [
            f"-I{HERE}",
            f"-I{(HERE / self.source).parent}",
            *(f"-isystem{folder}" for folder in self.includes()),
        ]
        dialect = ["-std=gnu11", "-D_GNU_SOURCE"]
        strict = ["-Wall", "-Wextra", "-Wno-format-zero-length", *STRICT, *self.options, *folders]
        shared = ["-O1", "-g", "-shared", "-fPIC", "-pthread", f"-Wl,-soname,{self.soname}", "-o", str(library)]
        done = subprocess.run([compiler, *dialect, *strict, str(source), *shared], text=True, stderr=subprocess.PIPE)
        print(done.stderr, end="")
        return done

    def environment(self, folder: Path, text: str = "", base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The environment of a process whose driver is the stand-in in `folder`, configured by `text`."""
        paths = [str(folder), *filter(None, [base.get("LD_LIBRARY_PATH")])]
        more = {name: value.format(folder=folder) for name, value in self.variables.items()}
        return {**base, "LD_LIBRARY_PATH": os.pathsep.join(paths), **more, self.variable: text}

    def live(self, *kinds: str) -> dict[str, int]:
        """How many objects of these kinds, such as "allocations", there are in the stand-in of this process."""
        standin_live = ctypes.CDLL(self.soname).standin_live
        standin_live.restype = ctypes.c_size_t
        return {kind: standin_live(kind.encode()) for kind in kinds}

    def standin(self, log: Path) -> StandIn:
        """The stand-in in this process, which was started with its environment."""
        return StandIn(self.soname, log)

# SPDX-License-Identifier: Apache-2.0
"""Builds the stand-in for libcuda.so.1 (cuda/libcuda.c says what it does) and talks to it in a process that loaded it.

    folder = build(tmp_path)                                     # MissingError says what to install
    subprocess.run(program, env=environment(folder, "devices=2"))

A process takes the stand-in for the driver when it is started with that environment, and no other process does, so
tests on the stand-in and tests on a real driver can share a run.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).parent / "cuda" / "libcuda.c"


class MissingError(Exception):
    """Something that building the stand-in needs is not installed."""


def header() -> Path:
    """The cuda.h of the installed nvidia-cuda-runtime, under whichever of its names it goes."""
    for distribution in importlib.metadata.distributions():
        if distribution.name.startswith("nvidia-cuda-runtime"):
            for file in distribution.files or []:
                if file.name == "cuda.h":
                    return Path(str(distribution.locate_file(file)))
    raise MissingError("the stand-in libcuda needs cuda.h: pip install nvidia-cuda-runtime")


def build(folder: Path) -> Path:
    """Compile the stand-in into `folder` and return it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise MissingError("the stand-in libcuda needs a C compiler: apt-get install gcc")
    # A function that cuda.h does not declare fails to compile, as one declared otherwise does.
    undeclared = ["-Werror=missing-prototypes", "-Werror=implicit-function-declaration"]
    strict = ["-std=gnu11", "-Wall", "-Wextra", *undeclared, "-O1", "-g", f"-I{header().parent}"]
    library = ["-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so.1")]
    subprocess.run([compiler, *strict, str(SOURCE), *library], check=True)
    return folder


def environment(folder: Path, text: str = "", base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of a process whose driver is to be the stand-in in `folder`, configured by `text`."""
    paths = [str(folder), *filter(None, [base.get("LD_LIBRARY_PATH")])]
    return {**base, "LD_LIBRARY_PATH": os.pathsep.join(paths), "STANDIN_CUDA": text}


class StandIn:
    """The stand-in in this process, logging to the file `log`."""

    def __init__(self, log: Path) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._library.standin_configure.argtypes = [ctypes.c_char_p]
        self._library.standin_registrations.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._library.standin_registrations.restype = ctypes.c_size_t
        self._log = log

    def configure(self, text: str = "") -> None:
        """Begin anew: an empty log, no failures or delays but those in `text`; whoever is being delayed goes on."""
        self._log.write_bytes(b"")
        self._library.standin_configure(f"log={self._log};{text}".encode())

    def calls(self, function: str = "") -> list[str]:
        """The calls since `configure`, or those of one function: its name and arguments, parted by spaces."""
        calls = self._log.read_text().splitlines()
        return [call.strip() for call in calls if not function or call.split()[0] == function]

    def registrations(self) -> set[tuple[int, int]]:
        """Host address and size of everything registered."""
        count = self._library.standin_registrations(None, 0)
        pairs = (ctypes.c_uint64 * (2 * count))()
        self._library.standin_registrations(pairs, count)
        return set(zip(pairs[::2], pairs[1::2], strict=True))

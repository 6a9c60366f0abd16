# SPDX-License-Identifier: Apache-2.0
"""The peers that we are compared with, whether they are installed, and the commands that install them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
from dataclasses import dataclass

from harness.compiler import compiles


@dataclass(frozen=True)
class Peer:
    """A peer, which may be missing.

    Attributes
    ----------
    rows : tuple of str
        The rows that it appears in.
    install : str
        The command that installs it.
    """

    name: str
    rows: tuple[str, ...]
    install: str

    def version(self) -> str | None:
        """The installed version; None if it is missing."""
        raise NotImplementedError


@dataclass(frozen=True)
class DebianLibrary(Peer):
    package: str
    header: str
    library: str

    @property
    def macro(self) -> str:
        return f"HAVE_{self.name.upper()}"

    def version(self) -> str | None:
        if not compiles(f"#include <{self.header}>\nint main() {{}}", f"-l{self.library}"):
            return None
        return _debian_version(self.package)


@dataclass(frozen=True)
class Clang(Peer):
    def version(self) -> str | None:
        runtime = "int omp_get_num_devices(void); int main() { return omp_get_num_devices() < 0; }"
        flags = ["-x", "c", "-", "-o", "/dev/null", "-fopenmp", "-fopenmp-targets=x86_64-pc-linux-gnu"]
        if shutil.which("clang-19") is None:
            return None
        made = subprocess.run(["clang-19", *flags], input=runtime, text=True, capture_output=True)
        return None if made.returncode else _debian_version("libomp-19-dev")


@dataclass(frozen=True)
class PythonModule(Peer):
    module: str

    def version(self) -> str | None:
        return importlib.metadata.version(self.module) if importlib.util.find_spec(self.module) else None


def _debian_version(package: str) -> str:
    if shutil.which("dpkg-query"):
        asked = subprocess.run(["dpkg-query", "-Wf${Version}", package], text=True, capture_output=True)
        if asked.returncode == 0:
            return asked.stdout
    return "of unknown version"


_INDEX = ("find", "update", "memory", "writer")
LLVM = Clang("LLVM", ("pairs",), "apt-get install clang-19 libomp-19-dev")
PEERS: tuple[Peer, ...] = (
    DebianLibrary("UCX", _INDEX, "apt-get install libucx-dev", "libucx-dev", "ucs/datastruct/pgtable.h", "ucs"),
    DebianLibrary("critnib", _INDEX, "apt-get install libcritnib-dev", "libcritnib-dev", "critnib.h", "critnib"),
    LLVM,
    PythonModule("intervaltree", ("python",), "pip install intervaltree", "intervaltree"),
    PythonModule("torch", ("python", "buffers"), "pip install torch", "torch"),
)

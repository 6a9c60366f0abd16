# SPDX-License-Identifier: Apache-2.0
"""Compiles the native programs, as a distribution would: -O2, for any machine of the architecture."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent
ROOT = BENCHMARKS.parent
BUILD = ROOT / "build" / "benchmarks"

CXX = os.environ.get("CXX", "g++")
CXX_FLAGS = ("-std=c++20", "-O2")
INCLUDES = (f"-I{ROOT / 'pagetable' / 'include'}", f"-I{ROOT / 'native' / 'include'}")


def compiles(source: str, *flags: str) -> bool:
    command = [CXX, "-x", "c++", "-", "-o", "/dev/null", *flags]
    return subprocess.run(command, input=source, text=True, capture_output=True).returncode == 0


def program(name: str, flags: list[str]) -> Path:
    """``native/NAME.cpp`` as an executable."""
    made = BUILD / name
    _run(CXX, *CXX_FLAGS, *INCLUDES, BENCHMARKS / "native" / f"{name}.cpp", "-o", made, "-pthread", "-ldl", *flags)
    return made


def llvm_map() -> Path:
    """``native/llvm_map.cpp`` as a library that brings LLVM's offload runtime with it."""
    made = BUILD / "libllvm_map.so"
    source = BENCHMARKS / "native" / "llvm_map.cpp"
    offload = ("-fopenmp", "-fopenmp-targets=x86_64-pc-linux-gnu")
    folder = Path(shutil.which("clang-19") or "clang-19").resolve().parent.parent / "lib"
    runtime = (f"-L{folder}", f"-Wl,-rpath,{folder}")
    _run("clang-19", *CXX_FLAGS, *offload, "-fPIC", "-shared", source, "-o", made, *runtime, "-lstdc++")
    return made


def empty_module() -> None:
    """``python/empty.pyx`` as a Python module in the build folder."""
    generated = BUILD / "empty.c"
    made = BUILD / f"empty{sysconfig.get_config_var('EXT_SUFFIX')}"
    _run(sys.executable, "-m", "cython", BENCHMARKS / "python" / "empty.pyx", "-o", generated)
    include = sysconfig.get_path("include")
    _run(os.environ.get("CC", "gcc"), "-O3", "-DNDEBUG", "-fPIC", "-shared", f"-I{include}", generated, "-o", made)


def _run(*command: str | Path) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(str(word) for word in command)}\n{done.stderr}")

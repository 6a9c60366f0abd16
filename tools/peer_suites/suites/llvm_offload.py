# SPDX-License-Identifier: Apache-2.0
"""LLVM's liboffload: its tests of registered and of mapped memory, over pinning.h. Bare, all count as passed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

from commands import IN_PLACE
from results import PASSED, Result, of_junit

import pinning

FILES = ["offload/unittests/OffloadAPI/memory"]  # of a repository of 150 000 files
WAYS = ["pinning.h"]
EXPLAINED: dict[str, str] = {}


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    program, report, theirs = work / "test", work / "report.xml", checkout / FILES[0]
    # The tests include their harness by a relative path.
    shutil.copytree(IN_PLACE / "llvm", work / "harness", dirs_exist_ok=True)
    (work / "harness" / "memory").mkdir(exist_ok=True)
    names = ("olMemRegister.cpp", "olMemMapNotify.cpp")
    tests = [shutil.copy(theirs / name, work / "harness" / "memory") for name in names]
    include, library = pinning.build.include_dirs()[0], pinning.build.library_dirs()[0]
    options = ["-std=c++20", "-w", f"-I{include}", f"-I{work / 'harness' / 'common'}", *tests, "-o", program]
    libraries = [f"-L{library}", f"-Wl,-rpath,{library}", "-lpinning", "-lgtest", "-lgtest_main", "-pthread"]
    subprocess.run([os.environ.get("CXX", "c++"), *options, *libraries], check=True)
    report.unlink(missing_ok=True)
    subprocess.run([program, f"--gtest_output=xml:{report}"], capture_output=True)
    results = of_junit(report)
    return dict.fromkeys(results, Result(PASSED)) if way == "bare" else results

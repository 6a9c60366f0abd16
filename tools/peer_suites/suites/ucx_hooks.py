# SPDX-License-Identifier: Apache-2.0
"""UCX: the tests of its memory hooks and registration cache, in a process where a lock of ours is watched."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from pathlib import Path

from commands import HELD, holds
from results import Result, of_junit

WAYS = [HELD]
EXPLAINED: dict[str, str] = {}
TESTS = "ucm/malloc_hook ucs/test_rcache common/main common/test common/test_helpers common/mem_buffer"
WITHOUT = "cuda rocm verbs java go"


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    _build(checkout, work)
    report = work / "report.xml"
    report.unlink(missing_ok=True)
    chosen = [f"--gtest_filter={':'.join(only)}"] if only is not None else []
    variables = {**os.environ, **holds(way, work)}
    with (work / f"{way.replace(' ', '-')}.log").open("w") as log:
        command = ["timeout", "600", work / "test", f"--gtest_output=xml:{report}", *chosen]
        subprocess.run(command, env=variables, stdout=log, stderr=subprocess.STDOUT)
    return of_junit(report)


def _build(checkout: Path, work: Path) -> None:
    if (work / "test").exists():
        return
    if not (checkout / "config.h").exists():
        subprocess.run(["./autogen.sh"], cwd=checkout, check=True)
        without = [f"--without-{each}" for each in WITHOUT.split()]
        subprocess.run(["./configure", "--quiet", "--enable-gtest", "--enable-mt", *without], cwd=checkout, check=True)
    libraries = [checkout / "src" / name for name in ("ucm", "ucs")]
    for each in libraries:
        subprocess.run(["make", "-s", f"-j{os.cpu_count()}"], cwd=each, check=True)
    tests = checkout / "test/gtest"
    googletest = (each for each in (tests / "common/googletest").glob("*.cc") if each.name != "gtest_main.cc")
    sources = [*(tests / f"{each}.cc" for each in TESTS.split()), *googletest]
    headers = [f"-I{checkout / each}" for each in ("src", "test", ".", "test/gtest", "test/gtest/common")]
    names = [f'-DTOP_SRCDIR="{checkout}"', '-DGTEST_UCM_HOOK_LIB_DIR=""']  # the hook libraries are not built
    flags = ["-std=c++11", "-w", "-O1", "-DHAVE_CONFIG_H", *names, *headers]
    found = [option for each in libraries for option in (f"-L{each / '.libs'}", f"-Wl,-rpath,{each / '.libs'}")]
    compiler = os.environ.get("CXX", "c++")
    subprocess.run(
        [compiler, *flags, *sources, *found, "-lucs", "-lucm", "-ldl", "-pthread", "-o", work / "test"], check=True
    )

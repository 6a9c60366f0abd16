# SPDX-License-Identifier: Apache-2.0
"""hip-tests of ROCm: those of registered memory and pointers, over our stand-in. Bare, all count as passed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from commands import IN_PLACE
from results import FAILED, PASSED, Result

sys.path.append(str(Path(__file__).parents[3] / "tests"))

from standins import libhip

FILES = ["catch/unit/memory", "catch/include"]
WAYS = ["our stand-in for HIP"]
EXPLAINED: dict[str, str] = {}
TESTS = "hipHostRegister hipHostUnregister hipHostGetDevicePointer hipHostFree hipMalloc hipMemGetAddressRange"
HARNESS = "hip_test_helper.hh hip_test_process.hh utils.hh"  # made empty: hip_test_common.hh replaces them
LAUNCH = re.compile(r"(\w+)<<<(.*?), *(.*?)>>>\(")
# Not run: tests of graphs, advice and speed.
LEFT_OUT = re.compile(r"_Graphs|_MemAdvise|_Perf")


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    program = _built(checkout, work)
    environment = libhip.DRIVER.environment(work, "devices=1")
    listed = subprocess.run([program, "--list-test-names-only"], env=environment, stdout=subprocess.PIPE, text=True)
    results = {}
    for case in filter(None, map(str.strip, listed.stdout.splitlines())):
        if LEFT_OUT.search(case) or (only is not None and case not in only):
            continue
        if way == "bare":
            results[case] = Result(PASSED)
            continue
        # Each in its own process, because some leave memory registered.
        ran = subprocess.run([program, case], env=environment, stdout=subprocess.PIPE, text=True)
        wrong = re.search(r"FAILED:\s+(.*)\s+with expansion:\s+(.*)", ran.stdout)
        reason = " is ".join(wrong.groups()) if wrong else f"status {ran.returncode}"
        results[case] = Result(FAILED if ran.returncode else PASSED, reason=reason)
    return results


def _built(checkout: Path, work: Path) -> Path:
    program, harness = work / "test", work / "harness"
    libhip.DRIVER.build(work)
    if program.exists():
        return program
    harness.mkdir(exist_ok=True)
    for name in HARNESS.split():
        (harness / name).touch()
    sources = []
    for name in TESTS.split():
        text = (checkout / "catch/unit/memory" / f"{name}.cc").read_text()
        sources.append(work / f"{name}.cc")
        sources[-1].write_text(LAUNCH.sub(r"hipLaunchKernelGGL(\1, \2, \3, 0, nullptr, ", text))
    (work / "main.cc").write_text("#define CATCH_CONFIG_MAIN\n#include <catch2/catch.hpp>\n")
    theirs = [
        f"-I{IN_PLACE / 'hip'}",
        f"-I{harness}",
        f"-I{checkout / 'catch/include'}",
        *(f"-I{i}" for i in libhip.includes()),
    ]
    flags = [
        "-std=c++20",
        "-w",
        "-D__HIP_PLATFORM_AMD__",
        *theirs,
        *sources,
        work / "main.cc",
        work / libhip.DRIVER.soname,
    ]
    # The tests that are left out need functions that the stand-in lacks.
    linked = ["-no-pie", "-pthread", "-Wl,--unresolved-symbols=ignore-all", "-o", program]
    subprocess.run([os.environ.get("CXX", "c++"), *flags, *linked], check=True)
    return program

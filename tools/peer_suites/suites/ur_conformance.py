# SPDX-License-Identifier: Apache-2.0
"""Unified Runtime's conformance tests of registered memory, over our stand-in. Bare, all count as passed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from commands import IN_PLACE
from results import PASSED, Result, of_junit

sys.path.append(str(Path(__file__).parents[3] / "tests"))

from standins import libur

FILES = ["test/conformance/exp_usm_host_mem_register"]
WAYS = ["our stand-in for UR"]
EXPLAINED: dict[str, str] = {}


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    program, report = work / "test", work / "report.xml"
    libur.DRIVER.build(work)
    sources = [checkout / FILES[0] / "urUSMHostMemRegister.cpp", work / libur.DRIVER.soname]
    includes = [f"-I{IN_PLACE / 'ur'}", *(f"-I{folder}" for folder in libur.includes())]
    options = ["-std=c++20", "-w", *includes, *sources, "-lgtest", "-lgtest_main", "-pthread", "-o", program]
    subprocess.run([os.environ.get("CXX", "c++"), *options], check=True)
    report.unlink(missing_ok=True)
    environment = libur.DRIVER.environment(work, "devices=1")
    subprocess.run([program, f"--gtest_output=xml:{report}"], env=environment, capture_output=True)
    results = of_junit(report)
    return dict.fromkeys(results, Result(PASSED)) if way == "bare" else results

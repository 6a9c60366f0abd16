# SPDX-License-Identifier: Apache-2.0
"""UCX: the tests of its page table, with ours under its names. They are built without UCX's own harness."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from pathlib import Path

from commands import IN_PLACE
from results import Result, of_junit

WAYS = ["pagetable"]
EXPLAINED = {"invalid_param": "left out, as UCX does for tables whose ranges have any alignment"}
PAGETABLE = IN_PLACE.parents[2] / "pagetable" / "include"


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    shims, report, program = IN_PLACE / "ucx", work / "report.xml", work / f"test-{way}"
    (work / "config.h").touch()  # written by UCX's configure; its page table uses none of it
    theirs = [f"-I{work}", f"-I{checkout / 'src'}"]
    if way == "bare":
        table = [work / "pgtable.o", work / "needed.o"]
        sources = [checkout / "src/ucs/datastruct/pgtable.c", shims / "bare" / "needed.c"]
        subprocess.run(["cc", "-O2", "-w", "-DHAVE_CONFIG_H", *theirs, "-c", *sources], cwd=work, check=True)
        headers = [f"-I{shims / 'any'}", *theirs]
    else:
        table = []
        headers = [f"-I{shims / 'any'}", f"-I{shims / 'ours'}", f"-I{PAGETABLE}", *theirs]
    test = checkout / "test/gtest/ucs/test_pgtable.cc"
    libraries = ["-lgtest", "-lgtest_main", "-pthread"]
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-O2", "-w"]
    subprocess.run([*compiler, *headers, test, *table, *libraries, "-o", program], check=True)
    report.unlink(missing_ok=True)
    subprocess.run([program, f"--gtest_output=xml:{report}"], capture_output=True)
    return of_junit(report)

# SPDX-License-Identifier: Apache-2.0
"""CPython's own tests of what pinning could disturb. PATH is an environment that has pinning, such as .venv."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from pathlib import Path

from commands import run_by
from results import Result, of_junit

FILES = [
    "test_mmap",
    "test_buffer",
    "test_ctypes",
    "test_fork1",
    "test_thread",
    "test_threading",
    "test_threadsignals",
    "test_signal",
    "test_subprocess",
    "test_multiprocessing_main_handling",
]
METHODS = {f"test_processes_by_{method}": method for method in ("fork", "forkserver", "spawn")}
WAYS = ["imported, with a lock held", "pinning run"]
EXPLAINED = {"test_pass_fds_redirected": "counts the descriptors of a child that holds a lock too, and so has one more"}
# Some releases install the tests of multiprocessing without the files that start them, whose names regrtest needs.
BEGINS = "import test._test_multiprocessing as tests\ntests.install_tests_in_module_dict(globals(), '{}')\n"
HOLDS = "import pinning\nheld = pinning.lock(bytearray(1 << 20))\n"


def version(path: Path) -> str:
    said = subprocess.run([path / "bin" / "python", "--version"], capture_output=True, text=True, check=True)
    return said.stdout.split()[1]


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    python, report, holds = checkout / "bin" / "python", work / "junit.xml", work / "holds"
    holds.mkdir(exist_ok=True)
    (holds / "sitecustomize.py").write_text(HOLDS)
    environment = dict(os.environ) | ({"PYTHONPATH": str(holds)} if way.startswith("imported") else {})
    environment.pop("PYTHONSAFEPATH", None)
    matching = work / "only"
    matching.write_text("\n".join(only or ["*"]))
    results: dict[str, Result] = {}
    for file in [*FILES, *METHODS]:
        if only is not None and not any(f".{file}." in f".{case}" for case in only):
            continue
        report.unlink(missing_ok=True)
        options = ["-j1", "--timeout", "1200", "--junit-xml", report, "--matchfile", matching]
        command = [*run_by(way, python), python, "-m", "test", *options]
        if file in METHODS:
            folder = work / "begins"
            folder.mkdir(exist_ok=True)
            (folder / f"{file}.py").write_text(BEGINS.format(METHODS[file]))
            command += ["--testdir", folder]
        subprocess.run([*command, file], env=environment, cwd=work, stdin=subprocess.DEVNULL, capture_output=True)
        results |= of_junit(report)
    return results

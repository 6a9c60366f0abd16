# SPDX-License-Identifier: Apache-2.0
"""``python tools/peer_suites NAME PATH``: runs another project's tests, bare (without pinning) and with ours in place.

PATH is a clone of that project, with or without a work tree, or the source of a release; nothing is written there. For
each way to put ours in place, one row is printed, and entered in the table of docs/compatibility.md, which says what
each suite needs; compatibility.json beside it has the versions, and how each case ended that has not passed. What
differs from the run before is printed. The status is 1 if a case fails because of ours.

A suite is a module in `suites`: `WAYS` names the ways to put ours in place, `EXPLAINED` the differences that the
documentation explains, and ``run(checkout, work, way, only)`` returns the results of its cases. `way` is "bare" to run
without ours; `only` has the cases to run, or is None for all. If PATH is neither a clone nor a release, the suite's
`version(path)` stands for the commit. `FILES` has the folders that the suite needs of a large repository.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from results import Row, compare, enter, record

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ["torch", "cupy-cuda13x", "numba-cuda", "cuda-bindings", "cuda-core", "jax", "rmm-cu13", "kvikio-cu13"]
PACKAGES += ["safetensors", "torch_memory_saver"]
SUITES = sorted(path.stem for path in (Path(__file__).parent / "suites").glob("[a-z]*.py"))


def checkout(path: Path, work: Path, only: list[str]) -> tuple[Path, str]:
    """Copy a clone's newest commit, or a release, or some of its folders, below `work`; returns folder and version."""
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(path.resolve().parent)}  # ignores a clone around the path
    commit = subprocess.run(["git", "-C", path, "rev-parse", "HEAD"], env=alone, capture_output=True, text=True)
    name = commit.stdout.strip()[:8] or path.name
    files = work / name
    if commit.returncode != 0:
        for folder in only or ["."]:
            shutil.copytree(path / folder, files / folder, dirs_exist_ok=True)
        return files, name
    if not files.exists():
        files.mkdir(parents=True)
        archive = subprocess.Popen(["git", "-C", path, "archive", "HEAD", *only], stdout=subprocess.PIPE)
        subprocess.run(["tar", "x", "-C", files], stdin=archive.stdout, check=True)
        if archive.wait() != 0:
            raise SystemExit(f"{path}: git archive HEAD failed")
    return files, name


def versions() -> dict[str, str]:
    """What this machine runs a suite with."""
    found = {"linux": platform.release(), "python": platform.python_version(), "pinning": version("pinning")}
    driver = Path("/proc/driver/nvidia/version")
    if driver.exists() and (number := re.search(r"\b\d+(\.\d+)+\b", driver.read_text())):
        found["nvidia"] = number[0]
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run another project's tests, bare and with ours in place.")
    parser.add_argument("name", choices=SUITES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--way", action="append", help="only this way to have ours in place; may be repeated")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "compatibility.md", help="where the table is")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "peer_suites", help="what is built goes here")
    asked = parser.parse_args(arguments)
    suite = import_module(f"suites.{asked.name}")
    work = asked.work.absolute() / asked.name
    work.mkdir(parents=True, exist_ok=True)
    os.nice(5)
    if hasattr(suite, "version"):
        files, commit = asked.path.absolute(), suite.version(asked.path)
    else:
        files, commit = checkout(asked.path, work, getattr(suite, "FILES", []))
    bare = suite.run(files, work, "bare", None)
    if not bare:
        raise SystemExit(f"no case of {asked.name} was found in {asked.path}")
    failed = False
    for way in asked.way or suite.WAYS:
        row = Row(asked.name.replace("_", " "), way, datetime.date.today().isoformat(), commit, versions())
        compare(
            bare,
            suite.run(files, work, way, None),
            lambda only, way=way: (suite.run(files, work, "bare", only), suite.run(files, work, way, only)),
            suite.EXPLAINED,
            row,
        )
        print(row, *(f"  {case}: {why}" for case, why in row.ours.items()), sep="\n", flush=True)
        if asked.page.exists():
            enter(row, asked.page)
            for change in record(row, asked.page.with_suffix(".json")):
                print(f"  since the run before: {change}", flush=True)
        failed |= bool(row.ours)
    return failed


if __name__ == "__main__":
    sys.exit(main())

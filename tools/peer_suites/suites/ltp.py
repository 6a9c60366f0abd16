# SPDX-License-Identifier: Apache-2.0
"""LTP: its tests of the system calls that map, unmap, move and lock memory; it is built with autotools."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection
from pathlib import Path

from commands import run_by
from results import FAILED, PASSED, SKIPPED, Result

WAYS = ["pinning run"]
EXPLAINED: dict[str, str] = {}
CALLS = (
    "brk fork madvise mlock mlock2 mlockall mmap mprotect mremap msync munlock munlockall munmap process_madvise "
    "remap_file_pages sbrk userfaultfd vfork"
)
FOLDER = Path("testcases/kernel/syscalls")
NOT_SUPPORTED = 32  # TCONF
# Left out, because they change the machine: settings, control groups, file systems, or pages permanently.
HARMS = re.compile(r"mount_device|needs_device|save_restore|needs_cgroups|HWPOISON|SOFT_OFFLINE|FILE_PRINTF|/proc/sys")
COUNTS = re.compile(r"^(passed|failed|broken) +\d+", re.MULTILINE)


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    folders = [each for each in CALLS.split() if (checkout / FOLDER / each).is_dir()]
    _build(checkout, folders)
    environment = dict(os.environ)
    environment["PATH"] += "".join(f":{checkout / FOLDER / each}" for each in folders)
    environment |= {"LTPROOT": str(checkout), "TMPDIR": str(work)}
    results: dict[str, Result] = {}
    for line in (checkout / "runtest" / "syscalls").read_text().splitlines():
        case, *command = line.split() or [""]
        if not command or (only is not None and case not in only):
            continue
        programs = [path for each in folders if (path := checkout / FOLDER / each / command[0]).is_file()]
        if not programs or HARMS.search(programs[0].with_suffix(".c").read_text(errors="replace")):
            continue
        ran = subprocess.run(
            ["/usr/bin/timeout", "-k", "5", "120", *run_by(way), *command],
            env=environment,
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said = ran.stdout.decode(errors="replace")
        state = {0: PASSED, NOT_SUPPORTED: SKIPPED}.get(ran.returncode, FAILED)
        wrong = re.search(r".*(TFAIL|TBROK).*", said)
        reason = wrong[0].strip() if wrong else f"status {ran.returncode}"
        results[case] = Result(state, " ".join(each[0] for each in COUNTS.finditer(said)), reason)
    return results


def _build(checkout: Path, folders: list[str]) -> None:
    if not (checkout / "include" / "mk" / "config.mk").exists():
        subprocess.run(["make", "-s", "autotools"], cwd=checkout, check=True)
        subprocess.run(["./configure", "--quiet"], cwd=checkout, check=True)
    for folder in ["lib", "libs", *(FOLDER / each for each in folders)]:
        subprocess.run(["make", "-s", "-k"], cwd=checkout / folder, capture_output=True)

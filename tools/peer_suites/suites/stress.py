# SPDX-License-Identifier: Apache-2.0
"""stress-ng's stressors of memory and processes, and fio's engines, which verify what they read. PATH: their folder."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection
from pathlib import Path

from commands import HELD, holds, run_by
from results import FAILED, PASSED, SKIPPED, Result

WAYS = ["pinning run", HELD]
EXPLAINED: dict[str, str] = {}
STRESSORS = (
    "aio aiol bad-altstack bigheap brk clone context copy-file daemon dev-shm dynlib exit-group fallocate fault "
    "fork forkheavy fpunch hdd io-uring madvise malloc memfd mincore mlock mmap mmapaddr mmapfixed mmapfork "
    "mmaphuge mmapmany mprotect mremap msync msyncmany munmap numa pagemove pageswap pkey pthread readahead remap "
    "resources ring-pipe rlimit rmap seal seccomp secretmem shm shm-sysv sigrt sigsegv splice stack stackmmap "
    "switch sysbadaddr tee tlb-shootdown userfaultfd vfork vforkmany vm vm-addr vm-rw vm-segv vm-splice zero "
    "zombie"
)
ENGINES = "io_uring libaio mmap posixaio psync pvsync2 splice sync vsync"
MEMORY = "malloc mmap mmapshared shm"
NOT_SUPPORTED = 4  # of stress-ng
SAID = re.compile(r"(?:fail|error|fio): +(?:\[\d+\] )?(.*)")


def version(path: Path) -> str:
    said = "".join(
        subprocess.run([path / name, "--version"], stdout=subprocess.PIPE, text=True).stdout
        for name in ("stress-ng", "fio")
    )
    return ", ".join(" ".join(each) for each in re.findall(r"(stress-ng|fio)\D*([\d.]+)", said))


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    stressed = ["--verify", "--timeout", "2", "--vm-bytes", "64m", "--oomable", "--temp-path", work]
    written = ["--name=it", "--rw=randrw", "--bs=16k", "--size=2m", "--verify=crc32c", f"--directory={work}"]
    commands = {
        f"stress-ng {name}": ["stress-ng", f"--{name}", "1", f"--{name}-ops", "20", *stressed]
        for name in STRESSORS.split()
    } | {
        f"fio {engine} {memory}": ["fio", "--thread", f"--ioengine={engine}", f"--mem={memory}", *written]
        for engine in ENGINES.split()
        for memory in MEMORY.split()
    }
    results: dict[str, Result] = {}
    for case in commands if only is None else only:
        program, *arguments = commands[case]
        ran = subprocess.run(
            ["/usr/bin/timeout", "-k", "5", "60", *run_by(way), checkout / program, *arguments],
            env={**os.environ, **holds(way, work)},
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said = sorted({each[1] for each in SAID.finditer(ran.stdout.decode(errors="replace"))})
        state = {0: PASSED, NOT_SUPPORTED: SKIPPED}.get(ran.returncode, FAILED)
        results[case] = Result(state, f"status {ran.returncode}", "; ".join(said)[:200] or f"status {ran.returncode}")
    return results

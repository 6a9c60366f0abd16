# SPDX-License-Identifier: Apache-2.0
"""glibc: its tests of malloc and of threads, over the installed library. PATH is the source of its release."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from commands import HELD, holds, run_by
from results import FAILED, PASSED, SKIPPED, Result

WAYS = ["pinning run", HELD]
_KEYS = "makes as many thread-specific keys as a process may have, of which the tool has one"
_ENDS = "ends with its last thread; the threads of the watch never end"
EXPLAINED = {
    "tst-key1|tst-key4|tst-tss-basic": _KEYS,
    "exit-nothreads|tst-basic[34]|tst-cleanupx?0|pthread_cancel-exited": _ENDS,
    "tst-mallocfork2": "forks in signal handlers, which is for processes of one thread; the watch has threads",
    "tst-create-detached": "limits its addresses to few, and the page table has reserved more",
}
NOT_SUPPORTED = 77
AT_ONCE = 32  # most wait for something nearly all the time
OPTIONS = "-w -O1 -std=gnu11 -D_GNU_SOURCE -DTIMEOUTFACTOR=3 -include stdbool.h -include limits.h -include sys/types.h"
LIBRARIES = "-lpthread -ldl -lm -lrt"
# What glibc's own makefiles would say of its folders.
PLACES = """
const char support_objdir_root[] = "/tmp", support_srcdir_root[] = "/tmp", support_install_prefix[] = "/usr",
           support_objdir_elf_ldso[] = "/lib64/ld-linux-x86-64.so.2", support_libdir_prefix[] = "/usr/lib",
           support_bindir_prefix[] = "/usr/bin", support_sbindir_prefix[] = "/usr/sbin";
"""


def run(checkout: Path, work: Path, way: str, only: Collection[str] | None) -> dict[str, Result]:
    programs = _built(checkout, work / "built")
    environment = {**os.environ, **holds(way, work)}

    def result(case: str) -> Result:
        folder = work / "run" / case
        folder.mkdir(parents=True, exist_ok=True)
        command = ["/usr/bin/timeout", "-k", "5", "100", *run_by(way), programs / case]
        with (folder / "said").open("w+") as said:  # not a pipe, which a process that a test leaves would keep open
            ran = subprocess.run(
                command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )
        state = {0: PASSED, NOT_SUPPORTED: SKIPPED}.get(ran.returncode, FAILED)
        text = (folder / "said").read_text(errors="replace")
        return Result(state, "", f"status {ran.returncode}: {text.strip()[-200:]}")

    cases = sorted(each.name for each in programs.iterdir() if only is None or each.name in only)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(cases, pool.map(result, cases), strict=True))


def _built(checkout: Path, into: Path) -> Path:
    """The folder of the programs: all tests that can be built outside of glibc's own build."""
    programs, objects, headers = into / "programs", into / "objects", into / "headers"
    if programs.exists():
        return programs
    for folder in (objects, headers):
        folder.mkdir(parents=True, exist_ok=True)
    (headers / "support").symlink_to(checkout / "support")
    (headers / "config.h").touch()
    for name in ("intprops.h", "array_length.h", "libc-pointer-arith.h", "libc-diag.h"):
        (headers / name).symlink_to(checkout / "include" / name)
    (into / "places.c").write_text(PLACES)
    cc = ["cc", *OPTIONS.split(), f"-I{headers}"]

    def compiled(source: Path) -> Path | None:
        made = objects / f"{source.stem}.o"
        done = subprocess.run([*cc, f"-I{checkout / 'support'}", "-c", source, "-o", made], capture_output=True)
        return made if done.returncode == 0 else None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        sources = [into / "places.c", *sorted((checkout / "support").glob("*.c"))]
        helpers = [each for each in sources if each.stem != "support_paths" and not each.stem.startswith("tst-")]
        archive = into / "support.a"
        made = [each for each in pool.map(compiled, helpers) if each]
        subprocess.run(["ar", "rcs", archive, *made], check=True)
        building = into / "building"
        building.mkdir()
        folders = [checkout / name for name in ("malloc", "nptl", "sysdeps/pthread")]
        tests = [each for folder in folders for each in sorted(folder.glob("tst-*.c"))]
        paths = [f"-I{folder}" for folder in folders[1:]]  # without malloc, whose headers are internal

        def build(test: Path) -> None:
            made = building / f"{test.parent.name}-{test.stem}"
            subprocess.run([*cc, *paths, test, archive, *LIBRARIES.split(), "-o", made], capture_output=True)

        list(pool.map(build, tests))
    return building.rename(programs)

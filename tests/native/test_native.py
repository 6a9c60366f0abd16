# SPDX-License-Identifier: Apache-2.0
"""Compile the native tests of table, map, kernel, staging rings and libpinning, and run them.

Those of variant "built" are linked with the library that is tested; else the library's sources are compiled, too, such
as with sanitizers.

Each program prints one line and takes its seconds and its seed as arguments, so that a failure can be repeated by hand.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from c_api import LIBRARY
from run_folder import made_once, run_folder

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"
INCLUDES = [f"-I{HERE.parents[1] / package / 'include'}" for package in ("pagetable", "native")]
PARTS = ("base", "watch", "vendors", "map", "queues", "capi")
LIBPINNING = [path for part in PARTS for path in (NATIVE / part).rglob("*.cpp")]
CXX = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++20", "-pthread", "-Wall", "-Wextra", "-Werror", *INCLUDES, *os.environ.get("CXXFLAGS", "").split()]
VARIANTS = {
    "built": ["-O0"],  # quick to compile; what it tests is in the library
    "plain": ["-O2"],
    "thread": ["-O1", "-g1", "-fsanitize=thread"],
    # Without those checks of each access that take most of the time to compile; the processor checks most of them, too.
    "address": [
        *("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize=null,alignment,object-size,vptr"),
        *("-fno-sanitize-recover=all", "-D_GLIBCXX_ASSERTIONS"),
    ],
}
# Sources that are compiled into a program besides its own, so that the library is sanitized too.
COPIES = [
    *sorted((NATIVE / "copies").glob("*.cpp")),
    *[path for path in LIBPINNING if path.stem in ("mappings", "process", "processors", "status_page")],
]
HOST = [path for path in sorted(LIBPINNING) if path.stem in ("host", "host_queue", "page_locks", "watch")]
ALL = sorted({*LIBPINNING, *COPIES})
WITH = {
    "c_api_stress": ALL,
    "host_stress": [*HOST, *COPIES],
    "queue_stress": ALL,
    "processors": [path for path in LIBPINNING if path.stem == "processors"],
    "staging_stress": COPIES,
    "watch_stress": [path for path in LIBPINNING if path.stem in ("process", "watch")],
}
EMPTY_PROGRAM = "int main() {}"

pytestmark = pytest.mark.timeout(1800)  # the sanitized library alone may take minutes to compile
Command = list[str]


def output(command: Command, timeout: float = 1700) -> tuple[int, str]:
    """Return exit status and output of `command`. The timeout is only against hangs: a machine may be slow."""
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
    return run.returncode, run.stdout


def launcher(variant: str, directory: Path) -> Command:
    """Return the command prefix with which a program of this variant starts here; skip if none helps.

    ThreadSanitizer's runtime aborts if the kernel places mappings more randomly than it expects.
    """
    source = directory / "empty.cpp"
    source.write_text(EMPTY_PROGRAM)
    status, said = output([CXX, *VARIANTS[variant], str(source), "-o", str(directory / "empty")])
    if status != 0:
        pytest.skip(f"{CXX} cannot build with {' '.join(VARIANTS[variant])}: {said}")
    attempts: list[Command] = [[]]
    if setarch := shutil.which("setarch"):
        attempts.append([setarch, platform.machine(), "-R"])
    for attempt in attempts:
        # Several times, because mappings are placed at random.
        runs = [output([*attempt, str(directory / "empty")]) for _ in range(5)]
        if all(status == 0 for status, _ in runs):
            return attempt
    pytest.skip(f"a program built with {' '.join(VARIANTS[variant])} does not start here: {runs[-1][1]}")


@pytest.fixture(scope="session")
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Command]:
    """Return a function that compiles a program in a variant and returns the command that starts it."""
    if shutil.which(CXX) is None:
        pytest.skip(f"no C++ compiler: {CXX} is not on the PATH")
    launchers: dict[str, Command] = {}
    shared = run_folder(request.config, tmp_path_factory) / "native"
    shared.mkdir(exist_ok=True)
    with made_once(shared / "move_parts_ptx.hpp") as made:
        if not made:
            embed_kernel(shared)

    def build(program: str, variant: str) -> Command:
        if variant not in launchers:
            launchers[variant] = launcher(variant, tmp_path_factory.mktemp(variant))
        is_built = variant == "built"
        sources = [HERE / f"{program}.cpp", *([] if is_built else WITH.get(program, []))]
        binary = shared / f"{program}-{variant}"
        with made_once(binary) as made:
            if not made:
                objects = [str(each) for each in compiled(sources, variant, shared)]
                library = [str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}"] if is_built else ["-ldl"]
                status, said = output([CXX, "-pthread", *VARIANTS[variant], *objects, *library, "-o", str(binary)])
                assert status == 0, said
        return [*launchers[variant], str(binary)]

    return build


def embed_kernel(folder: Path) -> None:
    """Embed the kernel's PTX in a header, as CMake does."""
    kernels = NATIVE / "vendors" / "cuda" / "kernels"
    template = (kernels / "move_parts_ptx.hpp.in").read_text()
    for each in (70, 90):
        template = template.replace(f"@ptx_{each}@", (kernels / f"move_parts_{each}.ptx").read_text())
    (folder / "move_parts_ptx.hpp").write_text(template)


def compiled(sources: Iterable[Path], variant: str, folder: Path) -> list[Path]:
    """Return the object files of `sources`, which all programs of this variant share."""
    objects = {source: folder / f"{source.parent.name}-{source.stem}-{variant}.o" for source in sources}
    for wait in (False, True):  # first those that no other process is compiling
        for source, target in objects.items():
            with made_once(target, wait) as made:
                if made is False:
                    status, said = output(
                        [CXX, *FLAGS, f"-I{folder}", *VARIANTS[variant], "-c", str(source), "-o", f"{target}.part"]
                    )
                    assert status == 0, said
                    Path(f"{target}.part").rename(target)
    return list(objects.values())


def is_slow(program: str, variant: str, arguments: list[str]) -> bool:
    """Whether it is slow to compile (sanitized, or with sources of the library) or to run."""
    return variant != "built" and (variant != "plain" or program in WITH or int(arguments[0]) > 2)


@pytest.mark.parametrize(
    ("program", "variant", "arguments"),
    [
        pytest.param(*each, marks=pytest.mark.slow if is_slow(*each) else ())
        for each in (
            ("page_table_model", "plain", ["1", "1"]),
            ("page_table_model", "plain", ["2", "2", str(512 << 20)]),  # under `ulimit -v`
            ("page_table_model", "address", ["3", "3"]),
            ("page_table_schedules", "plain", ["2", "1"]),
            ("page_table_schedules", "plain", ["12", "2"]),
            ("page_table_stress", "plain", ["1", "1"]),
            ("page_table_stress", "plain", ["6", "2"]),
            ("page_table_stress", "thread", ["12", "2"]),
            ("page_table_stress", "address", ["10", "3"]),
            ("pinned_map_stress", "built", ["1", "1"]),
            ("pinned_map_stress", "thread", ["3", "2"]),
            ("pinned_map_stress", "address", ["2", "3"]),
            ("watch_stress", "built", ["2", "1", "forks"]),
            ("watch_stress", "thread", ["3", "2"]),
            ("watch_stress", "address", ["2", "3"]),
            ("ring_model", "plain", ["1", "1"]),
            ("staging_stress", "built", ["2", "1"]),
            ("staging_stress", "thread", ["6", "2"]),
            ("staging_stress", "address", ["4", "3"]),
            ("c_api_stress", "built", ["2", "1", "forks"]),
            ("c_api_stress", "thread", ["3", "2", "forks"]),
            ("c_api_stress", "address", ["2", "3"]),
            ("queue_stress", "built", ["2", "1"]),
            ("queue_stress", "thread", ["3", "2"]),
            ("queue_stress", "address", ["2", "3"]),
            ("move_parts", "plain", ["2", "1"]),  # no sanitizer supports its coroutines
            ("out_of_memory", "built", []),
            ("host_stress", "plain", ["2", "1", "forks"]),  # no sanitizer's allocator supports forks beside threads
            ("host_stress", "thread", ["3", "2"]),
            ("host_stress", "address", ["2", "3"]),
        )
    ],
)
def test_program(build: Callable[[str, str], Command], program: str, variant: str, arguments: list[str]) -> None:
    command = [*build(program, variant), *arguments]
    if (program, variant) == ("c_api_stress", "thread"):
        # ThreadSanitizer supports no thread that a forked child starts, such as the watcher's; watch_stress tests that
        # one. Nor does it support reads of the status page while the page is remapped with the same figures.
        command = ["env", "PINNING_WATCH=off", "PINNING_STATUS=off", *command]
    status, said = output(command, 300)
    assert status == 0, f"{' '.join(command)}\n{said}"
    if "SKIPPED" in said:
        pytest.skip(said)
    assert "all right" in said


@pytest.mark.parametrize(
    ("groups", "files", "count"),
    [
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {}, None),
        ("", {}, None),
        ("0::/", {"cpu.max": "100000 100000"}, 1),
        ("0::/a/b", {"cpu.max": "max 100000", "a/cpu.max": "100000 100000", "a/b/cpu.max": "max 100000"}, 1),
        ("0::/of/the/host", {"cpu.max": "50000 100000"}, 1),
        ("4:cpu,cpuacct:/a\n0::/", {"cpu/a/cpu.cfs_quota_us": "100000", "cpu/a/cpu.cfs_period_us": "50000"}, 2),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
        ("4:cpuset:/a", {"cpu/a/cpu.cfs_quota_us": "100000", "cpu/a/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_the_quotas_of_control_groups_bound_the_processors(
    build: Callable[[str, str], Command], tmp_path: Path, groups: str, files: dict[str, str], count: int | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    status, said = output([*build("processors", "plain"), str(tmp_path)])
    mine = len(os.sched_getaffinity(0))
    assert (status, int(said)) == (0, mine if count is None else min(count, mine))

# SPDX-License-Identifier: Apache-2.0
"""CUDA programs whose copies of pageable memory go through our threads, on the stand-in driver: same outcome.

The stand-in's log shows by which calls a copy was made; for a staged one it has no call of the program's own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

import pinning
from folders import PYTHONPATH
from installed import tool
from standins.libcuda import DRIVER, includes
from standins.standin import Driver, MissingError

TOOL = pinning.build.library_dirs()[0] / "libpinning_run.so"
SOURCE = Path(__file__).parent / "sources" / "copies.c"
IN_FLIGHT = SOURCE.with_name("in_flight.c")
WAYS = ["linked", "dlsym", "default", "proc", "proc1"]
FORMS = [
    f"{what}{call}{which}"
    for what in ("", "either ")
    for call in ("sync", "async")
    for which in ("", " thread", *([" stream"] if call == "async" else []))
]
# Batches take no legacy default stream, and the first version of cuGetProcAddress gives it no stream either.
BATCHES = [
    f"{what} async {which}"
    for what in ("batch", "batch any", "batch1", "attributes", "attributes any")
    for which in ("thread", "stream")
]
ROWS = [
    f"rows {call}{which}"
    for call in ("sync", "async")
    for which in ("", " thread", " pitched", " halved", " pitched halved", " pitched narrowest")
]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    errors: str
    calls: dict[str, int]
    streams: set[str]  # of the copies that the engine submitted

    @property
    def outcome(self) -> tuple[int, str, str]:
        return self.code, self.out, self.errors

    @property
    def by_driver(self) -> int:
        """Copies that the driver made by itself."""
        copies = r"cuMemcpy(HtoD|DtoH|2D|Batch|With).*"
        return sum(count for call, count in self.calls.items() if re.fullmatch(copies, call))

    @property
    def staged(self) -> int:
        """Chunks that the device waited for and copied."""
        return sum(self.calls.get(call, 0) for call in ("cuStreamBatchMemOp", "cuStreamWaitValue32"))


Run = Callable[..., Ran]


def needs_two_processors() -> None:
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("needs two processors: with one nothing is staged")


def run_script(
    build: Callable[[Driver], Path], *command: str, configuration: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python program of this folder with the stand-in, and with this library before it."""
    environment = DRIVER.environment(build(DRIVER), configuration, {**os.environ, "LD_PRELOAD": str(TOOL), **variables})
    script = [sys.executable, "-P", Path(__file__).with_name(command[0]), *command[1:]]
    return subprocess.run(script, env=environment, capture_output=True, text=True, timeout=600)


def compile_for_the_driver(standin: Path, source: Path, program: Path, *options: str) -> None:
    """Compile a program that is linked with the stand-in, or skip the test."""
    compiler = tool("gcc", "apt-get install gcc")
    needs_two_processors()
    try:
        folders = [f"-isystem{folder}" for folder in includes()]
    except MissingError as error:
        pytest.skip(str(error))
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-builtin-declaration-mismatch"]
    library = [f"-L{standin}", "-l:libcuda.so.1", "-pthread", "-ldl"]
    subprocess.run([compiler, "-O1", *warnings, *folders, source, "-o", program, *options, *library], check=True)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, build: Callable[[Driver], Path]) -> Run:
    """Return a function that runs the program with the stand-in, and with this library before it if `preload`."""
    standin, folder = build(DRIVER), tmp_path_factory.mktemp("copies")
    compile_for_the_driver(standin, SOURCE, folder / "linked", "-DLINKED")
    compile_for_the_driver(standin, SOURCE, folder / "opened")  # linked too: `way` says how it finds the copies

    def run(
        way: str,
        form: str,
        memory: str,
        configuration: str = "",
        preload: bool = True,
        processors: Collection[int] = (),
        **variables: str,
    ) -> Ran:
        log = folder / "calls"
        log.write_bytes(b"")
        base = {**os.environ, "PINNING_COPIES_MIN_BYTES": "64KiB", **variables}
        if preload:
            base["LD_PRELOAD"] = str(TOOL)
        done = subprocess.run(
            [folder / ("linked" if way == "linked" else "opened"), way, form, memory],
            env=DRIVER.environment(standin, f"log={log};{configuration}", base),
            preexec_fn=lambda: os.sched_setaffinity(0, processors or os.sched_getaffinity(0)),
            capture_output=True,
            text=True,
            timeout=600,
        )
        lines = [line.split() for line in log.read_text().splitlines()]
        calls = Counter(line[0] for line in lines)
        streams = {line[-1] for line in lines if line[0] == "cuMemcpyAsync"}
        return Ran(done.returncode, done.stdout, done.stderr, calls, streams)

    return run


@pytest.mark.parametrize(("way", "form"), [*product(WAYS, FORMS), *product(("dlsym", "proc"), ROWS)])
def test_a_copy_of_pageable_memory_is_staged(run: Run, way: str, form: str) -> None:
    ran = run(way, form, "pageable")
    assert ran.outcome == (0, "same\n", "")
    assert (ran.by_driver, ran.staged > 0) == (0, True), ran.calls
    if "stream" not in form and form not in ROWS:  # the default stream that null stands for in this form
        assert ran.streams == {"0x2" if "thread" in form else "0x1"}


@pytest.mark.parametrize("form", ["sync", "async stream"])
def test_so_are_those_of_openmps_runtime(run: Run, build: Callable[[Driver], Path], tmp_path: Path, form: str) -> None:
    """With the functions of LLVM by which libomptarget's plugin finds the driver's."""
    llvm = Path("/usr/lib/llvm-19/lib")
    if not (llvm / "libLLVM.so.19.1").exists():
        pytest.skip("needs LLVM: apt-get install libomp-19-dev")
    (tmp_path / "libcuda.so").symlink_to(build(DRIVER) / "libcuda.so.1")
    ran = run("llvm", form, "pageable", LD_LIBRARY_PATH=f"{tmp_path}:{llvm}")
    assert ran.outcome == (0, "same\n", "")
    assert (ran.by_driver, ran.staged > 0) == (0, True), ran.calls


@pytest.mark.parametrize("form", BATCHES)
@pytest.mark.parametrize("way", ["dlsym", "proc"])
def test_large_copies_of_a_batch_are_staged(run: Run, way: str, form: str) -> None:
    ran = run(way, form, "pageable", PINNING_COPIES_MIN_BYTES="256KiB", PINNING_REPORT="-")
    assert (ran.code, ran.out) == (0, "same\n")
    alone = "attributes" in form
    assert (ran.by_driver, ran.staged > 0) == (0 if alone else 2, True), ran.calls  # the small one of each batch
    assert f"copied to devices: {'4 MiB in 1' if alone else '4.0 MiB in 2'} staged" in ran.errors
    assert ("copied either way: 8 KiB in 2 too small to stage" in ran.errors) == (not alone)


@pytest.mark.parametrize("form", ["batch async stream", "batch1 async stream"])
def test_pinned_memory_in_a_batch_is_the_drivers(run: Run, form: str) -> None:
    ran = run("proc", form, "half registered", PINNING_COPIES_MIN_BYTES="256KiB", PINNING_REPORT="-")
    assert (ran.code, ran.out, ran.by_driver) == (0, "same\n", 2)
    for direction in ("to", "from"):
        report = rf"copied {direction} devices: 2 MiB in 1 staged \(.*\); 2.0 MiB in 1 of pinned memory"
        assert re.search(report, ran.errors)


@pytest.mark.parametrize(
    ("form", "memory"),
    [
        ("batch async", "pageable"),  # in the legacy default stream
        ("batch async wrong stream", "pageable"),
        ("attributes async wrong stream", "pageable"),
        ("batch async stream", "pinned"),
        ("batch async stream", "past the end"),
        ("batch1 async stream", "past the end"),
        ("batch async stream", "before the beginning"),  # of its two large copies, only the second could be made
        ("batch async stream", "small"),
        ("attributes async stream", "small"),
    ],
)
def test_other_batches_are_the_drivers(run: Run, form: str, memory: str) -> None:
    plain, ran = run("proc", form, memory, preload=False), run("proc", form, memory)
    assert ran.outcome == plain.outcome
    assert (ran.by_driver, memory != "past the end" and ran.staged > 0) == (plain.by_driver, False)


def test_a_batch_that_is_captured(run: Run) -> None:
    plain = run("proc", "batch async stream", "captured", preload=False)
    assert run("proc", "batch async stream", "captured").outcome == plain.outcome


@pytest.mark.parametrize("form", ["sync", "async", "async stream"])
@pytest.mark.parametrize("memory", ["pinned", "registered", "registered part", "managed", "small", "past the end"])
def test_other_copies_are_the_drivers(run: Run, memory: str, form: str) -> None:
    plain, ran = run("proc", form, memory, preload=False), run("proc", form, memory)
    if not (memory == "managed" and form != "sync"):  # overwritten during the copy: any bytes may arrive
        assert ran.outcome == plain.outcome
    for call in ("cuMemHostAlloc", "cuMemHostRegister"):
        assert ran.calls.get(call) == plain.calls.get(call)
    assert (ran.by_driver, ran.staged) == (plain.by_driver, 0)


# From null, in its second row; that do not fit into the pitch, or not at their place; with too large a pitch; so many
# that their bytes, or the distance of the last one, wrap around to some MiB.
WRONG_ROWS = [("", "null"), *((rows, "pageable") for rows in ("shifted", "thin", "wide", "wraps", "wraps pitched"))]
REFUSED = [
    *product(["sync", "async", "async stream", "either sync", "attributes async stream"], ["null", "two allocations"]),
    *product(["sync", "async stream", "either sync", "attributes async stream"], ["wraps"]),
    *((f"rows {call} {rows}", memory) for call in ("sync", "async") for rows, memory in WRONG_ROWS),
]


@pytest.mark.parametrize(("form", "memory"), REFUSED)
def test_a_copy_that_the_driver_refuses_is_its_own(run: Run, form: str, memory: str) -> None:
    said = {
        "null": "1 1\n",
        "wraps": "1 1 in little memory\n",
        "two allocations": "1 1 untouched, untouched\n",
        "pageable": "error 1\n",
    }[memory]
    plain, ran = run("proc", form, memory, preload=False), run("proc", form, memory)
    assert ran.outcome == plain.outcome == (0, said, "")
    assert (ran.by_driver, ran.staged) == (plain.by_driver, 0)


@pytest.mark.parametrize("form", ["either sync", "either async", "batch async stream", "attributes async stream"])
@pytest.mark.parametrize("memory", ["on the device", "in the host", "no context"])
def test_copies_that_are_not_between_the_two(run: Run, memory: str, form: str) -> None:
    plain, ran = run("proc", form, memory, preload=False), run("proc", form, memory)
    assert ran.outcome == plain.outcome
    if memory != "no context":  # a stream has a context
        assert (ran.by_driver, ran.staged) == (plain.by_driver, 0)


def test_below_the_threshold_the_driver_is_asked_nothing(run: Run) -> None:
    plain, ran = run("proc", "sync", "small", preload=False), run("proc", "sync", "small")
    assert ran.calls == plain.calls


def test_captures_are_left_alone(run: Run) -> None:
    ran = run("proc", "async stream", "captured")
    assert ran.outcome == (0, "capture 0\n", "")
    assert ran.staged == 0
    assert run("proc", "sync", "beside capture").out == "error 900\n"  # the driver's own error
    assert run("proc", "async stream", "captured meanwhile").outcome == (0, "capture 0\n", "")


SYNCHRONOUS = ["cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds", "cuMemcpy", "cuMemcpy_ptds", "rows cuMemcpy2D_v2"]


@pytest.mark.parametrize("size", [2, 48, 150])
@pytest.mark.parametrize("call", [*SYNCHRONOUS, "rows cuMemcpy2DUnaligned_v2_ptds"])
def test_a_synchronous_copy_returns_when_other_streams_see_it(
    tmp_path: Path, build: Callable[[Driver], Path], call: str, size: int
) -> None:
    """As with the driver alone, which leaves the last MiB in flight; the stand-in does so too."""
    program = tmp_path / "in_flight"
    compile_for_the_driver(build(DRIVER), IN_FLIGHT, program)
    base = {**os.environ, "PINNING_COPIES_MIN_BYTES": "64KiB", "PINNING_REPORT": "-"}
    for preload in ({}, {"LD_PRELOAD": str(TOOL)}):
        environment = DRIVER.environment(build(DRIVER), "", base | preload)
        done = subprocess.run([program, call, str(size)], env=environment, capture_output=True, text=True, timeout=600)
        assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert re.search(r"copied to devices: .* in [56] staged", done.stderr), done.stderr  # the first may be too little


def test_a_copy_reads_what_earlier_work_of_its_stream_has_written(
    tmp_path: Path, build: Callable[[Driver], Path]
) -> None:
    program = tmp_path / "in_turn"
    compile_for_the_driver(build(DRIVER), SOURCE.with_name("in_turn.c"), program)
    base = {**os.environ, "PINNING_COPIES_MIN_BYTES": "64KiB", "PINNING_REPORT": "-", "LD_PRELOAD": str(TOOL)}
    environment = DRIVER.environment(build(DRIVER), "", base)
    done = subprocess.run([program, "8"], env=environment, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert re.search(r"copied to devices: .* in [34] staged", done.stderr), done.stderr  # the first may be too little


@pytest.mark.parametrize("form", ["sync", "async", "async stream"])
def test_a_context_of_the_programs_own(run: Run, form: str) -> None:
    ran = run("proc", form, "own context")
    assert ran.outcome == (0, "same\nsame\n", "")
    assert (ran.by_driver, ran.calls["cuMemHostRegister"]) == (0, 2)
    assert "cuDevicePrimaryCtxRetain" not in ran.calls


@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_child_of_fork_gets_what_the_driver_says(run: Run, form: str) -> None:
    ran = run("proc", form, "fork")
    assert ran.outcome == (0, "child 6\nchild 6\nsame\n", "")
    plain = run("proc", form, "pageable")
    assert ran.calls["cuPointerGetAttributes"] == plain.calls["cuPointerGetAttributes"], "the children ask nothing"


@pytest.mark.parametrize("form", ["sync", "async"])
def test_exit_while_a_copy_is_under_way(run: Run, form: str) -> None:
    assert run("proc", form, "exit").outcome == (0, "", "")


AT_ONCE = product(["sync", "sync thread", "async"], ["threads"], ["channels=1", "channels=2", "channels=8"])


@pytest.mark.parametrize(("form", "memory", "configuration"), [*AT_ONCE, ("async", "small threads", "")])
def test_threads_that_copy_at_once(run: Run, form: str, memory: str, configuration: str) -> None:
    ran = run("proc", form, memory, configuration)
    assert ran.outcome == (0, "same\n", "")
    assert ran.staged > 0


@pytest.mark.parametrize("form", ["sync", "async"])
def test_pages_that_a_handler_of_the_programs_makes_accessible(run: Run, form: str) -> None:
    ran = run("proc", form, "guarded")
    assert ran.outcome == (0, "same\n", "")
    assert (ran.by_driver, ran.staged > 0) == (0, True), ran.calls


def test_streams_that_come_and_go(run: Run) -> None:
    ran = run("proc", "async", "many streams")
    assert ran.outcome == (0, "same\n", "")
    assert (ran.by_driver, ran.calls["cuStreamCreate"]) == (0, 1000)
    assert ran.calls["cuMemHostRegister"] <= 6  # the next stream reuses free blocks


def test_many_streams_at_once(run: Run) -> None:
    ran = run("dlsym", "async", "streams at once")
    assert ran.outcome == (0, "same\n", "")
    assert (ran.by_driver, ran.staged > 64) == (1, True)  # the first: too little was copied before


def test_a_process_that_has_forbidden_itself_system_calls(run: Run) -> None:
    plain = run("proc", "sync", "sandboxed", preload=False)
    ran = run("proc", "sync", "sandboxed", PINNING_REPORT="-")
    assert (ran.outcome, ran.by_driver, ran.staged) == (plain.outcome, 2, 0)
    assert plain.outcome == (0, "same\n", "")


def test_a_process_that_only_asks_what_it_may_forbid(run: Run) -> None:
    ran = run("dlsym", "sync", "asks about system calls")
    assert (ran.outcome, ran.by_driver, ran.staged > 0) == ((0, "same\n", ""), 0, True)


@pytest.mark.parametrize("library", ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"])
def test_with_an_allocator_of_the_programs_own(run: Run, library: str) -> None:
    alone = subprocess.run(["true"], env={**os.environ, "LD_PRELOAD": library}, capture_output=True, check=True)
    if alone.stderr:  # not tested with dlopen: some can only be loaded first
        pytest.skip(f"needs an allocator: {library}")
    for first in (f"{TOOL}:{library}", f"{library}:{TOOL}"):
        ran = run("proc", "async", "threads", preload=False, LD_PRELOAD=first)
        assert ran.outcome == (0, "same\n", "")
        assert ran.staged > 0


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize(
    "call",
    [
        "cuMemHostRegister:1:801",
        "cuMemHostRegister:1:2;fail=cuMemHostAlloc:1:2",
        "cuMemcpyAsync:3:999",
        "cuStreamBatchMemOp:1:801",
        "cuStreamIsCapturing:1:999",
        "cuStreamGetId:1:999",
        "cuCtxGetId:1:999",
        "cuCtxGetDevice:1:999",
        "cuPointerGetAttributes:1:999",
    ],
)
def test_driver_copies_when_staging_is_refused(run: Run, call: str, form: str) -> None:
    assert run("proc", form, "pageable", f"fail={call}").outcome == (0, "same\n", "")


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("call", ["work:2:719", "cuMemcpyAsync:3:700"])
def test_of_a_lost_device_the_driver_says_why(run: Run, call: str, form: str) -> None:
    ran = run("proc", form, "pageable", f"lost={call}")
    assert (ran.out.split()[-1], ran.errors) == (call.rpartition(":")[2], "")  # of this copy or the next one


def test_nothing_is_staged_where_that_is_off(run: Run) -> None:
    ran = run("proc", "sync", "pageable", PINNING_COPIES="off")
    assert ran.outcome == (0, "same\n", "")
    assert (ran.by_driver, ran.staged) == (2, 0)


def test_nothing_is_staged_with_one_processor(run: Run) -> None:
    one = [next(iter(os.sched_getaffinity(0)))]
    ran = run("proc", "sync", "pageable", processors=one, PINNING_REPORT="-")
    assert (ran.code, ran.out, ran.by_driver, ran.staged) == (0, "same\n", 2, 0)
    assert "the process may use one processor only" in ran.errors


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PINNING_COPIES", "fast"),
        ("PINNING_COPIES_HUGE_PAGES", "x"),
        ("PINNING_COPIES_MIN_BYTES", "0"),
        ("PINNING_COPIES_MIN_BYTES", "x"),
        ("PINNING_COPIES_MIN_BYTES", "99999999999TiB"),
    ],
)
def test_a_wrong_setting_is_told_and_nothing_is_staged(run: Run, variable: str, value: str) -> None:
    ran = run("proc", "sync", "pageable", **{variable: value})
    assert (ran.code, ran.out, ran.staged) == (0, "same\n", 0)
    assert ran.errors.startswith(f"pinning: {variable}={value} means nothing: ")


def test_a_copy_that_crosses_a_lock_of_ours_is_split_there(build: Callable[[Driver], Path]) -> None:
    done = run_script(build, "crossing_locks.py")
    assert (done.returncode, done.stdout) == (0, "40000 right 1 1\n8388608 right 1 1\n"), done.stderr


@pytest.mark.parametrize("wanted", [True, False])
def test_huge_pages_are_asked_for_unless_that_is_off(build: Callable[[Driver], Path], wanted: bool) -> None:
    needs_two_processors()
    off = {} if wanted else {"PINNING_COPIES_HUGE_PAGES": "off"}
    done = run_script(build, "huge_pages.py", PYTHONPATH=PYTHONPATH, **off)
    assert done.stderr == ""
    assert done.stdout.split()[0 if wanted else 1] == "True"


def test_failures_now_and_then_end_no_staging(build: Callable[[Driver], Path], tmp_path: Path) -> None:
    needs_two_processors()
    log = tmp_path / "log"
    failures = ";".join(f"fail=cuMemcpyAsync:{n}:999" for n in (3, 20, 40, 60))
    done = run_script(build, "many_copies.py", configuration=f"log={log};{failures}", PINNING_COPIES_MIN_BYTES="64KiB")
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["0"] * 60, "")
    assert log.read_text().count("cuMemcpyHtoD ") == 4


@pytest.mark.parametrize(
    ("what", "configuration"), [("shared", ""), ("context", ""), ("drivers", "confidential"), ("fork", "")]
)
def test_rings(build: Callable[[Driver], Path], what: str, configuration: str) -> None:
    needs_two_processors()
    done = run_script(build, "rings.py", what, configuration=configuration, PINNING_COPIES_MIN_BYTES="64KiB")
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


@pytest.mark.parametrize(
    ("way", "memory"), [("proc", "pageable"), ("linked", "pageable"), ("proc", "pinned"), ("proc", "small")]
)
def test_the_report(run: Run, way: str, memory: str) -> None:
    ran = run(way, "async", memory, PINNING_REPORT="-")
    assert ran.out == "same\n"
    size = "4 KiB" if memory == "small" else "4 MiB"
    how = {"pageable": " staged (", "pinned": " of pinned memory", "small": " too small to stage ("}[memory]
    for direction in ("to", "from"):
        assert f"pinning: copied {direction} devices: {size} in 1{how}" in ran.errors
    if memory != "small":
        assert "pinning: large copies by size: 4 MiB 2x\n" in ran.errors
        assert f"pinning: by {'linked' if way == 'linked' else 'opened'}: 8 MiB in 2 (" in ran.errors


def test_the_report_counts_small_rows(run: Run) -> None:
    report = run("proc", "rows sync", "small", PINNING_REPORT="-").errors
    assert "pinning: copied either way: 8 KiB in 2 too small to stage (" in report


def test_what_a_child_of_vfork_forbids_itself_is_not_forbidden_here(run: Run) -> None:
    ran = run("proc", "sync", "vfork")
    assert ran.outcome == (0, "same\n", "")
    assert (ran.by_driver, ran.staged > 0) == (0, True), ran.calls


@pytest.mark.parametrize(("form", "memory"), [("sync", "past the end"), ("sync", "null"), ("rows", "past the end")])
def test_the_report_counts_no_copy_that_the_driver_refuses(run: Run, form: str, memory: str) -> None:
    ran = run("proc", form, memory, PINNING_REPORT="-")
    assert ran.out != "same\n"
    assert "MiB" not in ran.errors


def test_the_report_says_why_copies_were_left_to_the_driver(run: Run) -> None:
    report = run("proc", "async stream", "captured", PINNING_REPORT="-").errors
    assert re.search(r"left to the driver: 4 MiB in 1 \(.*\): the stream is captured into a graph\n", report)
    report = run("proc", "sync", "pageable", PINNING_REPORT="-", PINNING_COPIES="off").errors
    assert re.search(r"left to the driver: 8 MiB in 2 \(.*\): PINNING_COPIES is off\n", report)
    report = run("proc", "sync", "pageable", PINNING_REPORT="-", PINNING_COPIES_MIN_BYTES="4MiB").errors
    assert re.search(r"left to the driver: 8 MiB in 2 \(.*\): too little was copied so far", report)


def test_the_trace(run: Run, tmp_path: Path) -> None:
    ran = run("proc", "either async", "pageable", PINNING_TRACE=str(tmp_path / "trace.json"))
    assert ran.outcome == (0, "same\n", "")
    bars = [event for event in json.loads((tmp_path / "trace.json").read_text()) if event["ph"] == "X"]
    assert [bar["name"] for bar in bars] == ["copy to device", "copy from device"]
    assert all(bar["args"]["memory"] == "staged" and bar["args"]["bytes"] == 4 << 20 for bar in bars)

# SPDX-License-Identifier: Apache-2.0
"""`pinning top`: the current locks of another process, whatever that process is doing."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from limits import needs_room_to_lock
from pinning.cli.status import NoStatusError, Status, status_of
from pinning.cli.top_view import show, watch
from pinning.map.pinned_map import watch_problem

PAGE = os.sysconf("SC_PAGE_SIZE")

PROGRAM = """
import mmap, os, sys
import numpy as np
import pinning

memory = mmap.mmap(-1, 8 * {page})
array = np.frombuffer(memory, np.uint8)
held = []
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Program:
    """A process that runs the lines that it receives, one at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def __call__(self, line: str) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


@contextmanager
def started(**variables: str) -> Iterator[Program]:
    environment = {**os.environ, "PYTHONSAFEPATH": "1", **variables}
    program = [sys.executable, "-c", PROGRAM.format(page=PAGE)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(program, env=environment, text=True, **pipes) as process:
        yield Program(process)
        process.kill()


@pytest.fixture
def program() -> Iterator[Program]:
    with started() as program:
        yield program


TOP = [sys.executable, "-c", "from pinning_command import main; main()", "top"]


def top(*arguments: object, columns: int = 100) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": str(columns), "PYTHONSAFEPATH": "1"}
    command = TOP + list(map(str, arguments))
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def seen(pid: int) -> Any:
    done = top(pid, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (process,) = json.loads(done.stdout)["processes"]
    return process


def test_locks_come_and_go(program: Program) -> None:
    program("held.append(pinning.lock(array[: 2 * 4096], device='host'))")
    now = seen(program.pid)
    (range_,) = now["ranges"]
    assert (range_["device"], range_["size"], range_["owner"]) == ("host:0", 8192, "numpy.ndarray")
    assert now["since"] <= range_["since"] <= now["time"]
    program("held.append(pinning.lock(array[:4096], device='host'))")
    assert seen(program.pid)["locked"] == 8192, "a lock within a lock is a count"
    program("[each.unlock() for each in held]")
    now = seen(program.pid)
    assert now["locked"] == 0 and now["ranges"] == [] and now["registrations"] == 1
    program("held.append(pinning.pinned_map('host').lock(array.ctypes.data, 4096))")
    (range_,) = seen(program.pid)["ranges"]
    assert range_["owner"] in (None, ""), "a lock of an address has no owner, whatever was listed there before"


def test_a_lock_before_another_leaves_that_ones_owner(program: Program) -> None:
    program("held.append(pinning.lock((array.ctypes.data + 8192, 4096), device='host'))")
    program("held.append(pinning.lock(array[:8192], device='host'))")
    program("held.append(pinning.Arena(12288, 'host')); held[-1].wait()")
    owners = {range_["size"]: range_["owner"] for range_ in seen(program.pid)["ranges"]}
    assert owners == {8192: "numpy.ndarray", 4096: "tuple", 12288: "pinning.Arena"}


@pytest.mark.skipif(watch_problem() is not None, reason=str(watch_problem()))
def test_memory_that_has_gone_is_listed_no_more(program: Program) -> None:
    program("import ctypes; other = mmap.mmap(-1, 8192, mmap.MAP_PRIVATE)")
    program("ptr = np.frombuffer(other, np.uint8).ctypes.data")
    program("held.append(pinning.pinned_map('host').lock(ptr, 8192))")
    assert seen(program.pid)["locked"] == 8192
    program("assert ctypes.CDLL(None).munmap(ctypes.c_void_p(ptr), ctypes.c_size_t(8192)) == 0")
    program("held.append(pinning.lock(array[:4096], device='host'))")
    (range_,) = seen(program.pid)["ranges"]
    assert (range_["size"], seen(program.pid)["locked"]) == (4096, 4096)


def test_pieces_are_one_range(program: Program) -> None:
    program(f"held.append(pinning.lock(array, device='host', piece=2 * {PAGE}))")
    (range_,) = seen(program.pid)["ranges"]
    assert (range_["size"], range_["registrations"]) == (8 * PAGE, 4)


def test_where_it_was_locked_is_told_on_request() -> None:
    with started(PINNING_LOCK_SITES="on") as program:
        program("held.append(pinning.lock(array[:100], device='host'))")
        (range_,) = seen(program.pid)["ranges"]
    assert range_["site"] == "<string>:1 in <module>"


def test_a_process_that_hangs_is_seen(program: Program) -> None:
    program("held.append(pinning.lock(array[:100], device='host'))")
    os.kill(program.pid, signal.SIGSTOP)
    try:
        assert seen(program.pid)["locked"] == 100
    finally:
        os.kill(program.pid, signal.SIGCONT)


def test_copies_are_counted_by_path(program: Program) -> None:
    program("pinning.copy(np.zeros(500, np.uint8), array[:500])")  # before anything is locked or allocated
    program("there = pinning.alloc(1000, device='host'); held.append(pinning.lock(array[:1000], device='host'))")
    program("[pinning.copy(there, array[:1000]) for _ in range(3)]")
    assert seen(program.pid)["moved"] == {"direct": 3000, "staged": 0, "plain": 500, "small": 0}


def test_batches_are_counted_by_path(program: Program) -> None:
    program("there = pinning.alloc(8192, device='host'); held.append(pinning.lock(array[:8192], device='host'))")
    program("other = np.zeros(8192, np.uint8)")
    program("pinning.copy_batch([there, other], [array[:1000], array[:500]], [1000, 500])")
    program("pinning.copy_blocks_async(other, [0, 1, 2], array[:8192], [2, 1, 0], 100)")
    # Threads copy between two arrays of the host.
    assert seen(program.pid)["moved"] == {"direct": 1000, "staged": 800, "plain": 0, "small": 0}


def test_files_are_counted(program: Program, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(700_000))
    program("there = pinning.alloc(700_000, device='host'); held.append(pinning.lock(array[:100], device='host'))")
    program(f"pinning.copy_file(there, {str(tmp_path / 'file')!r}).wait()")
    assert seen(program.pid)["moved"] == {"direct": 0, "staged": 700_000, "plain": 0, "small": 0}


def test_what_went_over_peers_links_is_shown(program: Program) -> None:
    program("there = pinning.alloc(1000, device='host'); held.append(pinning.lock(array[:1000], device='host'))")
    before = status_of(program.pid)
    assert before.by_peers == 0 and "over peers' links" not in shown(before)
    program("from pinning.copies.work import count_by_peers; count_by_peers(3 << 30)")
    after = replace(status_of(program.pid), since=0, time=before.time + 2)
    with (to := Console(width=200)).capture() as text, pytest.raises(StopIteration):
        watch(iter([[before], [after]]).__next__, True, 0, to)
    assert re.search(r"over peers. links +3\S* GiB +1\.5 GiB/s", text.get())
    assert re.search(r"over peers. links 3\S* G", shown(after))


def test_ranges_are_in_the_order_of_their_addresses(program: Program) -> None:
    program(f"held += [pinning.lock(array[at * {PAGE} :][:100], device='host') for at in (4, 0, 2)]")
    starts = [each.start for each in status_of(program.pid).ranges]
    assert len(starts) == 3 and starts == sorted(starts)


def test_ranges_that_have_no_room_are_counted(program: Program) -> None:
    """Neither those that the terminal has no room for, nor those that the status page has none for."""
    program("held.append(pinning.lock(array[:100], device='host'))")
    status = status_of(program.pid)
    assert " more" not in shown(status)
    for ranges, unlisted, more in ((31, 0, 1), (1, 5, 5), (32, 5, 7)):
        many = replace(status, ranges=status.ranges * ranges, unlisted=unlisted)
        assert shown(many).endswith(f"and {more} more")
        assert f"locked in {ranges + unlisted} ranges" in shown(many)
    for line, unlisted in (
        ("held += [pinning.lock(array[i : i + 1], device='host') for i in range(100, 4200)]", 5),
        ("while len(held) > 1: held.pop().unlock()", 0),
    ):
        program(line)
        assert status_of(program.pid).unlisted == unlisted


def shown(status: Status) -> str:
    """Everything that is displayed of a process, as words."""
    with (to := Console(width=200)).capture() as text:
        show([status], True, to)
    return " ".join(text.get().replace("│", " ").split())


def test_the_budget_and_what_is_idle(program: Program) -> None:
    program("held.append(pinning.lock(array[8192:8193], device='host')); held.pop().unlock()")  # so that it has a page
    program("before = pinning.budget().used; pinning.budget(before + (1 << 30), idle=True)")
    assert seen(program.pid)["budget"]["idle"] == 0
    program("kept = np.zeros(3 << 12, np.uint8); pinning.lock(kept, device='host').unlock()")
    program("held.append(pinning.lock(array[:4096], device='host'))")
    now = seen(program.pid)
    assert (now["budget"]["used"], now["budget"]["idle"]) == (now["locked"], 3 << 12) == (4 << 12, 3 << 12)
    shown = top(program.pid, "--once").stdout
    assert ": 16 KiB used, 12 KiB of it idle" in shown, shown
    assert sorted((each["size"], each["idle"]) for each in now["ranges"]) == [(4096, False), (3 << 12, True)]
    assert re.search(r" 12 KiB +idle ", shown) and re.search(r" 4 KiB +locked ", shown), shown
    program("held.append(pinning.lock(kept[:100], device='host'))")
    assert not any(each["idle"] for each in seen(program.pid)["ranges"]), "a lock in it makes it locked again"
    program("held.pop().unlock(); pinning.give_back_idle()")
    assert seen(program.pid)["budget"]["idle"] == 0
    program("pinning.pinned_map('host').register(1 << 40, 4096, 1 << 40)")
    program("pinning.pinned_map('host').register(2 << 40, 8192, 2 << 40)")
    assert seen(program.pid)["budget"]["external"] == 3 * 4096
    program("pinning.pinned_map('host').unregister(2 << 40)")
    assert (seen(program.pid)["budget"]["external"], seen(program.pid)["budget"]["idle"]) == (4096, 0)
    program("maps = {np.frombuffer(each, 'u1').ctypes.data: each for each in [mmap.mmap(-1, 4096) for _ in range(9)]}")
    program("one, other = next((maps[at], maps[at + 4096]) for at in maps if at + 4096 in maps)")
    program("held.append(pinning.lock(one, device='host')); pinning.lock(other, device='host').unlock()")
    beside = [each["idle"] for each in seen(program.pid)["ranges"] if each["size"] == 4096]
    assert sorted(beside) == [False, False, True], "neighbours, of which one is locked, are two ranges"


def test_a_child_of_fork_has_a_page_of_its_own(program: Program) -> None:
    program("held.append(pinning.lock(array[:100], device='host'))")
    program("import time; os.fork() or time.sleep(600)")
    child = int(Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text())
    try:
        assert seen(program.pid)["locked"] == 100
        done = top(child, "--json")
        assert done.returncode == 1 and "has locked nothing" in json.loads(done.stdout)["error"]
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_people_see(program: Program) -> None:
    program("held.append(pinning.lock(memory, device='host'))")
    one = top(program.pid, "--once").stdout
    assert str(program.pid) in one and "mmap.mmap" in one and "32 KiB" in one and "direct" in one
    assert f"{program.pid}  {Path(sys.executable).name} -c" in one, "the program by its name alone"
    assert top(program.pid).stdout.splitlines()[0] == one.splitlines()[0], "without a terminal, once"
    assert str(program.pid) in top().stdout
    assert program.pid in [each["pid"] for each in json.loads(top("--json").stdout)["processes"]]


@pytest.mark.parametrize(
    "page",
    [
        "os.write(page, b'x' * 10)",
        "os.ftruncate(page, 1 << 40); os.pwrite(page, b'x', 0)",
        # A correct head, and one and a half of three slots.
        "os.write(page, struct.pack('=QII', 0x0031_4E49_5049_4E50, 3, 3)); os.ftruncate(page, 256 + 300)",
    ],
)
def test_a_page_that_is_none_hides_no_other_process(program: Program, page: str) -> None:
    program("held.append(pinning.lock(array[:100], device='host'))")
    with started(PINNING_STATUS="off") as other:
        other(f"import struct; page = os.memfd_create('pinning-status'); {page}")
        done = top(other.pid)
        assert done.returncode == 1 and "status page this one cannot read" in " ".join(done.stderr.split())
        assert program.pid in [each["pid"] for each in json.loads(top("--json").stdout)["processes"]]


def test_what_other_processes_name_does_nothing_to_the_terminal(program: Program) -> None:
    program("held.append(pinning.lock(array[:100], device='host'))")
    status = status_of(program.pid)
    ranges = [each._replace(device="d\x1b[2J", owner="o\x1b[2J", site="s\x1b[2J") for each in status.ranges]
    odd = replace(status, command="run \x1b]0;title\x07\x9b2J", ranges=ranges)
    for details in (False, True):
        shown = "\n".join(lines([odd], details, width=100))
        assert "run \ufffd]0;title" in shown and not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)


def test_what_cannot_be_seen_is_said_in_a_line() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    done = top(gone.pid)
    assert done.returncode == 1 and f"there is no process {gone.pid}" in done.stderr
    with started(PINNING_STATUS="off") as program:
        program("held.append(pinning.lock(array[:100], device='host'))")
        done = top(program.pid, "--once")
        assert done.returncode == 1 and "PINNING_STATUS=off" in " ".join(done.stderr.split())


def lines(shown: list[Status], details: bool, width: int = 0) -> list[str]:
    """What is displayed in a terminal of this width, or, without one, in a pipe."""
    to = Console(width=width or 80, force_terminal=bool(width), color_system=None)
    with to.capture() as text:
        show(shown, details, to)
    return text.get().splitlines()


def test_figures_are_whole_in_80_columns(program: Program) -> None:
    needs_room_to_lock(1200 << 10)
    program("class AnOwnerWithAVeryLongNameThatLeavesNoRoom(mmap.mmap): pass")
    program("other = AnOwnerWithAVeryLongNameThatLeavesNoRoom(-1, 1200 << 10)")
    program("held.append(pinning.lock(other, device='host', piece=4096))")
    status = status_of(program.pid)
    shown = lines([status], True, width=80)
    figures = r"host:0 +0x[0-9a-f]{8,} +1\.2 MiB +300 +locked +\d+ s +AnOwner"
    assert any(re.match(rf"{figures}\w*…", line) for line in shown), shown
    assert max(map(len, shown)) <= 80
    long = replace(status, command="x" * 200)
    overview = lines([long], False, width=80)
    assert re.match(rf" *{program.pid} +1\.2 MiB .*xxx…$", overview[-1]) and max(map(len, overview)) <= 80
    assert lines([long], False)[-1].endswith("x" * 200) and lines([long], True)[0].endswith("x" * 200)
    piped = top(program.pid, columns=80).stdout
    assert re.search(rf"{figures}WithAVeryLongNameThatLeavesNoRoom", piped), "a pipe has no width"


@pytest.mark.parametrize(
    ("width", "pieces", "end"),
    [
        (0, 1, "numpy.ndarray   a_service.py:123 in Handler.of_requests"),
        (100, 1, "numpy.ndarray   a_service.py:123"),
        (80, 1, "numpy.nda…   a_service.py:123"),
        (80, 300, "a_service.py:123"),
        (60, 1, "…e.py:123"),
    ],
)
def test_the_line_that_locked_it_is_shown_in_any_width(program: Program, width: int, pieces: int, end: str) -> None:
    program("held.append(pinning.lock(array[:4096], device='host'))")
    status = status_of(program.pid)
    one = status.ranges[0]._replace(start=0x7F1234567000, size=1258291, since=status.time, registrations=pieces)
    site = "/srv/app/a_service.py:123 in Handler.of_requests"
    (heading, _, row) = lines([replace(status, ranges=[one._replace(site=site)])], True, width)[-3:]
    counted = " +300" if pieces > 1 else ""
    assert re.fullmatch(rf"host:0 +0x7f1234567000 +1.2 MiB{counted} +locked +0 s   {re.escape(end)} *", row), row
    assert ("Pieces" in heading, "Where" in heading, "…" in heading) == (pieces > 1, True, False)
    assert "Where" not in lines([replace(status, ranges=[one])], True, width)[-3], "no site is known"


def test_a_process_whose_files_must_not_grow_has_no_page() -> None:
    with started() as program:
        program("import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)")
        program("resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))")
        program("held.append(pinning.lock(memory, device='host')); assert held[0].held")
        assert "has locked nothing" in top(program.pid, "--once").stderr


def test_q_quits(program: Program) -> None:
    program("[held.append(pinning.lock(array[i * 4096 :][:4096], device='host', piece=4096)) for i in range(8)]")
    child, terminal = pty.fork()
    if child == 0:
        os.execve(TOP[0], [*TOP, str(program.pid)], {**os.environ, "COLUMNS": "80", "LINES": "16", "TERM": "xterm"})
    try:
        shown = b""
        while b"q quits" not in shown:  # in the last line of the terminal, though the ranges have no room above it
            shown += os.read(terminal, 1 << 16)
        os.write(terminal, b"q")
        with suppress(OSError):  # the terminal ends with its last process
            while os.read(terminal, 1 << 16):
                pass
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        line_by_line = termios.ECHO | termios.ICANON
        assert termios.tcgetattr(terminal)[3] & line_by_line == line_by_line, "what is typed next is shown again"
    finally:
        os.close(terminal)


def test_rates_are_of_the_last_interval(program: Program) -> None:
    program("held.append(pinning.lock(memory, device='host'))")
    first = status_of(program.pid)
    copied = [0, 1 << 30, (1 << 30) + (3 << 20)]
    looks = iter(replace(first, time=first.time + i, moved={**first.moved, "direct": n}) for i, n in enumerate(copied))
    console = Console(file=io.StringIO(), width=100)
    with pytest.raises(StopIteration):
        watch(lambda: [next(looks)], True, 0, console)
    assert re.search(r"direct +1\.0 GiB +3 MiB/s", console.file.getvalue())  # type: ignore[attr-defined]


def test_root_is_told_why_it_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> Iterator[Path]:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    for user, reason in ((0, "CAP_SYS_PTRACE"), (1000, "or as root")):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with pytest.raises(NoStatusError, match=reason):
            status_of(1)

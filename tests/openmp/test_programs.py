# SPDX-License-Identifier: Apache-2.0
"""OpenMP programs with the tool, on the CPU's devices, for which memory is locked by mlock."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import SOURCES, TOOL, Ran, run, run_plain

from child_process import ordinary_user
from folders import SUPPORT
from installed import tool
from limits import needs_room_to_lock
from mapped_memory import PAGE

MIB = 1 << 20
BUFFERS = SOURCES / "buffers.c"


@pytest.fixture
def buffers(program: Callable[[Path], Path]) -> Path:
    return program(BUFFERS)


def locked_kib(ran: Ran, when: str = "") -> int:
    (line,) = [line for line in ran.errors.splitlines() if line.startswith(f"locked KiB{when}:")]
    return int(line.split(":")[1])


def test_a_buffer_is_locked_at_its_second_transfer_and_unlocked_when_it_is_freed(buffers: Path) -> None:
    ran = run(buffers, "heap", 4 * MIB)
    assert ran.locked == 1
    assert ran.moved("to") == (4, 1)
    assert ran.moved("from") == (5, 0)
    assert 4096 <= locked_kib(ran) <= 4104
    assert locked_kib(ran, " after free") == 0


def test_where_the_runtime_loads_the_tool_a_buffer_is_unlocked_when_it_is_unmapped(buffers: Path) -> None:
    ran = run(buffers, "heap", 4 * MIB, preload=False)
    assert ran.locked == 1
    assert ran.moved("from") == (5, 0)
    assert locked_kib(ran) == 0


@pytest.mark.parametrize(
    ("variables", "to", "back"),
    [
        ({"lock_after": 1}, (5, 0), (5, 0)),
        ({"lock_after": 4}, (3, 2), (4, 1)),
        ({"lock_min_bytes": 4 * MIB + 1}, (0, 5), (0, 5)),
        ({"lock_min_bytes": "4MiB"}, (4, 1), (5, 0)),
        ({"lock_mapped": "off"}, (0, 5), (0, 5)),
        ({"lock_mapped": "ON"}, (4, 1), (5, 0)),
        ({"lock_until": "unmapped"}, (4, 1), (5, 0)),
    ],
    ids=str,
)
def test_the_policy(buffers: Path, variables: dict[str, object], to: tuple[int, int], back: tuple[int, int]) -> None:
    ran = run(buffers, "heap", 4 * MIB, **variables)
    assert (ran.moved("to"), ran.moved("from")) == (to, back)


@pytest.mark.parametrize(
    ("name", "value"),
    [("lock_mapped", "perhaps"), ("lock_min_bytes", "many"), ("lock_after", "0"), ("lock_budget", "-1")],
)
def test_a_value_that_means_nothing_is_said_once_and_nothing_is_locked(buffers: Path, name: str, value: str) -> None:
    ran = run(buffers, "heap", 4 * MIB, **{name: value})
    assert ran.code == 0
    assert [line for line in ran.said if f"PINNING_{name.upper()}={value} means nothing" in line] == [ran.said[0]]
    assert locked_kib(ran) == 0


def test_a_budget_that_a_buffer_exceeds_is_kept_and_said(buffers: Path) -> None:
    ran = run(buffers, "heap", 4 * MIB, lock_budget="1MiB")
    assert ran.locked == 0
    (why,) = ran.refused
    assert why.endswith("up to 4 MiB: PINNING_LOCK_BUDGET allows 1 MiB at once")


@pytest.mark.parametrize("how", ["stack", "stack, mapped by another thread"])
def test_what_lies_on_a_stack_is_not_locked(buffers: Path, how: str) -> None:
    ran = run(buffers, how, 2 * MIB)
    assert (ran.out, locked_kib(ran)) == (f"{5 * 2 * MIB}\n", 0)
    assert any("it lies on a stack" in why for why in ran.refused)


def test_memory_of_a_library_is_locked_no_longer_than_it_is_mapped(buffers: Path, tmp_path: Path) -> None:
    """dlclose would unmap it unseen."""
    library = tmp_path / "library.so"
    source = f"char bytes[{2 * MIB}] = {{1}};"
    compiler = [tool("gcc", "apt-get install gcc"), "-shared", "-fPIC", "-xc", "-", "-o", library]
    subprocess.run(compiler, input=source, text=True, check=True)
    ran = run(buffers, "library", 2 * MIB, library)
    assert ran.out == f"{5 * 2 * MIB + 1}\n"
    assert (ran.locked, locked_kib(ran)) == (1, 0)


def test_a_buffer_freed_while_mapped_is_unlocked_and_what_comes_after_it_is_moved(buffers: Path) -> None:
    ran = run(buffers, "freed while mapped", 2 * MIB)
    assert locked_kib(ran) == 0
    assert ran.out == f"{4 * MIB}\n"


def test_views_of_a_buffer_end_in_one_lock(buffers: Path) -> None:
    ran = run(buffers, "through views", 4 * MIB, lock_min_bytes=1)
    assert 4096 <= locked_kib(ran) <= 4104


HOWS = [
    *("heap", "stack", "read-only", "freed while mapped", "through views", "threads", "fork", "own lock"),
    "while libraries are loaded",
]
VARIANTS: list[dict[str, object]] = [
    {"lock_min_bytes": 1, "lock_after": 1},
    {"lock_mapped": "off"},
    {"lock_min_bytes": 1, "lock_until": "unmapped", "preload": True},
    {"lock_min_bytes": 1, "preload": False},
    {"lock_min_bytes": 1, "lock_after": 1, "lock_budget": "512KiB"},
]


@pytest.mark.parametrize("how", HOWS)
def test_the_program_does_the_same_as_without_the_tool(buffers: Path, how: str) -> None:
    plain = run_plain(buffers, how, MIB)
    assert plain.code == 0
    for variables in VARIANTS:
        ran = run(buffers, how, MIB, **variables)
        assert (ran.code, ran.out) == (plain.code, plain.out), variables


def test_overlapping_parts_that_two_threads_move_at_once_arrive(program: Callable[[Path], Path]) -> None:
    crossing = program(SOURCES / "crossing.c")
    assert run_plain(crossing, 256, 10).out == "0 wrong, 0 failed\n"
    for variables in VARIANTS:
        ran = run(crossing, 256, 10, **variables)
        assert (ran.code, ran.out) == (0, "0 wrong, 0 failed\n"), variables


def test_static_data_of_the_program_is_no_librarys(program: Callable[[Path], Path]) -> None:
    ran = run(program(SOURCES / "statics.c"), lock_mapped="mandatory")
    assert (ran.code, ran.out) == (0, "4 4\n"), ran.errors
    assert ran.locked == 3
    assert ran.refused == []


def test_the_programs_own_locks_are_locks(buffers: Path) -> None:
    plain, ran = run_plain(buffers, "own lock", 4 * MIB), run(buffers, "own lock", 4 * MIB)
    assert locked_kib(plain) == 0
    assert 4096 <= locked_kib(ran) <= 4104
    assert locked_kib(ran, " after unlock") == 0
    assert 4096 <= locked_kib(ran, " of an allocation") <= 4104
    assert locked_kib(ran, " at the end") == 0


def test_a_limit_of_the_system_is_reported_and_the_program_goes_on(buffers: Path) -> None:
    ran = run(buffers, "heap", 4 * MIB, before=ordinary_user(64 << 10))
    assert (ran.code, ran.out) == (0, run_plain(buffers, "heap", 4 * MIB).out)
    assert locked_kib(ran) == 0
    assert any("RLIMIT_MEMLOCK allows 65536 bytes" in why for why in ran.refused)


def test_where_it_is_mandatory_the_program_ends(buffers: Path) -> None:
    ran = run(buffers, "heap", 4 * MIB, lock_mapped="mandatory", lock_budget="1MiB")
    assert ran.code == 1
    assert "PINNING_LOCK_MAPPED is mandatory" in ran.errors
    assert "cannot be locked for host:0: PINNING_LOCK_BUDGET allows 1 MiB at once" in ran.errors
    assert run(buffers, "heap", 4 * MIB, lock_mapped="mandatory").code == 0


def test_where_it_is_mandatory_the_program_ends_if_its_own_locks_leave_no_room(buffers: Path) -> None:
    needs_room_to_lock(9 * MIB)
    ran = run(buffers, "beside an own lock", 4 * MIB, lock_mapped="mandatory", lock_budget="6MiB")
    assert ran.code == 1
    assert "cannot be locked for host:0: PINNING_LOCK_BUDGET allows 6 MiB at once" in ran.errors
    assert run(buffers, "beside an own lock", 4 * MIB, lock_mapped="mandatory", lock_budget="9MiB").code == 0


def test_where_it_is_mandatory_the_program_may_have_locked_a_part_itself(buffers: Path) -> None:
    ran = run(buffers, "around an own lock", 4 * MIB, lock_mapped="mandatory")
    assert ran.code == 0, ran.errors
    assert any("have locked a part of it" in why for why in ran.refused)


def test_the_report_goes_to_a_file(buffers: Path, tmp_path: Path) -> None:
    ran = run(buffers, "heap", 4 * MIB, report=tmp_path / "report", lock_until="unmapped")  # so it is locked four times
    assert ran.said == []
    lines = (tmp_path / "report").read_text().splitlines()
    assert lines[0].startswith("pinning: 1 buffers locked, 4 MiB at most; ")
    folder = tmp_path / "of today.d"
    folder.mkdir()
    for _ in range(2):
        run(buffers, "smaller", 4 * MIB, report=folder / "another")
    first, second = sorted(folder.iterdir())
    assert first.name == "another" and re.fullmatch(r"another\.\d+", second.name)  # of the second process
    assert all(" buffers locked, 4 MiB at most; " in file.read_text() for file in (first, second))


def test_a_file_that_cannot_be_written_is_said_and_the_program_goes_on(buffers: Path, tmp_path: Path) -> None:
    ran = run(buffers, "heap", 4 * MIB, report=tmp_path / "no" / "report", trace=tmp_path / "no" / "trace")
    assert ran.code == 0
    assert sorted(line.split(":")[-1] for line in ran.said) == [" No such file or directory"] * 2


def test_the_trace_shows_locks_within_constructs_and_transfers_after_them(buffers: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    run(buffers, "heap", 4 * MIB, trace=file)
    events = json.loads(file.read_text())
    assert all(event["ph"] in "XiCM" and "pid" in event for event in events)
    spans = [event for event in events if event["ph"] == "X"]
    assert all(span["dur"] >= 0 and span["ts"] >= 0 and "tid" in span for span in spans)
    named = {name: [span for span in spans if span["name"] == name] for name in {span["name"] for span in spans}}
    assert set(named) == {"target", "lock", "unlock: freed", "to device", "from device"}
    assert [span["args"]["memory"] for span in named["to device"]] == ["not locked"] + ["locked"] * 4
    (lock,) = named["lock"]
    around = [span for span in named["target"] if span["ts"] <= lock["ts"] <= span["ts"] + span["dur"]]
    assert len(around) == 1
    assert around[0]["ts"] + around[0]["dur"] >= lock["ts"] + lock["dur"]
    after = [span for span in named["from device"] if span["ts"] >= lock["ts"] + lock["dur"]]
    assert len(after) == 5
    assert lock["args"] == {"address": after[0]["args"]["address"], "bytes": 4 * MIB, "device": "host:0"}
    counted = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    assert max(counted) == 4 * MIB
    assert counted[-1] == 0


def test_without_a_vendors_library_it_is_said_once_and_nothing_is_locked() -> None:
    missing = {"libcuda.so.1": "sm_90", "libhsa-runtime64.so.1": "gfx90a"}
    absent = [(name, kind) for name, kind in missing.items() if not loads(name)]
    if not absent:
        pytest.skip("needs a vendor's library to be missing, and both are here")
    name, kind = absent[0]
    program = f"""
import ctypes
from mapped_memory import Memory
from ompt_runtime import Runtime
from programs import TOOL
runtime, memory = Runtime(ctypes.CDLL(str(TOOL)), {kind!r}, "a strange one", "a strange one"), Memory(8)
for device in (0, 1):
    runtime.map(memory.ptr, memory.size, device)
    for _ in range(5):
        with runtime.to_device(memory.ptr, memory.size, device):
            pass
    runtime.unmap(memory.ptr, device)
runtime.finish()
"""
    ran = run(Path(sys.executable), "-P", "-c", python_path + program, lock_min_bytes=1)
    assert ran.code == 0, ran.errors
    assert [line for line in ran.said if name in line and "nothing is locked for" in line] == [ran.said[1]]
    strange = 'an OpenMP device of type "a strange one" is unknown; nothing is locked for it'
    assert [line for line in ran.said if line == strange] == [ran.said[0]]
    assert ran.locked == 0
    assert ran.moved("to") == (0, 10)


def test_the_report_adds_up_all_locks_of_a_buffer_and_all_refusals_for_one_reason() -> None:
    program = """
import ctypes, time
from mapped_memory import PAGE, Memory
from ompt_runtime import Runtime
from programs import TOOL
runtime, memory = Runtime(ctypes.CDLL(str(TOOL)), "generic-64bit"), Memory(16)
for pages, seconds in ((8, 0.3), (8, 0), (16, 0), (12, 0)):
    runtime.map(memory.ptr, pages * PAGE)
    for _ in range(2):
        with runtime.to_device(memory.ptr, pages * PAGE):
            pass
    time.sleep(seconds)
    runtime.unmap(memory.ptr)
runtime.finish()
"""
    limits = {"lock_min_bytes": 1, "lock_budget": 9 * PAGE, "lock_until": "unmapped"}
    ran = run(Path(sys.executable), "-P", "-c", python_path + program, **limits)
    held = re.search(r" host:0 +2x +\S+ ms +(\S+) ms ", ran.errors)
    assert held and float(held[1]) >= 300, ran.errors
    (why,) = ran.refused
    assert why.startswith(f"2x, up to {16 * PAGE >> 10} KiB: PINNING_LOCK_BUDGET")


def loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


# For a child, which needs this folder's modules too.
python_path = f"import sys; sys.path[:0] = {[str(Path(__file__).parent), str(SUPPORT)]!r}"


def test_a_tool_without_its_library_is_not_loaded_and_the_program_runs(buffers: Path, tmp_path: Path) -> None:
    alone = tmp_path / TOOL.name
    alone.write_bytes(TOOL.read_bytes())
    environment = {**os.environ, "OMP_TOOL_LIBRARIES": str(alone)}
    ran = run_plain(buffers, "heap", 4 * MIB, environment=environment)
    assert (ran.code, ran.out) == (0, run_plain(buffers, "heap", 4 * MIB).out)

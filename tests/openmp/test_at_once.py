# SPDX-License-Identifier: Apache-2.0
"""Concurrent threads, and many locks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import SOURCES, run

from limits import needs_room_to_lock


@pytest.fixture
def at_once(program: Callable[[Path], Path]) -> Path:
    return program(SOURCES / "at_once.c")


def test_the_budget_is_kept_whatever_threads_do_at_once(at_once: Path) -> None:
    ran = run(at_once, "budget", 50, lock_budget="5MiB", lock_min_bytes=65536, lock_after=1)
    assert ran.locked > 0
    assert 0 < int(ran.out) <= 5 << 10


def test_temporary_conflicts_do_not_end_a_mandatory_program(at_once: Path) -> None:
    for _ in range(3):
        ran = run(at_once, "mandatory", 200, lock_mapped="mandatory", lock_min_bytes=4096, lock_after=1)
        assert (ran.code, ran.out) == (0, "done\n"), ran.errors


def test_threads_that_begin_wait_for_no_decision_that_asks_for_their_stacks(at_once: Path) -> None:
    ran = run(at_once, "stacks", 1000, lock_min_bytes=64, lock_after=1)
    assert (ran.code, ran.out) == (0, "done\n"), ran.errors
    assert ran.locked > 0


def test_threads_are_cancelled_after_their_transfers(at_once: Path) -> None:
    ran = run(at_once, "cancel", lock_after=1)
    assert (ran.code, ran.out.split()) == (0, ["11"] * 4), ran.errors


def test_thousands_of_locks(program: Callable[[Path], Path]) -> None:
    ran = run(program(SOURCES / "many.c"), 16000, 64, lock_min_bytes=64)
    assert (ran.code, ran.out) == (0, "0 mappings and 0 threads failed\n")
    assert ran.locked == 16000


def test_the_trace_shows_which_locks_end_for_another(program: Callable[[Path], Path], tmp_path: Path) -> None:
    file = tmp_path / "trace"
    run(program(SOURCES / "many.c"), 20, 65536, lock_budget="256KiB", lock_min_bytes=4096, lock_after=1, trace=file)
    spans = [event for event in json.loads(file.read_text()) if event["ph"] == "X" and "lock" in event["name"]]
    locked: set[str] = set()
    for span in sorted(spans, key=lambda span: span["ts"] + span["dur"]):
        if span["name"] == "lock":
            locked.add(span["args"]["address"])
        else:
            locked.remove(span["args"]["address"])
        assert len(locked) <= 4
    assert sum(span["name"] == "unlock: for another" for span in spans) >= 16


def test_locks_leave_the_program_mappings_of_its_own(program: Callable[[Path], Path]) -> None:
    most = int(Path("/proc/sys/vm/max_map_count").read_text())
    if most > 1 << 17:
        pytest.skip(f"needs a vm.max_map_count of at most 131072, and here it is {most}")
    needs_room_to_lock(most // 4 * 4096)
    ran = run(program(SOURCES / "many.c"), most // 2 + 1000, 4096, lock_min_bytes=4096, lock_after=1)
    assert (ran.code, ran.out) == (0, "0 mappings and 0 threads failed\n")
    assert any(f"vm.max_map_count, allow {most // 4} locks at once" in why for why in ran.refused)

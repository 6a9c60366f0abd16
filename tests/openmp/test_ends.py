# SPDX-License-Identifier: Apache-2.0
"""Report and trace are right however a program ends, and whatever it starts, closes and sets."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import SOURCES, TOOL, run, tidied


@pytest.fixture
def ends(program: Callable[[Path], Path]) -> Path:
    return program(SOURCES / "ends.c")


def events(text: str, *, whole: bool = True) -> list[dict[str, object]]:
    read: list[dict[str, object]] = json.loads(text if whole else text + "]")
    return read


@pytest.mark.parametrize(
    ("how", "code"), [("abort", -signal.SIGABRT), ("kill", -signal.SIGKILL), ("quick_exit", 0)], ids=str
)
def test_the_trace_has_all_that_happened_however_the_program_ends(
    ends: Path, tmp_path: Path, how: str, code: int
) -> None:
    file = tmp_path / "trace.json"
    assert run(ends, how, trace=file).code == code
    transfers = [event for event in events(file.read_text(), whole=False) if "device" in str(event["name"])]
    assert len(transfers) == 10


@pytest.mark.parametrize("how", ["fork", "fork by a system call"])
def test_a_child_of_fork_adds_nothing_to_the_trace(ends: Path, tmp_path: Path, how: str) -> None:
    file = tmp_path / "trace.json"
    run(ends, how, trace=file)
    assert len({event["pid"] for event in events(file.read_text())}) == 1


def test_a_program_that_another_starts_has_a_trace_and_a_report_of_its_own(ends: Path, tmp_path: Path) -> None:
    ran = run(ends, "program", trace=tmp_path / "trace.json", report=tmp_path / "report")
    assert ran.code == 0
    traces, reports = sorted(tmp_path.glob("trace*.json")), sorted(tmp_path.glob("report*"))
    assert len(traces) == len(reports) == 2
    assert [trace.read_text().count('"X","name":"target"') for trace in traces] == [10, 10]
    assert len({event["pid"] for trace in traces for event in events(trace.read_text())}) == 2
    assert all("1 buffers locked" in report.read_text() for report in reports)
    assert any(f"there is a file {tmp_path / 'trace.json'} already" in line for line in ran.said)


def test_what_is_there_already_is_not_overwritten(ends: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    run(ends, report=tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "mine"
    (other,) = set(tmp_path.glob("mine.*"))
    assert "1 buffers locked" in other.read_text()


def test_nothing_is_written_to_descriptors_that_the_program_has_taken(ends: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    ran = run(ends, "closed", own, trace=tmp_path / "trace.json", report="-")
    assert ran.code == 0
    assert own.read_text() == ""
    assert len([event for event in events((tmp_path / "trace.json").read_text()) if event["name"] == "target"]) == 10


def test_a_program_that_has_taken_all_descriptors_ends_the_trace_after_a_whole_event(
    ends: Path, tmp_path: Path
) -> None:
    own, file = tmp_path / "own", tmp_path / "trace.json"
    ran = run(ends, "closed, and none left", own, trace=file)
    assert ran.code == 0
    assert own.read_text() == ""
    assert len([event for event in events(file.read_text(), whole=False) if event["name"] == "target"]) == 5
    assert f"the trace {file} ends early: Too many open files" in ran.said


def test_numbers_have_points_in_every_locale(ends: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    localedef = shutil.which("localedef") or pytest.skip("needs localedef: apt-get install libc-bin")
    source = tmp_path / "commas"
    parts = ["IDENTIFICATION", "CTYPE", "COLLATE", "TIME", "MESSAGES", "MONETARY", "PAPER", "NAME", "ADDRESS"]
    copies = [f'LC_{part}\ncopy "POSIX"\nEND LC_{part}\n' for part in [*parts, "TELEPHONE", "MEASUREMENT"]]
    copies[0] = 'LC_IDENTIFICATION\ntitle "commas"\nEND LC_IDENTIFICATION\n'
    numeric = 'LC_NUMERIC\ndecimal_point ","\nthousands_sep "."\ngrouping 3;3\nEND LC_NUMERIC\n'
    source.write_text("".join([*copies, numeric]))
    made = tmp_path / "locales"
    made.mkdir()
    subprocess.run([localedef, "-c", "-i", source, "-f", "ANSI_X3.4-1968", made / "commas"], capture_output=True)
    monkeypatch.setenv("LOCPATH", str(made))
    ran = run(ends, "locale", "commas", trace=tmp_path / "trace.json", report=tmp_path / "report")
    if ran.code == 77:
        pytest.skip("needs a locale with decimal commas, and localedef has made none")
    assert all(isinstance(event["ts"], float) for event in events((tmp_path / "trace.json").read_text())[1:])
    assert not re.search(r"\d,\d", (tmp_path / "report").read_text())


def test_files_that_must_not_grow_end_no_program(ends: Path, tmp_path: Path) -> None:
    ran = run(ends, "limit", trace=tmp_path / "trace.json", report="-")
    assert ran.code == 0
    assert f"the trace {tmp_path / 'trace.json'} ends early: File too large" in ran.said


def test_a_standard_error_that_nobody_reads_ends_no_program(ends: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    variables = {"LD_PRELOAD": str(TOOL), "PINNING_REPORT": "-", "PINNING_LOCK_AFTER": "often"}
    with tidied():
        done = subprocess.run([ends], env={**os.environ, **variables}, stderr=writer, timeout=600)
    os.close(writer)
    assert done.returncode == 0


def test_a_report_that_cannot_be_written_is_said(ends: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    assert run(ends, report="/dev/full").said == [
        "the report /dev/full cannot be written: No space left on device",
    ]

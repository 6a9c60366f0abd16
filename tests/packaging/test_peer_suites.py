# SPDX-License-Identifier: Apache-2.0
"""`tools/peer_suites`: a row says what this package changes in another project's tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest

from folders import ROOT

TOOL = ROOT / "tools" / "peer_suites"
sys.path.append(str(TOOL))

from results import NOT_RUN, PASSED, Result, Row, compare, enter, of_junit, record  # noqa: E402

JUNIT = """<testsuites><testsuite>
<testcase classname="a" name="passes" status="run"/>
<testcase classname="a" name="fails"><failure message="1 != 2&#10;more">trace</failure></testcase>
<testcase classname="a" name="breaks"><error>Traceback (most recent call last):
  File "x"
KeyError: 3
</error></testcase>
<testcase classname="a" name="skips"><skipped message="no GPU"/></testcase>
<testcase classname="a" name="a.disabled" status="notrun"/>
</testsuite></testsuites>"""


def test_what_is_in_a_junit_file(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(JUNIT)
    assert of_junit(tmp_path / "a.xml", tmp_path / "missing.xml") == {
        "a.passes": Result(PASSED),
        "a.fails": Result("failed", reason="1 != 2"),
        "a.breaks": Result("failed", reason="KeyError: 3"),
        "a.skips": Result("skipped", reason="no GPU"),
        "a.disabled": Result("skipped"),
    }


def test_each_case_is_counted_once(tmp_path: Path) -> None:
    passed, failed = Result(PASSED, "4"), Result("failed", reason="1 != 2")
    bare = dict.fromkeys(["same", "known", "ours", "lost", "other output", "by chance"], passed)
    bare |= {"theirs": failed, "mended": failed}
    ours = dict.fromkeys(bare, passed) | dict.fromkeys(["known", "ours", "by chance", "theirs"], failed)
    ours["other output"] = Result(PASSED, "5")
    del ours["lost"]
    asked: list[set[str]] = []

    def again(cases: set[str]) -> tuple[dict[str, Result], dict[str, Result]]:
        asked.append(cases)
        return {each: bare[each] for each in cases}, {each: ours[each] for each in cases & ours.keys()} | (
            {"by chance": passed} if "by chance" in cases else {}
        )

    row = compare(
        bare, ours, again, {"^kn": "as documented"}, Row("a", "run", "2026-01-01", "12345678", {"torch": "2"})
    )
    assert asked == [{"ours", "lost", "other output", "by chance"}, {"ours", "lost", "other output"}]
    assert (row.passed, row.alike) == (["by chance", "mended", "same"], {"theirs": "failed: 1 != 2"})
    assert row.explained == {"known": "as documented"}
    assert row.ours == {"lost": NOT_RUN.reason, "other output": "passed, with another output", "ours": "1 != 2"}
    page = tmp_path / "page.md"
    page.write_text("| suite | ours |\n|---|---|\n\nText.\n\n| a | b |\n|---|---|\n")
    enter(row, page)
    enter(row, page)
    assert page.read_text().splitlines()[2:5] == [str(row), "", "Text."]
    assert str(row).startswith("| a | run | 2026-01-01 | 12345678 | 8 | 3 | 1 | 1 | 3 | ")
    file = tmp_path / "page.json"
    assert record(row, file) == []
    row.alike = {"same": "skipped"}
    assert record(row, file) == [
        "same: passed, or was not run -> alike: skipped",
        "theirs: alike: failed: 1 != 2 -> passed, or was not run",
    ]
    told = json.loads(file.read_text())["a, run"]
    assert (told["versions"], told["cases"], told["not passed"]["known"]) == (
        {"torch": "2"},
        8,
        "explained: as documented",
    )


def test_a_suite_of_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone, page = tmp_path / "clone", tmp_path / "page.md"
    clone.mkdir()
    (clone / "numbers").write_text("1 2 3")
    git = ["git", "-C", clone, "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "numbers"], ["commit", "-qm", "numbers"]):
        subprocess.run([*git, *command], check=True)
    (clone / "numbers").write_text("of no commit")
    page.write_text("| suite | ours |\n|---|---|\n")

    def run(files: Path, work: Path, way: str, only: set[str] | None) -> dict[str, Result]:
        numbers = [each for each in (files / "numbers").read_text().split() if only is None or each in only]
        return {each: Result("failed", reason="odd") if each == way else Result(PASSED) for each in numbers}

    monkeypatch.setitem(sys.modules, "suites.made_up", SimpleNamespace(WAYS=["2", "4"], EXPLAINED={}, run=run))
    spec = spec_from_file_location("peer_suites", TOOL / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)
    monkeypatch.setattr(tool, "SUITES", ["made_up"])
    monkeypatch.setattr(os, "nice", lambda more: 0)
    command = ["made_up", str(clone), "--page", str(page), "--work", str(tmp_path / "work")]
    assert tool.main(command) == 1
    assert tool.main([*command, "--way", "4"]) == 0
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout[:8]
    rows = [line.split(" | ", 3) for line in page.read_text().splitlines()[2:]]
    assert [(row[1], row[3]) for row in rows] == [
        ("2", f"{commit} | 3 | 2 | 0 | 0 | 1 | 1: odd |"),
        ("4", f"{commit} | 3 | 3 | 0 | 0 | 0 |  |"),
    ]


def test_each_suite_can_be_loaded_and_is_on_the_page() -> None:
    suites = {path.stem for path in (TOOL / "suites").glob("[a-z]*.py")}
    load = f"""
import importlib, sys
sys.path.insert(0, {str(TOOL)!r})
for each in sys.argv[1:]:
    assert importlib.import_module(f"suites.{{each}}").WAYS, each
"""
    subprocess.run([sys.executable, "-P", "-c", load, *sorted(suites)], check=True)
    page = (ROOT / "docs" / "compatibility.md").read_text()
    listed = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert listed == suites

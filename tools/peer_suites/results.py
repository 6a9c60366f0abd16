# SPDX-License-Identifier: Apache-2.0
"""The results of a suite's cases, and how ours changes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"


class Result(NamedTuple):
    """The result of one case. With ours, state and output must be the same, or the state becomes `PASSED`."""

    state: str
    output: str = ""
    reason: str = ""

    def is_as(self, bare: Result) -> bool:
        mended = self.state == PASSED != bare.state
        return mended or (self.state, self.output) == (bare.state, bare.output)


NOT_RUN = Result(FAILED, reason="did not run")
Results = Mapping[str, Result]


def of_junit(*files: Path) -> dict[str, Result]:
    """The cases of JUnit files, as pytest, regrtest and googletest write them; a missing file has none."""
    results: dict[str, Result] = {}
    for file in files:
        if not file.exists():
            continue
        for case in ElementTree.parse(file).iter("testcase"):
            # A disabled case of googletest has a status, but no element; a name may already contain its class.
            owner, name = case.get("classname") or "", case.get("name") or ""
            result = Result(SKIPPED if case.get("status") == "notrun" else PASSED)
            for element in case:
                if element.tag in ("failure", "error"):
                    said = element.get("message") or element.text or element.tag
                    result = Result(FAILED, reason=_one_line(said))
                    break
                if element.tag == "skipped":
                    result = Result(SKIPPED, reason=_one_line(element.get("message") or ""))
            results[name if name.startswith(owner) else f"{owner}.{name}"] = result
    return results


def _one_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1 if lines and lines[0].startswith("Traceback") else 0][:100] if lines else ""


@dataclass
class Row:
    """One line of the table: a suite, and one way to put ours in place."""

    suite: str
    way: str
    date: str
    commit: str
    versions: Mapping[str, str] = field(default_factory=dict)  # of what it ran with
    passed: list[str] = field(default_factory=list)
    alike: dict[str, str] = field(default_factory=dict)  # not passed, the same as bare: how
    explained: dict[str, str] = field(default_factory=dict)  # a difference that the documentation explains
    ours: dict[str, str] = field(default_factory=dict)  # failed because of ours, and the reason

    @property
    def cases(self) -> int:
        return len(self.passed) + len(self.alike) + len(self.explained) + len(self.ours)

    @property
    def counts(self) -> dict[str, int]:
        parts = {"passed": self.passed, "alike": self.alike, "explained": self.explained, "ours failed": self.ours}
        return {"cases": self.cases, **{name: len(cases) for name, cases in parts.items()}}

    @property
    def not_passed(self) -> dict[str, str]:
        """How each case that has not passed ended."""
        kinds = {"alike": self.alike, "explained": self.explained, "ours": self.ours}
        return {case: f"{kind}: {how}" for kind, cases in kinds.items() for case, how in sorted(cases.items())}

    def __str__(self) -> str:
        reasons: dict[str, list[str]] = {}
        for case, reason in (self.ours | self.explained).items():
            reasons.setdefault(reason, []).append(case)
        told = "; ".join(f"{len(cases)}: {reason}" for reason, cases in reasons.items()).replace("|", "\\|")
        counts = map(str, self.counts.values())
        return "| " + " | ".join([self.suite, self.way, self.date, self.commit, *counts, told]) + " |"


def compare(
    bare: Results,
    ours: Results,
    again: Callable[[Collection[str]], tuple[Results, Results]],
    explained: Mapping[str, str],
    row: Row,
) -> Row:
    """Sort the cases into `row`. Those that differ for no known reason are run again both ways, to rule out chance.

    `explained` has the reasons for differences, by regular expressions for cases.
    """

    def differing(cases: Collection[str]) -> set[str]:
        return {case for case in cases if not ours.get(case, NOT_RUN).is_as(bare[case])}

    def reason(case: str) -> str | None:
        return next((why for pattern, why in explained.items() if re.search(pattern, case)), None)

    row.explained = {case: why for case in sorted(differing(bare)) if (why := reason(case))}
    differ = differing(bare.keys() - row.explained.keys())
    for _ in range(2):
        if differ:
            bare_again, ours_again = again(differ)
            bare = {**bare, **{case: bare_again.get(case, NOT_RUN) for case in differ}}
            ours = {**ours, **{case: ours_again.get(case, NOT_RUN) for case in differ}}
            differ = differing(differ)
    for case in sorted(bare.keys() - row.explained.keys()):
        found = ours.get(case, NOT_RUN)
        if case in differ:
            row.ours[case] = (
                f"{found.state}, with another output"
                if found.state == bare[case].state
                else (found.reason or found.state)
            )
        elif found.state == PASSED:
            row.passed.append(case)
        else:
            row.alike[case] = f"{found.state}: {found.reason}" if found.reason else found.state
    return row


def enter(row: Row, page: Path) -> None:
    """Put the row into the first table of a page; it replaces the row of the same suite and way."""
    lines = page.read_text().splitlines()
    rule = next(number for number, line in enumerate(lines) if line.startswith("|--"))
    end = next((number for number in range(rule, len(lines)) if not lines[number].startswith("|")), len(lines))
    others = [line for line in lines[rule + 1 : end] if not line.startswith(f"| {row.suite} | {row.way} |")]
    lines[rule + 1 : end] = sorted([*others, str(row)])
    page.write_text("\n".join(lines) + "\n")


def record(row: Row, file: Path) -> list[str]:
    """Put the row into a JSON file, with how each case that has not passed ended; returns what has changed there."""
    rows = json.loads(file.read_text()) if file.exists() else {}
    name, now = f"{row.suite}, {row.way}", row.not_passed
    before = rows.get(name, {}).get("not passed", now)
    origin = {"date": row.date, "commit": row.commit, "versions": dict(row.versions)}
    rows[name] = {**origin, **row.counts, "not passed": now}
    file.write_text(json.dumps(dict(sorted(rows.items())), indent=1, ensure_ascii=False) + "\n")
    changed = sorted(case for case in before.keys() | now.keys() if before.get(case) != now.get(case))
    other = "passed, or was not run"
    return [f"{case}: {before.get(case, other)} -> {now.get(case, other)}" for case in changed]

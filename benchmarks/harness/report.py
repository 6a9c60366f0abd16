# SPDX-License-Identifier: Apache-2.0
"""The figures for people (a terminal, Markdown) and for machines (JSON)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby

from rich.console import Console
from rich.table import Table

from harness import machine
from harness.figures import Figures, count, number
from harness.programs import ROWS, Run
from harness.targets import Verdict, judge

OURS = ("pagetable", "PageTable", "PinnedMap", "pinning.lock")
HEADINGS = ("what, against whom, of what", "regions", "ours", "peer", "judged (least..most)", "target", "")


@dataclass(frozen=True)
class Report:
    """One run, with its date, command and machine."""

    run: Run
    date: str
    command: str
    facts: dict[str, str]

    @property
    def verdicts(self) -> list[Verdict]:
        return list(judge(self.run.figures, self.run.rows))

    # ---- for a terminal ----

    def show(self, console: Console) -> None:
        """Print the measurements beside their targets, in 80 columns."""
        measured = [verdict for verdict in self.verdicts if verdict.measured]
        console.print(f"[bold]{machine.name()}, {self.date}[/], medians (least..most)")
        for (row, series, peer), group in groupby(measured, key=lambda each: each.target.subject):
            against = f", against {peer}" if peer else ""
            console.print(f"\n[bold]{row}, {series}{against}")
            table = Table(box=None, padding=(0, 1, 0, 0), show_header=False)
            for justify in ("left", "right", "right", "right", "right", "right"):
                table.add_column(justify=justify)
            for verdict in group:
                style = "green" if verdict.met else "red"
                table.add_row(verdict.target.kind, *_cells(verdict)[1:-1], f"[{style}]{verdict.word}")
            console.print(table)
        console.print(f"\n{self.summary}")
        for line in self._absences():
            console.print(f"[yellow]{line}", highlight=False)

    @property
    def summary(self) -> str:
        words = [verdict.word for verdict in self.verdicts]
        parts = [f"{words.count(word)} {word}" for word in ("met", "MISSED", "not measured") if word in words]
        quick = " A quick run leaves out the larger counts." if self.run.quick else ""
        return f"{len(words)} targets: {', '.join(parts)}.{quick}"

    def _absences(self) -> Iterator[str]:
        for peer in self.run.missing:
            yield f"{peer.name} is missing ({', '.join(peer.rows)}); `{peer.install}` installs it."
        for name, reason in self.run.skipped.items():
            yield f"{name} was skipped: {reason}"
        for name, reason in self.run.failed.items():
            yield f"{name} FAILED: {reason}"

    # ---- for a file ----

    def as_json(self) -> str:
        verdicts = [
            {**asdict(verdict.target), "measured": verdict.measured and asdict(verdict.measured), "met": verdict.met}
            for verdict in self.verdicts
        ]
        run = self.run
        whole = {
            "date": self.date,
            "command": self.command,
            "machine": self.facts,
            "peers": run.versions,
            "missing": {peer.name: peer.install for peer in run.missing},
            "skipped": run.skipped,
            "failed": run.failed,
            "targets": verdicts,
            "figures": [figures.as_dict() for figures in run.figures],
        }
        return json.dumps(whole) + "\n"

    def as_markdown(self) -> str:
        return "\n".join(self._markdown()) + "\n"

    def _markdown(self) -> Iterator[str]:
        yield f"# {machine.name()}, {self.date}\n"
        yield f"`{self.command}`\n"
        for key, value in (*self.facts.items(), *self.run.versions.items()):
            yield f"- {key}: {value}"
        for line in self._absences():
            yield f"- **{line}**"
        yield "\n## Targets\n"
        yield f"{self.summary} Judged is peer / ours where the target is ≥, ours / peer where it is ≤, or ours where"
        yield "there is no peer: taken within each round of one run, the median and the least and greatest of them."
        yield ""
        yield from _markdown_table(HEADINGS, (_cells(verdict) for verdict in self.verdicts))
        for name, row in ROWS.items():
            mine = [figures for figures in self.run.figures if figures.row == name]
            if mine:
                yield f"\n## {name}: {row.says}\n"
                yield "Medians, and in brackets the contender's figure over ours (least..most)."
            for series in dict.fromkeys(figures.series for figures in mine):
                yield from _one_table([figures for figures in mine if figures.series == series])


def _cells(verdict: Verdict) -> tuple[str, ...]:
    target = verdict.target
    what = ", ".join(word for word in (*target.subject, target.kind) if word)
    ours, peer = (f"{number(each.middle)} {verdict.unit}" if each else "" for each in (verdict.ours, verdict.peer))
    return what, count(target.regions), ours, peer, str(verdict.measured or ""), target.bound, verdict.word


def _one_table(figures: list[Figures]) -> Iterator[str]:
    """The table of one series: a line per workload, a column per contender."""
    contenders = list(dict.fromkeys(name for each in figures for name in each.rounds))
    contenders.sort(key=lambda name: name not in OURS)
    ours = contenders[0]
    yield f"\n### {figures[0].series} ({figures[0].unit})\n"
    lines = []
    for each in figures:
        cells = [each.kind, count(each.regions)]
        for name in contenders:
            if name not in each.rounds:
                cells.append("-")
                continue
            ratio = each.ratio(name, ours) if name != ours else None
            cells.append(number(each.of(name).middle) + (f" [{ratio}]" if ratio else ""))
        lines.append(cells)
    yield from _markdown_table(["kind", "regions", *contenders], lines)


def _markdown_table(headings: Iterable[str], lines: Iterable[Iterable[str]]) -> Iterator[str]:
    headings = list(headings)
    yield f"| {' | '.join(headings)} |"
    yield "|" + "---|" * len(headings)
    for line in lines:
        yield f"| {' | '.join(line)} |"

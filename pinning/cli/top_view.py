# SPDX-License-Identifier: Apache-2.0
"""Shows what `pinning top` sees."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from pinning.cli.output import table
from pinning.cli.status import PATHS, Status, Used
from pinning.cli.units import size

_SHOWN = 30  # ranges, the largest


def show(processes: Sequence[Status], details: bool, to: Console) -> None:
    """Print once: a line for each process, or all that there is of one."""
    to.print(_details(processes[0], None) if details else _overview(processes))


def watch(look: Callable[[], Sequence[Status]], details: bool, seconds: float, to: Console) -> None:
    """Print again and again, in place, until Ctrl-C or the end of the process watched."""
    before: Status | None = None
    with Live(console=to, auto_refresh=False, screen=to.is_terminal) as live:
        while True:
            now = look()
            live.update(_details(now[0], before) if details else _overview(now), refresh=True)
            before = now[0] if details else None
            time.sleep(seconds)


def _overview(processes: Sequence[Status]) -> RenderableType:
    shown = table("PID", "Locked", "Idle", "Budget", "Copied", "Since", left=0)
    shown.expand = True
    shown.add_column("Command", ratio=1, no_wrap=True, overflow="ellipsis")  # what room is left
    for each in processes:
        command, since = Text(each.command), _ago(each.time - each.since)
        figures = size(each.locked), size(each.budget.idle), _limit(each.budget), size(sum(each.moved.values()))
        shown.add_row(str(each.pid), *figures, since, command)
    return shown if processes else Text("No process of yours has locked anything by pinning.")


def _details(status: Status, before: Status | None) -> RenderableType:
    head = Text.from_markup(
        f"[bold]{status.pid}[/]  {escape(status.command[:80])}\n"
        f"[bold]{size(status.locked)}[/] locked in {_many(len(status.ranges) + status.unlisted, 'range')}; "
        f"{_many(status.registrations, 'registration')} in {_ago(status.time - status.since)}\n"
        f"budget {_limit(status.budget)}: {size(status.budget.used)} used, "
        f"[bold]{size(status.budget.idle)}[/] of it idle{_external(status.budget)}"
    )
    copies = table("Copied", "Bytes", "Now")
    for path in PATHS:
        rate = "" if before is None else f"{size(_rate(status, before, path))}/s"
        copies.add_row(path, size(status.moved[path]), rate)
    ranges = table("Device", "Address", "Bytes", "Pieces", "For", "Owner", "Where")
    for each in sorted(status.ranges, key=lambda one: -one.size)[:_SHOWN]:
        pieces = "" if each.locks == 1 else str(each.locks)
        ago, where = _ago(status.time - each.since), Text(each.site.rpartition("/")[2], overflow="ellipsis")
        ranges.add_row(each.device, f"{each.start:#x}", size(each.size), pieces, ago, escape(each.owner), where)
    left = len(status.ranges) + status.unlisted - min(len(status.ranges), _SHOWN)
    more = [Text(f"and {left} more")] if left else []
    return Group(head, Text(), copies, Text(), ranges, *more)


def _limit(budget: Used) -> str:
    return "none" if budget.limit is None else size(budget.limit)


def _external(budget: Used) -> str:
    return f"; {size(budget.external)} pinned by others" if budget.external else ""


def _rate(now: Status, before: Status, path: str) -> int:
    return int((now.moved[path] - before.moved[path]) / max(now.time - before.time, 1e-3))


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"

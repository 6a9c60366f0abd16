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
from pinning.cli.status import PATHS, Status
from pinning.cli.units import size

_SHOWN = 30  # ranges, the largest


def show(processes: Sequence[Status], to: Console) -> None:
    """Print once: a line for each process; of one alone all there is."""
    to.print(_details(processes[0], None) if len(processes) == 1 else _overview(processes))


def watch(look: Callable[[], Sequence[Status]], seconds: float, to: Console) -> None:
    """Print again and again, in place, until Ctrl-C or the end of the process watched."""
    before: Status | None = None
    with Live(console=to, auto_refresh=False, screen=to.is_terminal) as live:
        while True:
            now = look()
            alone = now[0] if len(now) == 1 else None
            live.update(_overview(now) if alone is None else _details(alone, before), refresh=True)
            before = alone
            time.sleep(seconds)


def _overview(processes: Sequence[Status]) -> RenderableType:
    shown = table("PID", "Locked", "Ranges", *(f"By {path}" for path in PATHS), "Since", "Command", left=1)
    for each in processes:
        moved = [size(each.moved[path]) for path in PATHS]
        command = Text(each.command, overflow="ellipsis", no_wrap=True)
        count = str(len(each.ranges) + each.unlisted)
        shown.add_row(str(each.pid), size(each.locked), count, *moved, _ago(each.time - each.since), command)
    return shown if processes else Text("No process of yours has locked anything by pinning.")


def _details(status: Status, before: Status | None) -> RenderableType:
    head = Text.from_markup(
        f"[bold]{status.pid}[/]  {escape(status.command[:80])}\n"
        f"[bold]{size(status.locked)}[/] locked in {len(status.ranges) + status.unlisted} ranges; "
        f"{status.registrations} registrations in {_ago(status.time - status.since)}"
    )
    copies = table("Copied", "Bytes", "Now")
    for path in PATHS:
        rate = "" if before is None else f"{size(_rate(status, before, path))}/s"
        copies.add_row(path, size(status.moved[path]), rate)
    ranges = table("Device", "Address", "Owner", "Bytes", "Pieces", "For", "Where", left=3)
    for each in sorted(status.ranges, key=lambda one: -one.size)[:_SHOWN]:
        pieces = "" if each.locks == 1 else str(each.locks)
        ago, where = _ago(status.time - each.since), Text(each.site, overflow="ellipsis", no_wrap=True)
        ranges.add_row(each.device, f"{each.start:#x}", escape(each.owner), size(each.size), pieces, ago, where)
    left = len(status.ranges) + status.unlisted - min(len(status.ranges), _SHOWN)
    more = [Text(f"and {left} more")] if left else []
    return Group(head, Text(), copies, Text(), ranges, *more)


def _rate(now: Status, before: Status, path: str) -> int:
    return int((now.moved[path] - before.moved[path]) / max(now.time - before.time, 1e-3))


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"



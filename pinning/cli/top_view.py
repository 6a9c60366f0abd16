# SPDX-License-Identifier: Apache-2.0
"""Shows what `pinning top` sees."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pinning.cli.output import table
from pinning.cli.status import PATHS, Locked, Status, Used
from pinning.cli.units import size

_SHOWN = 30  # ranges, the largest
_GAP = 3  # between the columns of a table
_ENDLESS = 1 << 20  # the width of what is no terminal
_PATH_NAMES = {"plain": "left to the driver", "small": "too small"}


def show(processes: Sequence[Status], details: bool, to: Console) -> None:
    """Print once: a line for each process, or all details of one. Only for a terminal are lines cut."""
    if not to.is_terminal:
        to.width = _ENDLESS
    to.print(_details(processes[0], None, to.width) if details else _overview(processes))


def watch(look: Callable[[], Sequence[Status]], details: bool, seconds: float, to: Console) -> None:
    """Print repeatedly, in place, until `q`, Ctrl-C or the end of the watched process."""
    before: Status | None = None
    footer = Text(f"every {seconds:g} s; q quits", style="dim")
    with _keys() as key, Live(console=to, auto_refresh=False, screen=to.is_terminal) as live:
        while True:
            now = look()
            body = _details(now[0], before, to.width) if details else _overview(now)
            live.update(_screen(body, footer) if to.is_terminal else body, refresh=True)
            before = now[0] if details else None
            if key(seconds) == "q":
                return


def _screen(body: RenderableType, footer: RenderableType) -> Layout:
    """A layout that fills the terminal, with the footer always in the last line."""
    screen = Layout()
    screen.split_column(Layout(body), Layout(footer, size=1))
    return screen


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for a key and returns it, or ""; Ctrl-C and Ctrl-Z remain signals."""
    if not sys.stdin.isatty():

        def no_key(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield no_key
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)

    def key(seconds: float) -> str:
        ready, _, _ = select.select([keyboard], [], [], seconds)
        return os.read(keyboard, 1).decode(errors="replace") if ready else ""

    try:
        yield key
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _overview(processes: Sequence[Status]) -> RenderableType:
    shown = table("PID", "Locked", "Idle", "Budget", "Copied", "Since", left=0)
    shown.add_column("Command")  # this one shrinks if the terminal is narrow
    for each in processes:
        command, since = _line(_named(each.command)), _ago(each.time - each.since)
        figures = size(each.locked), size(each.budget.idle), _limit(each.budget), size(sum(each.moved.values()))
        shown.add_row(str(each.pid), *figures, since, command)
    if processes:
        return shown
    return Text("No process of yours has locked anything with pinning, or copies under `pinning run`.")


def _details(status: Status, before: Status | None, width: int) -> RenderableType:
    program = _line((str(status.pid), "bold"), "  ", _named(status.command))
    head = Text.from_markup(
        f"[bold]{size(status.locked)}[/] locked in {_many(len(status.ranges) + status.unlisted, 'range')}; "
        f"{_many(status.registrations, 'registration')} in {_ago(status.time - status.since)}\n"
        f"budget {_limit(status.budget)}: {size(status.budget.used)} used, "
        f"[bold]{size(status.budget.idle)}[/] of it idle{_external(status.budget)}"
    )
    copies = table("Copied", "Bytes", "Now")  # of any CUDA program too, under `pinning run`
    for path in PATHS:
        rate = _rate(status, before, partial(_moved, path))
        copies.add_row(_PATH_NAMES.get(path, path), size(status.moved[path]), rate)
    if status.by_peers:
        rate = _rate(status, before, lambda one: one.by_peers)
        copies.add_row("over peers' links", size(status.by_peers), rate)
    shown = sorted(status.ranges, key=lambda one: -one.size)[:_SHOWN]
    ranges = _ranges(shown, status.time, width)
    left = len(status.ranges) + status.unlisted - min(len(status.ranges), _SHOWN)
    more = [Text(f"and {left} more")] if left else []
    return Group(program, head, Text(), copies, Text(), ranges, *more)


def _ranges(shown: Sequence[Locked], now: float, width: int) -> Table:
    """One row for each range; columns that would be empty are left out."""
    columns = {
        "Device": [each.device for each in shown],
        "Address": [f"{each.start:#x}" for each in shown],
        "Bytes": [size(each.size) for each in shown],
        "Pieces": ["" if each.registrations == 1 else str(each.registrations) for each in shown],
        "State": ["idle" if each.idle else "locked" for each in shown],
        "For": [_ago(now - each.since) for each in shown],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    ranges = table(*columns)
    for column in ranges.columns:
        column.no_wrap = True  # the device too
    room = max(width - sum(_widest([name, *cells]) + _GAP for name, cells in columns.items()), len("Where"))
    # Where there is no room, the line of the program is left: not its function, its owner, or the start of its file.
    owners, sites = [each.owner for each in shown], [each.site.rpartition("/")[2] for each in shown]
    if _widest(owners) + _GAP + _widest(sites) > room:
        sites = [each.partition(" in ")[0] for each in sites]
    if any(owners) and not (any(sites) and _widest(sites) + _GAP + len("Owner") > room):
        columns["Owner"] = owners
    if any(sites):
        columns["Where"] = [each if len(each) <= room else f"…{each[1 - room :]}" for each in sites]
    for name in list(columns)[len(ranges.columns) :]:
        ranges.add_column(name, no_wrap=name == "Where")
    for row in zip(*columns.values(), strict=True):
        ranges.add_row(*map(_line, row))
    return ranges


def _widest(texts: Sequence[str]) -> int:
    return max(map(len, texts), default=0)


def _line(*parts: str | tuple[str, str]) -> Text:
    """A text that is cut where the terminal ends, without what other processes would make the terminal do."""
    text = Text.assemble(*parts, no_wrap=True, overflow="ellipsis")
    text.plain = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text.plain)
    return text


def _named(command: str) -> str:
    """The command line, with the program and its script by their names alone."""
    words = command.split(" ")
    return " ".join([*(word.rpartition("/")[2] or word for word in words[:2]), *words[2:]])


def _limit(budget: Used) -> str:
    return "none" if budget.limit is None else size(budget.limit)


def _external(budget: Used) -> str:
    return f"; {size(budget.external)} pinned by others" if budget.external else ""


def _moved(path: str, status: Status) -> int:
    return status.moved[path]


def _rate(now: Status, before: Status | None, figure: Callable[[Status], int]) -> str:
    if before is None:
        return ""
    seconds = max(now.time - before.time, 1e-3)
    return f"{size(int((figure(now) - figure(before)) / seconds))}/s"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"

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
from rich.markup import escape
from rich.text import Text

from pinning.cli.output import table
from pinning.cli.status import PATHS, Status, Used
from pinning.cli.units import size

_SHOWN = 30  # ranges, the largest
_PATH_NAMES = {"plain": "left to the driver", "small": "too small"}


def show(processes: Sequence[Status], details: bool, to: Console) -> None:
    """Print once: a line for each process, or all details of one."""
    to.print(_details(processes[0], None) if details else _overview(processes))


def watch(look: Callable[[], Sequence[Status]], details: bool, seconds: float, to: Console) -> None:
    """Print repeatedly, in place, until `q`, Ctrl-C or the end of the watched process."""
    before: Status | None = None
    footer = Text(f"every {seconds:g} s; q quits", style="dim")
    with _keys() as key, Live(console=to, auto_refresh=False, screen=to.is_terminal) as live:
        while True:
            now = look()
            body = _details(now[0], before) if details else _overview(now)
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
    shown.expand = True
    shown.add_column("Command", ratio=1, no_wrap=True, overflow="ellipsis")  # the remaining width
    for each in processes:
        command, since = Text(_named(each.command)), _ago(each.time - each.since)
        figures = size(each.locked), size(each.budget.idle), _limit(each.budget), size(sum(each.moved.values()))
        shown.add_row(str(each.pid), *figures, since, command)
    if processes:
        return shown
    return Text("No process of yours has locked anything with pinning, or copies under `pinning run`.")


def _details(status: Status, before: Status | None) -> RenderableType:
    head = Text.from_markup(
        f"[bold]{status.pid}[/]  {escape(_named(status.command)[:80])}\n"
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
    ranges = table("Device", "Address", "Bytes", "Pieces", "State", "For")
    for column in ("Owner", "Where"):
        ranges.add_column(column)  # these two shrink if the terminal is narrow
    for each in sorted(status.ranges, key=lambda one: -one.size)[:_SHOWN]:
        pieces = "" if each.registrations == 1 else str(each.registrations)
        state, ago = "idle" if each.idle else "locked", _ago(status.time - each.since)
        words = (Text(word, no_wrap=True, overflow="ellipsis") for word in (each.owner, each.site.rpartition("/")[2]))
        ranges.add_row(each.device, f"{each.start:#x}", size(each.size), pieces, state, ago, *words)
    left = len(status.ranges) + status.unlisted - min(len(status.ranges), _SHOWN)
    more = [Text(f"and {left} more")] if left else []
    return Group(head, Text(), copies, Text(), ranges, *more)


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

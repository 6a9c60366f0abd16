# SPDX-License-Identifier: Apache-2.0
"""The output of the commands, for people and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, TextIO

from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

# step(what, done, total): what is being done, and how much of it; called from time to time.
Step = Callable[[str, int, int], None]

GOOD, BAD, WARNING = "[green]✓[/]", "[red]✗[/]", "[yellow]![/]"


def console(file: TextIO | None = None) -> Console:
    """A console on standard output or another stream, at most 100 columns wide."""
    return Console(file=file, highlight=False, width=min(Console(file=file).width, 100) or 80)


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Step]:
    """A bar on standard error, if that is a terminal; removed at the end of the block."""
    to = Console(file=sys.stderr)
    columns = (TextColumn("[dim]{task.description:<36}"), BarColumn(bar_width=24), TimeElapsedColumn())
    with Progress(*columns, console=to, transient=True, disable=quiet or not to.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def step(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield step


def print_json(report: Any, **more: object) -> None:
    """Print one JSON object: `more`, and the fields of a dataclass."""
    _write_json({**more, **_plain(report)})


def say_error(message: str, as_json: bool) -> None:
    """Report an error: on standard error, or as the one JSON object."""
    if as_json:
        _write_json({"ok": False, "error": message})
    else:
        console(sys.stderr).print(f"{BAD} {escape(message)}")


def _plain(value: Any) -> Any:
    """Convert dataclasses and named tuples to dictionaries, recursively."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _write_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2)
    print()


def table(*columns: str, left: int = 1) -> Table:
    """An empty table: the first `left` columns hold words, the others figures."""
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False, padding=(0, 1))
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right", no_wrap=index >= left)
    return table


def section(to: Console, title: str, *contents: RenderableType) -> None:
    """Print a blank line, a title, and the contents, indented."""
    to.print()
    to.print(f"[bold cyan]{title}[/]")
    for each in contents:
        to.print(Padding(each, (0, 0, 0, 2), expand=False))

# SPDX-License-Identifier: Apache-2.0
"""Shows what `pinning bench` measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pinning.cli.bench import GIB, BenchReport, CopyRow, Lookup
from pinning.cli.demo import DemoReport
from pinning.cli.output import section, table
from pinning.cli.timing import Times
from pinning.cli.units import duration, rate, size


def heading(command: str, report: BenchReport | DemoReport, to: Console) -> None:
    """Print what the command ran on, and which limit kept it small."""
    to.print(f"[bold]pinning {command}[/] on [bold]{report.device}[/], {escape(report.description)}")
    if report.limited_by:
        to.print(f"\n[yellow]Reduced to fit this machine:[/] {escape(report.limited_by.why)}.")
        to.print(f"To lock more: [bold]{escape(report.limited_by.remedy)}[/]")


def show(report: BenchReport, to: Console) -> None:
    """Print one table for each kind of measurement."""
    heading("bench", report, to)
    to.print("[dim]medians, with the fastest and the slowest run[/]")
    section(to, "Lookup of one pointer, in a Python loop or a batch", lookups(report.lookups))
    section(to, "Lock and unlock inside a locked region", _lock_pairs(report))
    section(to, f"Locking {size(report.largest)}", _registrations(report))
    if report.copies:
        title = "Copies: pageable memory by the driver alone and by pinning.copy; locked memory"
        section(to, title, copies(report.copies))
        if report.device.startswith("host"):
            to.print("  [dim]On the host, the driver's copy is memcpy on the calling thread, and other")
            to.print("  [dim]threads make those of pinning.copy. No bus limits them, as it does a GPU's.")
    if report.batches:
        section(to, "Copies of many blocks of locked memory: one by one, or as a batch by ...", _batches(report))


def _spread(times: Times) -> str:
    """The fastest and the slowest run."""
    return f"{duration(times.low)} - {duration(times.high)}"


def lookups(rows: Sequence[Lookup]) -> Table:
    """The time of one lookup, with each number of regions."""
    shown = table("", "regions", "each", "range")
    for row, following in zip_longest(rows, rows[1:]):
        last = following is None or following.regions != row.regions
        shown.add_row(row.what, f"{row.regions:,}", duration(row.times.median), _spread(row.times), end_section=last)
    return shown


def _lock_pairs(report: BenchReport) -> Table:
    shown = table("", "each pair", "range")
    for row in report.lock_pairs:
        shown.add_row(row.what, duration(row.times.median), _spread(row.times))
    return shown


def _registrations(report: BenchReport) -> Table:
    shown = table("memory", "by", "per GiB", "range", "unlock", left=2)
    for row in report.registrations:
        a_gib, unlock = row.lock.median * GIB / row.size, row.unlock.median * GIB / row.size
        per_gib = Times(a_gib, row.lock.low * GIB / row.size, row.lock.high * GIB / row.size, row.lock.repeats)
        shown.add_row(row.memory, row.how, duration(per_gib.median), _spread(per_gib), duration(unlock))
    return shown


def copies(rows: Sequence[CopyRow]) -> Table:
    """The rates: of pageable memory by the driver and by `pinning.copy`, and of locked memory."""
    shown = table("", "bytes", "pageable", "by pinning", "locked", "locked, range")
    for row in rows:
        locked = f"{row.size / row.locked.high / 1e9:.1f} - {row.size / row.locked.low / 1e9:.1f}"
        shown.add_row(
            row.direction,
            size(row.size),
            rate(row.size, row.pageable.median),
            rate(row.size, row.by_pinning.median) if row.by_pinning else "",
            rate(row.size, row.locked.median),
            locked,
        )
    return shown


def _batches(report: BenchReport) -> Table:
    shown = table("", "per block", "blocks", "one by one", "engines", "kernel")
    for row in report.batches:
        rates = (rate(row.size, each.median) if each else "none" for each in (row.loop, row.engines, row.kernel))
        shown.add_row(row.direction, size(row.size), f"{row.blocks:,}", *rates)
    return shown

# SPDX-License-Identifier: Apache-2.0
"""Shows what `pinning bench` measured."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from pinning.cli.bench import GIB, BenchReport
from pinning.cli.output import heading, table
from pinning.cli.timing import Times
from pinning.cli.units import duration, rate, size


def show(report: BenchReport, to: Console) -> None:
    """Print a table of each kind."""
    to.print(f"[bold]pinning bench[/] on [bold]{report.device}[/], {escape(report.description)}")
    to.print("[dim]medians, with the fastest and the slowest of the tries[/]")
    if report.limited_by:
        to.print(f"\n[yellow]Fitted to this machine:[/] {escape(report.limited_by.why)}.")
        to.print(f"To measure more: [bold]{escape(report.limited_by.remedy)}[/]")
    heading(to, "Looking up one pointer, in a Python loop or a batch")
    to.print(Padding(_lookups(report), (0, 0, 0, 2), expand=False))
    heading(to, "Locking and unlocking what lies in a locked region")
    to.print(Padding(_lock_pairs(report), (0, 0, 0, 2), expand=False))
    heading(to, f"Locking {size(report.largest)}")
    to.print(Padding(_registrations(report), (0, 0, 0, 2), expand=False))
    if report.copies:
        heading(to, "Copying: pageable memory, by the driver alone and by pinning.copy; locked memory")
        to.print(Padding(_copies(report), (0, 0, 0, 2), expand=False))
    if report.batches:
        heading(to, "Copying many blocks of locked memory: one by one, or a batch by ...")
        to.print(Padding(_batches(report), (0, 0, 0, 2), expand=False))


def _range(times: Times) -> str:
    return f"{duration(times.low)} - {duration(times.high)}"


def _lookups(report: BenchReport) -> Table:
    shown = table("", "regions", "each", "range")
    for index, row in enumerate(report.lookups):
        last = index + 1 == len(report.lookups) or report.lookups[index + 1].regions != row.regions
        shown.add_row(row.what, f"{row.regions:,}", duration(row.times.median), _range(row.times), end_section=last)
    return shown


def _lock_pairs(report: BenchReport) -> Table:
    shown = table("", "each pair", "range")
    for row in report.lock_pairs:
        shown.add_row(row.what, duration(row.times.median), _range(row.times))
    return shown


def _registrations(report: BenchReport) -> Table:
    shown = table("memory", "by", "a GiB", "range", "unlock", left=2)
    for row in report.registrations:
        a_gib, unlock = row.lock.median * GIB / row.size, row.unlock.median * GIB / row.size
        per_gib = Times(a_gib, row.lock.low * GIB / row.size, row.lock.high * GIB / row.size, row.lock.repeats)
        shown.add_row(row.memory, row.how, duration(per_gib.median), _range(per_gib), duration(unlock))
    return shown


def _copies(report: BenchReport) -> Table:
    shown = table("", "bytes", "pageable", "by pinning", "locked", "locked, range")
    for row in report.copies:
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
    shown = table("", "a block", "blocks", "one by one", "engines", "kernel")
    for row in report.batches:
        rates = (rate(row.size, each.median) if each else "none" for each in (row.loop, row.engines, row.kernel))
        shown.add_row(row.direction, size(row.size), f"{row.blocks:,}", *rates)
    return shown

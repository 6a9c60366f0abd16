# SPDX-License-Identifier: Apache-2.0
"""Shows the results of `pinning demo`."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pinning.cli.bench_view import copies, heading, lookups
from pinning.cli.demo import DemoReport
from pinning.cli.output import BAD, GOOD, section, table
from pinning.cli.units import duration, rate, size
from pinning.locking.devices import HOST


def show(report: DemoReport, to: Console) -> None:
    """Print what was locked and copied, the checks with a tick or a cross, the measurements, and what to do next."""
    on_host = report.device.partition(":")[0] == HOST
    heading("demo", report, to)
    for name, why in report.missing.items():
        to.print(f"\n[yellow]Without the {name}:[/] {escape(why)}")
    if on_host:
        to.print("\n[yellow]No GPU was used:[/] pinning doctor reports why for each plugin.")
    paths = (f"[dim]{way}: {escape(why)}[/]" for way, why in report.paths.items())
    each = size(report.buffers[0].size)
    section(to, f"Buffers of {each}, locked in place, copied and compared", _buffers(report), *paths)
    section(to, "Checked", _checks(report))
    section(to, "Lookup of one pointer, in a Python loop or a batch", lookups(report.lookups))
    if report.copies:
        section(to, "Copies of pageable memory, and of locked memory", copies(report.copies))
    to.print()
    if failed := [check.what for check in report.checks if not check.ok]:
        to.print(f"{BAD} [bold]Failed:[/] {'; '.join(failed)}")
    else:
        to.print(f"{GOOD} All checks passed. {report.seconds:.1f} s")
    to.print("More about this machine: [bold]pinning doctor[/], [bold]pinning bench[/]")
    if report.device.startswith("cuda"):
        to.print("Unmodified programs copy faster too: [bold]pinning run --report -- PROGRAM[/]")


def _buffers(report: DemoReport) -> Table:
    copying = ("to the device", "and back", "wrong bytes") if report.paths else ()
    shown = table("buffer", "locked in", *copying)
    for row in report.buffers:
        rates = [rate(row.size, took) for took in (row.to_device, row.from_device) if took]
        shown.add_row(row.buffer, duration(row.lock), *rates, *([f"{row.wrong_bytes:,}"] if rates else []))
    return shown


def _checks(report: DemoReport) -> Table:
    shown = Table.grid(padding=(0, 1, 0, 0))
    for check in report.checks:
        shown.add_row(GOOD if check.ok else BAD, f"{check.what}: [dim]{escape(check.seen)}[/]")
    return shown

# SPDX-License-Identifier: Apache-2.0
"""Shows the results of `pinning demo`."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from pinning.cli.bench_view import copies, spread
from pinning.cli.demo import DemoReport
from pinning.cli.output import BAD, GOOD, section, table
from pinning.cli.units import duration, pointer, rate, size
from pinning.locking.devices import HOST


def show(report: DemoReport, to: Console) -> None:
    """Print every part, with a tick or a cross for its checks."""
    to.print(f"[bold]pinning demo[/] on [bold]{report.device}[/], {escape(report.description)}")
    if report.fit.limited_by:
        to.print(f"\n[yellow]Reduced to fit this machine:[/] {escape(report.fit.limited_by)}.")
        to.print(f"To lock more: [bold]{escape(report.fit.remedy)}[/]")
    for name, why in report.missing.items():
        to.print(f"\n[yellow]Without the {name}:[/] {escape(why)}")
    if report.device.partition(":")[0] == HOST:
        to.print("\n[yellow]No GPU was used:[/] pinning doctor reports why for each plugin.")
    parts: list[tuple[str, RenderableType, str]] = [
        ("The buffers, locked", _buffers(report), "every buffer is locked"),
        ("Their regions", _regions(report), ""),
        ("Locks are counted", _sharing(report), "locks inside a region share it"),
        ("A partial overlap is refused", f"[dim]{escape(report.refused)}[/]", "a partial overlap is refused"),
        ("What others see of it", _witnesses(report), "kernel and vendor agree"),
        ("Is this pointer locked?", _queries(report), "every lookup is correct"),
        ("Copied through the device, every byte compared", _copies(report), "every byte arrived"),
    ]
    if report.bandwidth:
        parts.append(("Copies of pageable memory, and of locked memory", copies(report.bandwidth), ""))
    for title, shown, check in parts:
        section(to, f"{title} {GOOD if report.checks[check] else BAD}" if check else title, shown)
    if report.device.startswith("cuda"):
        to.print("\nUnmodified programs copy faster too: [bold]pinning run --report -- PROGRAM[/]")
    to.print()
    wrong = [check for check, passed in report.checks.items() if not passed]
    if wrong:
        to.print(f"{BAD} [bold]Failed:[/] {'; '.join(wrong)}")
    else:
        to.print(f"{GOOD} All checks passed, and nothing stays locked. {report.seconds:.1f} s")


def _buffers(report: DemoReport) -> Table:
    shown = table("buffer", "size", "locked", "locking took")
    for row in report.buffers:
        shown.add_row(row.name, size(row.size), size(row.locked), duration(row.seconds))
    return shown


def _regions(report: DemoReport) -> Table:
    shown = table("host pointer", "device pointer", "size", "references", "buffer", left=2)
    shown.columns[-1].justify = "left"
    for row in report.regions:
        refs = str(row.references)
        shown.add_row(pointer(row.start), pointer(row.device_ptr), size(row.size), refs, row.buffer)
    return shown


def _sharing(report: DemoReport) -> Table:
    shown = table(f"the {report.buffers[0].name}", "references")
    for row in report.sharing:
        shown.add_row(row.what, str(row.references))
    return shown


def _witnesses(report: DemoReport) -> Table:
    # VmLck counts memory locked by mlock; a GPU's driver locks without it.
    counted = any(row.vmlck != report.witnesses[0].vmlck for row in report.witnesses)
    shown = table("", *(["kernel (VmLck)"] if counted else []), f"{report.device} (is_pinned_ptr)")
    for row in report.witnesses:
        shown.add_row(row.when, *([size(row.vmlck)] if counted else []), size(row.is_pinned_ptr))
    return shown


def _queries(report: DemoReport) -> Table:
    shown = table("asked", "pointers", "each took", "range")
    for row in report.queries:
        shown.add_row(row.what, f"{row.count:,}", duration(row.times.median), spread(row.times))
    return shown


def _copies(report: DemoReport) -> Table:
    shown = table("buffer", "bytes", "to the device", "and back", "wrong bytes")
    for row in report.copies:
        there, back = rate(row.size, row.to_device), rate(row.size, row.from_device)
        shown.add_row(row.buffer, size(row.size), there, back, str(row.wrong_bytes))
    return shown

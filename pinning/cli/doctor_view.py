# SPDX-License-Identifier: Apache-2.0
"""Shows what `pinning doctor` found out."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from pinning.cli.doctor import DoctorReport, PairRow
from pinning.cli.output import BAD, GOOD, WARNING, section, table
from pinning.cli.units import rate, size
from pinning.machine.topology import Link

_HUGE_PAGES = {
    "always": "always used",
    "madvise": "on request, as pinning does",
    "never": "never used",
}


def show(report: DoctorReport, to: Console) -> None:
    """Print the plugins, the devices, the limits and the advice."""
    to.print(f"[bold]pinning {report.version}[/], Python {report.python}, Linux {report.kernel}")
    section(to, "Plugins", _plugins(report))
    section(to, "Devices, tested by locking a page on each", _devices(report))
    if report.pairs:
        section(to, "Links between devices", _pairs(report))
        if any(row.connection != "UNIFIED" for row in report.pairs):
            to.print("  [dim](in brackets: no access to each other's memory; copies may go through the host)[/]")
    section(to, "This machine", _machine(report))
    if report.advice:
        section(to, "What would help")
        for advice in report.advice:
            to.print(Padding(f"{escape(advice.why)}:", (0, 0, 0, 2), expand=False))
            to.print(Padding(f"[bold]{escape(advice.command)}[/]", (0, 0, 0, 4), expand=False))
    to.print()
    if report.ok:
        to.print(f"{GOOD} Locking works.")
    if not report.devices:
        to.print(f"{BAD} There is no device.")
    for row in report.devices:
        if not row.locks:
            to.print(f"{BAD} Locking does not work on {row.name}: {escape(row.problem or '')}")


def show_copies(report: DoctorReport, to: Console) -> None:
    """Print the rates of copies as Markdown, to be pasted into an issue."""
    to.print()
    to.print("[bold cyan]Copies, in a form to paste into an issue[/]")
    to.print()
    for device in report.devices:
        rows = report.copies.get(device.name, [])
        if not rows:
            continue
        to.print(f"{device.name}, {device.description}; pinning {report.version}, Linux {report.kernel}", markup=False)
        by = "memcpy" if device.name.startswith("host:") else "the driver"
        to.print(f"\n| GB/s | size | pageable, by {by} | by pinning | locked |\n|---|---|---|---|---|")
        for row in rows:
            times = (row.pageable, row.by_pinning, row.locked)
            rates = (rate(row.size, each.median).removesuffix(" GB/s") if each else "" for each in times)
            to.print(f"| {' | '.join((row.direction, size(row.size), *rates))} |")


def _plugins(report: DoctorReport) -> Table:
    shown = Table.grid(padding=(0, 2, 0, 0))
    shown.add_column(no_wrap=True)
    for row in report.plugins:
        library = escape(" ".join(row.library)) if row.library else ""
        if row.problem is None:
            found = ", ".join(row.devices)
            shown.add_row(row.name, GOOD, f"{found}  [dim]{library}[/]" if library else found)
        else:
            # Not an error: most machines have the hardware of one vendor only.
            shown.add_row(row.name, "[dim]-[/]", escape(row.problem) + (f" [dim]({library})[/]" if library else ""))
        for warning in row.warnings:
            shown.add_row("", WARNING, escape(warning))
    return shown


def _devices(report: DoctorReport) -> Table:
    nodes = report.numa_nodes > 1  # with one node, every device is near it
    links = any(row.link for row in report.devices)
    shown = table("device", "description", "may lock", *["node"] * nodes, *["PCIe"] * links, "result", left=4 + links)
    shown.columns[0].no_wrap = shown.columns[2].no_wrap = True
    shown.columns[-2].no_wrap = True
    for row in report.devices:
        name = f"{row.name} (default)" if row.default else row.name
        limit = size(row.limit.limit) if row.limit else "no limit" if row.locks else "-"
        result = f"{GOOD} locks" if row.locks else f"{BAD} fails"
        node = "-" if row.numa_node is None else str(row.numa_node)
        shown.add_row(name, escape(row.description), limit, *[node] * nodes, *[_link(row.link)] * links, result)
    return shown


def _link(link: Link | None) -> str:
    if link is None:
        return "-"
    lanes = f"x{link.lanes}" if link.lanes >= link.most_lanes else f"[yellow]x{link.lanes} of {link.most_lanes}[/]"
    now, most = link.generation, link.most_generation
    if now is None or most is None:
        return lanes
    return f"{lanes} gen {now}" if now >= most else f"{lanes} gen {now} of {most}"  # an idle link is slower


def _pairs(report: DoctorReport) -> Table:
    names = list(dict.fromkeys(name for row in report.pairs for name in (row.first, row.second)))
    cells = {(row.first, row.second): _joined(row) for row in report.pairs}
    shown = table("", *names[1:], left=len(names))
    for first in names[:-1]:
        shown.add_row(first, *[cells.get((first, second), "") for second in names[1:]])
    return shown


def _joined(row: PairRow) -> str:
    by = escape(row.link or row.way or "-")
    return by if row.connection == "UNIFIED" else f"({by})"


def _machine(report: DoctorReport) -> Table:
    shown = Table.grid(padding=(0, 2))
    memory = report.memory
    shown.add_row("memory", f"{size(memory.free)} available of {size(memory.limit)}")
    for room in report.control_groups:
        shown.add_row("control group", f"{escape(room.name)}: {size(max(room.free, 0))} left of {size(room.limit)}")
    if not report.control_groups:
        shown.add_row("control group", "no memory limit")
    shown.add_row("budget", escape(_budget(report)))
    shown.add_row("NUMA", f"{report.numa_nodes} nodes" if report.numa_nodes > 1 else "one node")
    shown.add_row("memory freed while locked", escape(_seen(report)))
    if any(row.name.startswith("cuda:") for row in report.devices):
        other = "by the driver; start programs with `pinning run` to stage their copies"
        shown.add_row("CUDA copies of programs", "staged (preloaded)" if report.preloaded else other)
    shown.add_row("huge pages", f"{_HUGE_PAGES.get(report.huge_pages, '')} ({report.huge_pages})")
    return shown


def _seen(report: DoctorReport) -> str:
    if report.unwatched is None:
        if report.preloaded:
            return "detected immediately (userfaultfd and the preloaded library)"
        elsewhere = "in mappings of files on disk only under `pinning run`"
        return f"detected immediately (userfaultfd, no preloaded library); {elsewhere}"
    if report.preloaded:
        return f"detected in libc calls (preloaded), not in direct system calls: {report.unwatched}"
    remedy = ". Allow userfaultfd, or start programs with `pinning run`" if "userfaultfd" in report.unwatched else ""
    return f"not detected: {report.unwatched}{remedy}"


def _budget(report: DoctorReport) -> str:
    now = report.budget
    limit = "no limit" if now.limit is None else f"{size(now.limit)} ({now.source})"
    kept = "no registration cache" if now.idle_limit == 0 else f"{size(now.idle)} idle"
    return f"{limit}: {size(now.used)} locked, {kept}"

# SPDX-License-Identifier: Apache-2.0
"""Draws what `pinning bench` measured. Importing this needs matplotlib."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from pinning.cli.bench import GIB, BenchReport
from pinning.cli.units import size
from pinning.errors import ArgumentError

_BLUE, _GREEN, _GREY = "#2f6fb0", "#3f9a5a", "#9a9a9a"


def check_format(file: Path) -> None:
    """Raise ArgumentError if the suffix is not that of an image format."""
    known = FigureCanvasBase.get_supported_filetypes()
    if file.suffix[1:].lower() not in known:
        raise ArgumentError(f"--plot {file}: its suffix is not that of an image; there are {', '.join(sorted(known))}")


def draw(report: BenchReport, file: Path) -> None:
    """Draw all measurements side by side into a file, whose suffix sets the image format."""
    figure = Figure(figsize=(17, 4.2), layout="constrained")
    lookups, registrations, copies, batches = figure.subplots(1, 4)
    figure.suptitle(f"pinning on {report.device}, {report.description}")
    _lookups(report, lookups)
    _registrations(report, registrations)
    _copies(report, copies)
    _batches(report, batches)
    for axes in (lookups, registrations, copies, batches):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)


def _lookups(report: BenchReport, axes: Axes) -> None:
    for what in dict.fromkeys(row.what for row in report.lookups):
        rows = [row for row in report.lookups if row.what == what]
        axes.plot([row.regions for row in rows], [row.times.median * 1e9 for row in rows], marker="o", label=what)
    axes.set(title="one lookup", xlabel="regions", ylabel="ns", xscale="log", yscale="log")
    axes.set_ylim(top=8 * axes.get_ylim()[1])  # room for the legend
    axes.legend(frameon=False, fontsize="small")


def _registrations(report: BenchReport, axes: Axes) -> None:
    rows = report.registrations
    labels = [f"{row.memory}\n{row.how}" for row in rows]
    scale = [1e3 * GIB / row.size for row in rows]
    medians = [row.lock.median * by for row, by in zip(rows, scale, strict=True)]
    below = [median - row.lock.low * by for median, row, by in zip(medians, rows, scale, strict=True)]
    above = [row.lock.high * by - median for median, row, by in zip(medians, rows, scale, strict=True)]
    bars = axes.barh(labels, medians, xerr=(below, above), color=_BLUE, ecolor=_GREY)
    axes.bar_label(bars, fmt=" %.3g")
    axes.invert_yaxis()
    axes.set(title="locking a GiB", xlabel="ms")


def _copies(report: BenchReport, axes: Axes) -> None:
    for way, style in (("to the device", "-"), ("from the device", "--")):
        rows = [row for row in report.copies if row.direction == way]
        sizes = [row.size for row in rows]
        kinds = {"locked": _BLUE, "by_pinning": _GREEN, "pageable": _GREY}
        labels = {"by_pinning": "pageable, by pinning"} if style == "-" else dict.fromkeys(kinds, "_unlabelled")
        for kind, colour in kinds.items():
            if all(getattr(row, kind) for row in rows):
                rates = [row.size / getattr(row, kind).median / 1e9 for row in rows]
                axes.plot(sizes, rates, style, marker="o", color=colour, label=labels.get(kind, kind))
    sizes = sorted({row.size for row in report.copies})
    axes.set(title="copies (dashed: from the device)", ylabel="GB/s", xscale="log", ylim=(0, None))
    axes.set_xticks(sizes, [size(each) for each in sizes], rotation=30, fontsize="small")
    axes.minorticks_off()
    if sizes:
        axes.set_ylim(top=1.4 * axes.get_ylim()[1])  # room for the legend
        axes.legend(frameon=False, fontsize="small", loc="upper left")


def _batches(report: BenchReport, axes: Axes) -> None:
    kinds = {"loop": ("one by one", _GREY), "engines": ("batch, engines", _GREEN), "kernel": ("batch, kernel", _BLUE)}
    shown = [kind for kind in kinds if any(getattr(row, kind) for row in report.batches)]
    for place, kind in enumerate(shown):
        label, colour = kinds[kind]
        rates = [row.size / times.median / 1e9 if (times := getattr(row, kind)) else 0 for row in report.batches]
        at = [index + 0.8 * (place + 0.5) / len(shown) - 0.4 for index in range(len(rates))]
        axes.bar_label(axes.bar(at, rates, 0.8 / len(shown), label=label, color=colour), fmt="%.2g", fontsize="x-small")
    ways = [f"{size(row.size)}\n{row.direction.replace(' the', chr(10) + 'the')}" for row in report.batches]
    axes.set(title="many blocks of locked memory", ylabel="GB/s")
    axes.set_xticks(range(len(ways)), ways, fontsize="small")
    if shown:
        axes.set_ylim(top=1.3 * axes.get_ylim()[1])  # room for the legend
        axes.legend(frameon=False, fontsize="small", loc="upper left")

# SPDX-License-Identifier: Apache-2.0
"""A plot of nanoseconds per lookup against the number of regions, ours and our peers'."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.figures import Figures

COLOURS = {"pagetable": "#c1272d", "UCX": "#0b5c99", "critnib": "#3a8f5c", "set + shared_mutex": "#777777"}
PANELS = {"4 KiB": "4 KiB regions", "mixed": "mixed sizes, 64 B to 64 MiB, unaligned"}


def draw_lookups(figures: Iterable[Figures], machine: str, path: Path) -> None:
    """Draw two log-log panels: solid for independent lookups, dotted for lookups that each need the last result."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot
    from matplotlib.ticker import FuncFormatter

    chosen = [each for each in figures if each.row == "find"]
    if not chosen:
        return
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 5), sharey=True, layout="constrained")
    for panel, (kind, title) in zip(panels, PANELS.items(), strict=True):
        for contender, colour in COLOURS.items():
            for series, style in {"throughput": "-", "dependent": ":"}.items():
                points = [
                    (each.regions, each.of(contender).middle)
                    for each in chosen
                    if each.kind == kind and each.series == series and contender in each.rounds
                ]
                if not points:
                    continue
                width = 2.4 if contender == "pagetable" else 1.4
                panel.plot(*zip(*points, strict=True), style, color=colour, linewidth=width, marker="o", markersize=3)
                if style == "-":
                    panel.annotate(contender, points[-1], (6, 0), textcoords="offset points", color=colour, va="center")
        panel.set(xscale="log", yscale="log", title=title, xlabel="regions")
        panel.set_xlim(right=60e6)  # room for the names
        panel.set_xticks([1, 10, 100, 1e3, 1e4, 1e5, 1e6], ["1", "10", "100", "1k", "10k", "100k", "1M"])
        panel.minorticks_off()
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.grid(True, alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("ns a lookup")
    figure.suptitle("Finding the region of an address; solid: independent lookups, dotted: each needs the last result")
    figure.text(0.995, 0.005, machine, ha="right", va="bottom", fontsize=8, color="#777777")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)

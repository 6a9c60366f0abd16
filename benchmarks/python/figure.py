# SPDX-License-Identifier: Apache-2.0
"""``figure.py``: draws docs/figures/h200.png, ours and our peers' figures on one machine, from benchmarks/results."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
OURS, SECOND, VENDOR, TORCH = "#2f6fb0", "#3f9a5a", "#555555", "#c8772e"
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

Curve = dict[int, float]  # bytes: measured value


def bytes_of(text: str) -> int:
    number, unit = text.partition(",")[0].split()
    return int(number) * UNITS[unit]


def name_of(size: int) -> str:
    unit, factor = next((unit, factor) for unit, factor in reversed(UNITS.items()) if size >= factor)
    return f"{size // factor} {unit}"


def medians(file: str, series: str, contender: str) -> Curve:
    rows = [json.loads(line) for line in (RESULTS / file).read_text().splitlines()]
    return {
        bytes_of(row["kind"]): median(row["rounds"][contender])
        for row in rows
        if row["series"] == series
        and contender in row["rounds"]
        and row["kind"].count(",") == ("locked" in row["kind"])
    }


def copies(kind: str, direction: str) -> Curve:
    rows = json.loads((RESULTS / "2026-11-21-nvidia-h200.bench.json").read_text())["copies"]
    return {row["size"]: row["size"] / row[kind]["median"] / 1e9 for row in rows if row["direction"] == direction}


def plot(axes: Axes, curve: Curve, style: str, colour: str, label: str | None = None) -> None:
    axes.plot(list(curve), list(curve.values()), style, marker="o", markersize=4, color=colour, label=label)


def locks(axes: Axes) -> None:
    for contender, colour in {"tensor.pin_memory": TORCH, "pinning.lock": OURS, "cuMemHostRegister": VENDOR}.items():
        plot(axes, medians("2026-11-21-nvidia-h200.buffers.jsonl", "lock", contender), "-", colour, contender)
    axes.set(title="locking memory that has been touched", ylabel="ms", yscale="log")


def large(axes: Axes) -> None:
    labels = {
        "locked": "pinning.copy, locked",
        "by_pinning": "pinning.copy, pageable",
        "pageable": "the driver, pageable",
    }
    for (kind, label), colour in zip(labels.items(), (OURS, SECOND, VENDOR), strict=True):
        plot(axes, copies(kind, "to the device"), "-", colour, label)
        plot(axes, copies(kind, "from the device"), "--", colour)
    axes.set(title="one copy (dashed: from the device)", ylabel="GB/s")


def small(axes: Axes) -> None:
    labels = {"pinning": "pinning.copy_batch", "torch copy_": "a loop of torch's copy_"}
    for (contender, label), colour in zip(labels.items(), (OURS, TORCH), strict=True):
        plot(axes, medians("2026-11-22-nvidia-h200.batches.jsonl", "to the device", contender), "-", colour, label)
        plot(axes, medians("2026-11-22-nvidia-h200.batches.jsonl", "to the host", contender), "--", colour)
    axes.set(title="many blocks (dashed: from the device)", ylabel="GB/s")


def main() -> None:
    figure = Figure(figsize=(15, 4.4), layout="constrained")
    for draw, axes in zip((locks, large, small), figure.subplots(1, 3), strict=True):
        draw(axes)
        axes.set_xscale("log", base=2)
        sizes = sorted({int(size) for line in axes.lines for size in line.get_xdata()})
        axes.set_xticks(sizes, [name_of(each) for each in sizes], rotation=30)
        axes.minorticks_off()
        if axes.get_yscale() == "linear":
            axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
        axes.legend(frameon=False, loc="upper left")
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("NVIDIA H200")
    figure.savefig(ROOT / "docs" / "figures" / "h200.png", dpi=130)


if __name__ == "__main__":
    main()

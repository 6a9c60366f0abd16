# SPDX-License-Identifier: Apache-2.0
"""The targets of the figures, each relative to a peer in the same run or absolute, and whether they are met."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.figures import Figures, Spread, number


@dataclass(frozen=True)
class Target:
    """A target for one series.

    Attributes
    ----------
    peer : str or None
        With a peer, `least` bounds peer / ours ("so many times faster") and `most` ours / peer; else they bound ours.
    """

    row: str
    series: str
    kind: str
    regions: int
    ours: str
    peer: str | None = None
    least: float | None = None
    most: float | None = None

    @property
    def subject(self) -> tuple[str, str, str | None]:
        """What is compared with which peer; targets of one subject differ in the workload."""
        return self.row, self.series, self.peer

    @property
    def bound(self) -> str:
        return f"≥ {number(self.least)}" if self.least is not None else f"≤ {number(self.most or 0)}"


@dataclass(frozen=True)
class Verdict:
    """A target and what was measured; `measured` is None when its row or its peer is missing."""

    target: Target
    unit: str = ""
    ours: Spread | None = None
    peer: Spread | None = None
    measured: Spread | None = None

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        value = self.measured.middle
        return value >= self.target.least if self.target.least is not None else value <= (self.target.most or 0)

    @property
    def word(self) -> str:
        return {True: "met", False: "MISSED", None: "not measured"}[self.met]


def judge(figures: Iterable[Figures], rows: Iterable[str]) -> Iterator[Verdict]:
    """A verdict on each target of these rows."""
    by_place = {(each.row, each.series, each.kind, each.regions): each for each in figures}
    for target in TARGETS:
        if target.row not in rows:
            continue
        found = by_place.get((target.row, target.series, target.kind, target.regions))
        if found is None or target.ours not in found.rounds or target.peer not in (None, *found.rounds):
            yield Verdict(target)
        elif target.peer is None:
            ours = found.of(target.ours)
            yield Verdict(target, found.unit, ours, None, ours)
        else:
            over, under = (target.peer, target.ours) if target.least is not None else (target.ours, target.peer)
            ratio = found.ratio(over, under)
            yield Verdict(target, found.unit, found.of(target.ours), found.of(target.peer), ratio)


def _find() -> Iterator[Target]:
    def faster(series: str, kind: str, peer: str, factors: dict[int, float]) -> Iterator[Target]:
        for regions, factor in factors.items():
            yield Target("find", series, kind, regions, "pagetable", peer, least=factor)

    all_counts = (1, 8, 100, 1_000, 10_000, 100_000, 1_000_000)
    large = all_counts[3:]
    yield from faster("throughput", "4 KiB", "UCX", dict(zip(all_counts, (1, 1, 2, 2, 3, 8, 12), strict=True)))
    yield from faster("dependent", "4 KiB", "UCX", dict(zip(all_counts[2:], (1.5, 1.5, 2.5, 4, 8), strict=True)))
    for series in ("throughput", "dependent"):
        yield from faster(series, "mixed", "UCX", dict(zip(large, (3, 4, 4, 4), strict=True)))
        yield from faster(series, "mixed", "set + shared_mutex", dict(zip(large, (8, 12, 12, 12), strict=True)))


def _update() -> Iterator[Target]:
    for series in ("insert", "remove"):
        for size in ("4 KiB", "64 KiB", "1 MiB", "16 MiB", "256 MiB", "1 GiB"):
            for alignment in ("aligned", "page-aligned", "unaligned"):
                if (size, alignment) != ("4 KiB", "page-aligned"):
                    yield Target("update", series, f"{size} {alignment}", 1_000, "pagetable", "UCX", least=1)
    yield Target("update", "insert", "64 GiB unaligned", 100, "pagetable", most=25_000)
    yield Target("update", "first insert", "64 GiB unaligned", 1, "pagetable", most=25_000)


def _memory() -> Iterator[Target]:
    yield Target("memory", "each region", "4 KiB", 1_000_000, "pagetable", most=96)
    yield Target("memory", "fixed", "4 KiB", 1_000_000, "pagetable", most=4096)
    yield Target("memory", "each region", "huge", 10_000, "pagetable", most=96)
    yield Target("memory", "each region", "64 MiB unaligned", 800_000, "pagetable", most=96)


def _others() -> Iterator[Target]:
    for kind in ("4 KiB", "mixed"):
        for regions, factor in {8: 2.6, 100: 2.6, 10_000: 1.3, 100_000: 1.3}.items():
            yield Target("writer", "slowdown", kind, regions, "pagetable", most=factor)
    yield Target("vendor", "find, slowdown", "4 KiB", 1_000, "PinnedMap", most=1.1)
    for series in ("ptr in", "find"):
        yield Target("python", series, "4 KiB", 1_000, "PageTable", "empty method", most=1.5)
        yield Target("python", series, "4 KiB", 1_000, "PageTable", "intervaltree", least=50)
    for kind in ("4 KiB", "mixed"):
        for series in ("contains_many", "find_many"):
            for pointers in ("all present", "half present"):
                name = f"{series}, {pointers}"
                yield Target("batch", name, kind, 100_000, "PageTable", "searchsorted", least=10)
    for regions, factor in {1: 2.0, 1_000: 1.0, 10_000: 1.0, 100_000: 1.0}.items():
        yield Target("pairs", "lock + unlock in Python", "4 KiB", regions, "PinnedMap", "LLVM, in C++", most=factor)
    yield Target("buffers", "lock", "1 GiB", 1, "pinning.lock", "tensor.pin_memory", least=8)
    yield Target("buffers", "lock", "1 GiB", 1, "pinning.lock", "cuMemHostRegister", most=1.05)
    for series in ("to the device", "to the host"):
        yield Target("copies", series, "1 GiB", 1, "pinning, pageable", "driver, pageable", least=4)
        yield Target("copies", series, "1 GiB", 1, "pinning, pageable", "driver, locked", most=1 / 0.85)
        for size in ("64 KiB", "256 KiB", "1 MiB", "4 MiB", "16 MiB"):
            yield Target("copies", series, size, 1, "pinning, pageable", "driver, pageable", least=1)
    yield Target("copies", "submit, over the driver's", "submit", 1, "copy_async", most=2)


TARGETS = (*_find(), *_update(), *_memory(), *_others())

# SPDX-License-Identifier: Apache-2.0
"""What a benchmark program prints: one JSON line for each workload and series."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from statistics import median


@dataclass(frozen=True)
class Spread:
    """The median of several rounds, and the least and greatest."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        return cls(median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{number(self.middle)} ({number(self.low)}..{number(self.high)})"


@dataclass(frozen=True)
class Figures:
    """One series of one workload: for each contender, one value per round. Contenders took turns within each round."""

    row: str
    kind: str
    regions: int
    series: str
    unit: str
    rounds: dict[str, list[float]]

    @classmethod
    def parse(cls, line: str) -> Figures:
        return cls(**json.loads(line))

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def of(self, contender: str) -> Spread:
        return Spread.of(self.rounds[contender])

    def ratio(self, over: str, under: str) -> Spread | None:
        """`over` / `under`, taken within each round; None where it would divide by zero."""
        if not all(self.rounds[under]):
            return None
        return Spread.of([a / b for a, b in zip(self.rounds[over], self.rounds[under], strict=True)])


def number(value: float) -> str:
    """Three digits or so, and no exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def count(regions: int) -> str:
    return f"{regions:,}".replace(",", " ")

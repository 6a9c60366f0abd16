# SPDX-License-Identifier: Apache-2.0
"""Times, as a median with its spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Self


@dataclass(frozen=True)
class Times:
    """Seconds that something took, over `repeats` tries."""

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, seconds: Sequence[float], per: int = 1) -> Self:
        """From tries that each did the work `per` times."""
        return cls(statistics.median(seconds) / per, min(seconds) / per, max(seconds) / per, len(seconds))


def seconds(work: Callable[[], object]) -> float:
    """Run `work` once; returns the seconds that it took."""
    begin = perf_counter()
    work()
    return perf_counter() - begin


def times(work: Callable[[], object], repeats: int, per: int = 1, in_a_row: int = 1) -> Times:
    """Run `work`, `in_a_row` times, once to warm up and then `repeats` times; it does what is measured `per` times."""

    def run() -> None:
        for _ in range(in_a_row):
            work()

    run()
    return Times.of([seconds(run) for _ in range(repeats)], per * in_a_row)

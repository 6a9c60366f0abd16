# SPDX-License-Identifier: Apache-2.0
"""How the Python programs measure: the same turns and the same lines of output as `native/rounds.hpp`."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from timeit import Timer

GROUP = 16  # calls per turn of the loop, so that the loop costs little


def arguments() -> tuple[int, int, str | None]:
    """ROUNDS MOST_REGIONS [LIBRARY]"""
    return int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None


def take_turns(rounds: int, turns: Sequence[Callable[[], object]]) -> None:
    """Call each turn once per round, starting with another one each time."""
    for round in range(rounds):
        for i in range(len(turns)):
            turns[(round + i) % len(turns)]()


def nanoseconds(statement: str, pointers: Sequence[int], **names: object) -> float:
    """The time of one `statement`, in which ``{}`` stands for a pointer, a different one each time.

    Names are local variables of the loop, and one turn of it runs 16 statements: the loop itself costs less than 2 ns
    per statement, which is in every contender's figure.
    """
    letters = [f"p{i}" for i in range(GROUP)]
    groups = list(zip(*[iter(pointers)] * GROUP, strict=True))
    body = "; ".join(statement.replace("{}", letter) for letter in letters)
    setup = "; ".join(f"{name} = _names['{name}']" for name in names) or "pass"
    timer = Timer(f"for {', '.join(letters)} in _groups: {body}", setup, globals={"_names": names, "_groups": groups})
    return timer.timeit(1) / len(pointers) * 1e9


def pages(count: int) -> list[int]:
    """Where `count` regions of 4 KiB start, one every 8 KiB."""
    return [0x1000_0000_0000 + 8192 * i for i in range(count)]


def inside(starts: Sequence[int], count: int, length: int = 1) -> list[int]:
    """`count` random addresses from which `length` bytes lie inside a random one of the pages."""
    draw = random.Random(len(starts))
    return [draw.choice(starts) + draw.randrange(4096 - length + 1) for _ in range(count)]


class Case:
    """The figures of one workload, by series (what was done) and contender, one per round. Printed as JSON lines."""

    def __init__(self, row: str, kind: str, regions: int) -> None:
        self._header = {"row": row, "kind": kind, "regions": regions}
        self._series: dict[tuple[str, str], dict[str, list[float]]] = {}

    def add(self, series: str, unit: str, contender: str, value: float) -> None:
        self._series.setdefault((series, unit), {}).setdefault(contender, []).append(value)

    def print(self) -> None:
        for (series, unit), rounds in self._series.items():
            print(json.dumps({**self._header, "series": series, "unit": unit, "rounds": rounds}), flush=True)

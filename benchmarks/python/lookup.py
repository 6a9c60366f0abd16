# SPDX-License-Identifier: Apache-2.0
"""Looking up one pointer from Python: ``lookup.py ROUNDS MOST_REGIONS``."""

from __future__ import annotations

import importlib.util
from functools import partial

from empty import Empty
from rounds import Case, arguments, inside, nanoseconds, pages, take_turns

from pagetable import PageTable
from pinning import PinnedInfo, PinnedMap

SIZE = 4096


class NoVendor:
    """A device that locks nothing."""

    name = "none"

    def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int:
        return ptr

    def data_unlock(self, ptr: int) -> None: ...

    def is_pinned_ptr(self, ptr: int) -> PinnedInfo | None:
        return None


def measure(count: int, rounds: int) -> None:
    starts = pages(count)
    table, locked = PageTable(), PinnedMap(NoVendor())
    for start in starts:
        table.insert(start, SIZE)
        locked.lock(start, SIZE)
    empty = Empty(table.find(starts[0]))
    contenders: list[tuple[str, str, str, object]] = [
        ("ptr in", "PageTable", "{} in it", table),
        ("ptr in", "PinnedMap", "{} in it", locked),
        ("ptr in", "empty method", "{} in it", empty),
        ("find", "PageTable", "it.find({})", table),
        ("find", "PinnedMap", "it.find({})", locked),
        ("find", "empty method", "it.find({})", empty),
    ]
    if count <= 10_000 and importlib.util.find_spec("intervaltree"):  # larger ones take minutes to build
        from intervaltree import Interval, IntervalTree

        tree = IntervalTree(Interval(start, start + SIZE) for start in starts)
        contenders.append(("ptr in", "intervaltree", "it.overlaps_point({})", tree))
        contenders.append(("find", "intervaltree", "it.at({})", tree))

    pointers = inside(starts, 1 << 14)
    assert all(pointer in table and pointer in locked for pointer in pointers)
    case = Case("python", "4 KiB", count)

    def turn(series: str, contender: str, statement: str, it: object) -> None:
        case.add(series, "ns", contender, nanoseconds(statement, pointers, it=it))

    take_turns(rounds, [partial(turn, *contender) for contender in contenders])
    case.print()


def measure_torch(rounds: int) -> None:
    """One tensor: is its memory locked?"""
    import torch

    import pinning

    tensor = torch.zeros(1 << 20, dtype=torch.uint8)
    case = Case("python", "a tensor", 1)
    pointers = [tensor.data_ptr()] * (1 << 12)

    def turn(contender: str, statement: str) -> None:
        elapsed = nanoseconds(statement, pointers, tensor=tensor, locked=locked, is_locked=pinning.is_locked)
        case.add("is it locked?", "ns", contender, elapsed)

    with pinning.lock(tensor, device="host:0"):
        locked = pinning.pinned_map("host:0")
        take_turns(
            rounds,
            [
                partial(turn, "tensor.data_ptr() in map", "tensor.data_ptr() in locked"),
                partial(turn, "pinning.is_locked(tensor)", "is_locked(tensor)"),
                partial(turn, "torch", "tensor.is_pinned()"),
            ],
        )
    case.print()


if __name__ == "__main__":
    rounds, most, _ = arguments()
    for count in (1, 1_000, 10_000, 100_000):
        if count <= most:
            measure(count, rounds)
    if importlib.util.find_spec("torch"):
        measure_torch(rounds)

# SPDX-License-Identifier: Apache-2.0
"""How many locks hold each page."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class PageCounts:
    """A count for every address, kept as steps: a range of any length costs two entries at most.

    Ranges are half-open and in bytes; the caller rounds them to pages.
    """

    def __init__(self) -> None:
        # Addresses from _starts[i] up to _starts[i + 1] have _counts[i]; neighbours always differ.
        self._starts = [0]
        self._counts = [0]

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, end: int) -> None:
        """Count one more lock on every page of the range."""
        self._shift(start, end, 1)

    def remove(self, start: int, end: int) -> None:
        """Count one lock less on every page of a range that was added before."""
        self._shift(start, end, -1)

    def runs(self, start: int, end: int, count: int) -> list[tuple[int, int]]:
        """The parts of the range whose pages are held by exactly `count` locks, ascending."""
        first = bisect_right(self._starts, start) - 1
        last = bisect_left(self._starts, end)
        ends = [*self._starts[first + 1 : last], end]
        steps = zip(self._starts[first:last], ends, self._counts[first:last], strict=True)
        return [(max(low, start), high) for low, high, held in steps if held == count]

    def _shift(self, start: int, end: int, by: int) -> None:
        first = self._step_at(start)
        last = self._step_at(end)
        for step in range(first, last):
            self._counts[step] += by
        for step in (last, first):
            if step > 0 and self._counts[step] == self._counts[step - 1]:
                del self._starts[step], self._counts[step]

    def _step_at(self, address: int) -> int:
        """The index of the step that begins at `address`, made if there is none."""
        step = bisect_left(self._starts, address)
        if step == len(self._starts) or self._starts[step] != address:
            self._starts.insert(step, address)
            self._counts.insert(step, self._counts[step - 1])
        return step

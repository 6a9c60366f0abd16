# SPDX-License-Identifier: Apache-2.0
"""The same interface on a well-known interval tree: slow, simple, and the oracle of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
from intervaltree import IntervalTree
from numpy.typing import ArrayLike, NDArray

from pagetable.errors import AbsentError, OverlapError, RangeError
from pagetable.table import Region


class ReferencePageTable:
    """What `pagetable.PageTable` must do, without its speed. Needs the package ``intervaltree``."""

    def __init__(self) -> None:
        self._tree = IntervalTree()
        self._next_id = 0

    def insert(self, start: int, size: int) -> Region:
        if size <= 0 or start < 0 or start + size > 2**64:
            raise RangeError(f"[{start}, {start + size}) is empty or not inside [0, 2**64)")
        if self._tree.overlaps(start, start + size):
            raise OverlapError(f"[{start:#x}, {start + size:#x}) is taken")
        region = Region(start, size, self._next_id)
        self._next_id += 1
        self._tree.addi(start, start + size, region)
        return region

    def remove(self, region: Region | int) -> None:
        start = region.start if isinstance(region, Region) else region
        found = self.find(start)
        if found is None or found.start != start or (isinstance(region, Region) and found != region):
            raise AbsentError(f"no region starts at {start:#x}")
        self._tree.removei(found.start, found.end, found)

    def find(self, address: int) -> Region | None:
        found: Region | None = next((interval.data for interval in self._tree.at(address)), None)
        return found

    def find_range(self, start: int, size: int) -> Region | None:
        region = self.find(start)
        return region if region is not None and 0 < size <= region.end - start else None

    def __contains__(self, address: int) -> bool:
        return bool(self._tree.overlaps_point(address))

    def __len__(self) -> int:
        return len(self._tree)

    def __iter__(self) -> Iterator[Region]:
        return iter([interval.data for interval in sorted(self._tree)])

    def overlapping(self, start: int, size: int) -> list[Region]:
        return [interval.data for interval in sorted(self._tree.overlap(start, start + size))]

    def contains_many(self, addresses: ArrayLike, sizes: ArrayLike | None = None) -> NDArray[numpy.bool_]:
        starts = numpy.asarray(addresses, dtype=numpy.uint64).tolist()
        lengths = numpy.broadcast_to(numpy.asarray(1 if sizes is None else sizes), len(starts)).tolist()
        pairs = zip(starts, lengths, strict=True)
        return numpy.array([self.find_range(start, length) is not None for start, length in pairs], dtype=numpy.bool_)

    def find_many(self, addresses: ArrayLike) -> NDArray[numpy.int64]:
        found = [self.find(address) for address in numpy.asarray(addresses, dtype=numpy.uint64).tolist()]
        return numpy.array([-1 if region is None else region.id for region in found], dtype=numpy.int64)

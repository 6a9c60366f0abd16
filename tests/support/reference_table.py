# SPDX-License-Identifier: Apache-2.0
"""The page table's interface on a well-known interval tree: slow, simple, and the oracle of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import SupportsIndex

import numpy
from intervaltree import IntervalTree
from numpy.typing import ArrayLike, NDArray

from pagetable.errors import AbsentError, OverlapError, RangeError
from pagetable.table import Region

TOP = 2**64


class ReferencePageTable:
    """What `pagetable.PageTable` must do, without its speed."""

    def __init__(self) -> None:
        self._tree = IntervalTree()
        self._next_id = 0

    def insert(self, start: SupportsIndex, size: SupportsIndex) -> Region:
        low, high = _range(start, size)
        if not 0 < high - low < TOP or high > TOP:
            raise RangeError(f"[{low:#x}, {high:#x}) has no bytes, too many, or some outside [0, 2**64)")
        if self._tree.overlaps(low, high):
            raise OverlapError(f"[{low:#x}, {high:#x}) is taken")
        region = Region(low, high - low, self._next_id)
        self._next_id += 1
        self._tree.addi(low, high, region)
        return region

    def remove(self, region: Region | SupportsIndex) -> None:
        start = region.start if isinstance(region, Region) else _address(region)
        found = self.find(start)
        if found is None or found.start != start or (isinstance(region, Region) and found != region):
            raise AbsentError(f"no region starts at {start:#x}")
        self._tree.removei(found.start, found.end, found)

    def find(self, address: SupportsIndex) -> Region | None:
        found: Region | None = next((interval.data for interval in self._tree.at(index(address))), None)
        return found

    def find_range(self, start: SupportsIndex, size: SupportsIndex) -> Region | None:
        region = self.find(start)
        return region if region is not None and 0 < index(size) <= region.end - index(start) else None

    def __contains__(self, address: SupportsIndex) -> bool:
        return self.find(address) is not None

    def __len__(self) -> int:
        return len(self._tree)

    def __iter__(self) -> Iterator[Region]:
        return iter([interval.data for interval in sorted(self._tree)])

    def overlapping(self, start: SupportsIndex, size: SupportsIndex) -> list[Region]:
        return [interval.data for interval in sorted(self._tree.overlap(*_range(start, size)))]

    def contains_many(self, addresses: ArrayLike, sizes: ArrayLike | None = None) -> NDArray[numpy.bool_]:
        starts = numpy.asarray(addresses, dtype=numpy.uint64).tolist()
        lengths = numpy.broadcast_to(numpy.asarray(1 if sizes is None else sizes), len(starts)).tolist()
        pairs = zip(starts, lengths, strict=True)
        return numpy.array([self.find_range(start, length) is not None for start, length in pairs], dtype=numpy.bool_)

    def find_many(self, addresses: ArrayLike) -> NDArray[numpy.int64]:
        found = [self.find(address) for address in numpy.asarray(addresses, dtype=numpy.uint64).tolist()]
        return numpy.array([-1 if region is None else region.id for region in found], dtype=numpy.int64)


def _address(value: SupportsIndex) -> int:
    address = index(value)
    if not 0 <= address < TOP:
        raise RangeError(f"{address} is not in [0, 2**64)")
    return address


def _range(start: SupportsIndex, size: SupportsIndex) -> tuple[int, int]:
    """The two ends of a range; the second may lie past the top."""
    low, length = _address(start), index(size)
    if length < 0:
        raise RangeError(f"{length} bytes are less than none")
    return low, low + length

# SPDX-License-Identifier: Apache-2.0
"""A pool's memory cut into blocks: who may use a free one again, how they split and how they merge.

Nothing here is locked: the pool's mutex is held by whoever calls.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from pinning.plugin import MemoryDevice

if TYPE_CHECKING:
    from pinning.queues.order import Point

GRAIN = 256  # bytes: blocks start and end at multiples of it, so that every kernel finds its memory aligned
After: TypeAlias = "tuple[Point, ...]"


class Segment:
    """What the vendor has allocated at once, as a chain of blocks without gaps."""

    __slots__ = ("base", "device_base", "first", "length")

    def __init__(self, base: int, device_base: int, length: int) -> None:
        self.base = base
        self.device_base = device_base  # the same byte for the device
        self.length = length
        self.first = Block(self, base, length)

    def blocks(self) -> Iterator[Block]:
        """All of them, ascending."""
        block: Block | None = self.first
        while block is not None:
            yield block
            block = block.next


class Block:
    """A stretch of a segment.

    Attributes
    ----------
    free : bool
        Whether nobody has it.
    after : tuple of Point
        What the next user must come after: the frees. While somebody has it, that of it which his own free may not
        cover.
    """

    __slots__ = ("after", "free", "next", "previous", "segment", "size", "start")

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        self.segment = segment
        self.start = start
        self.size = size
        self.free = True
        self.after: After = ()
        self.previous: Block | None = None
        self.next: Block | None = None


class Blocks:
    """The segments of a pool on one device."""

    def __init__(self, place: MemoryDevice) -> None:
        self.place = place
        self.segments: list[Segment] = []
        self._sizes: list[tuple[int, int]] = []  # (size, start) of all free blocks, ascending
        self._free: dict[int, Block] = {}  # those blocks by start

    def add(self, segment: Segment) -> None:
        """Take in a segment that is free."""
        self.segments.append(segment)
        self._list(segment.first)

    def remove(self, segment: Segment) -> None:
        """Let go of a segment that is free in one block."""
        self._unlist(segment.first)
        self.segments.remove(segment)

    def take(self, size: int, usable: Callable[[Block], bool]) -> Block | None:
        """A block of `size` bytes out of those that are usable: from the smallest that is enough, or of neighbours."""
        for index in range(bisect_left(self._sizes, (size, 0)), len(self._sizes)):
            block = self._free[self._sizes[index][1]]
            if usable(block):
                return self._use([block], size)
        for run in self._runs(usable):
            if sum(block.size for block in run) >= size:
                while sum(block.size for block in run[:-1]) >= size:
                    run.pop()
                return self._use(run, size)
        return None

    def give_back(self, block: Block, after: After) -> None:
        """Make a block free for whoever comes after all these points."""
        block.free = True
        block.after = after
        self._list(block)
        self._merge(block)

    def settle(self) -> None:
        """Merge all neighbours that are free for everybody by now."""
        for block in list(self._free.values()):
            if block.start in self._free:
                self._merge(block)

    def idle(self) -> list[Segment]:
        """The segments that are free for everybody, in one block after `settle`; the largest first."""
        whole = (each for each in self.segments if each.first.free and each.first.next is None)
        return sorted((each for each in whole if not pending(each.first.after)), key=lambda each: -each.length)

    def waits(self) -> bool:
        """Whether some free block is not known to be free for everybody."""
        return any(pending(block.after) for block in self._free.values())

    def _runs(self, usable: Callable[[Block], bool]) -> Iterator[list[Block]]:
        """Neighbours that are usable, two or more."""
        for segment in self.segments:
            run: list[Block] = []
            for block in segment.blocks():
                if block.free and usable(block):
                    run.append(block)
                    continue
                if len(run) > 1:
                    yield run
                run = []
            if len(run) > 1:
                yield run

    def _use(self, run: list[Block], size: int) -> Block:
        """Make neighbours one block of `size` bytes that somebody has; what is left of the last one stays free."""
        for block in run:
            self._unlist(block)
        rest = sum(block.size for block in run) - size
        if rest:
            self._list(_split(run[-1], run[-1].size - rest))
        first = run[0]
        for block in run[1:]:
            first.after = union((*first.after, *block.after))
            _absorb(first, block)
        first.free = False
        return first

    def _merge(self, block: Block) -> None:
        """Join a free block with its neighbours, unless that would have someone wait who need not."""
        block.after = pending(block.after)
        if block.previous and self._join(block.previous, block):
            block = block.previous
        if block.next:
            self._join(block, block.next)

    def _join(self, block: Block, following: Block) -> bool:
        block.after, following.after = pending(block.after), pending(following.after)
        if not (block.free and following.free and set(block.after) == set(following.after)):
            return False
        self._unlist(block)
        self._unlist(following)
        _absorb(block, following)
        self._list(block)
        return True

    def _list(self, block: Block) -> None:
        insort(self._sizes, (block.size, block.start))
        self._free[block.start] = block

    def _unlist(self, block: Block) -> None:
        del self._sizes[bisect_left(self._sizes, (block.size, block.start))]
        del self._free[block.start]


def _split(block: Block, size: int) -> Block:
    """Cut a block; returns the second part."""
    rest = Block(block.segment, block.start + size, block.size - size)
    rest.after = block.after
    rest.previous, rest.next = block, block.next
    if block.next:
        block.next.previous = rest
    block.next = rest
    block.size = size
    return rest


def _absorb(block: Block, following: Block) -> None:
    """Join a block with the one that follows it."""
    block.size += following.size
    block.next = following.next
    if following.next:
        following.next.previous = block


def pending(after: After) -> After:
    """Those points that are not known to be reached."""
    return tuple(point for point in after if not point.reached) if after else after


def union(points: After) -> After:
    """The fewest points that come after all of these: of an in-order queue the last one is enough."""
    last: dict[object, Point] = {}
    for point in points:
        if not point.reached:
            key = point.line if point.line.ordered else point
            known = last.get(key)
            if known is None or known.position < point.position:
                last[key] = point
    return tuple(last.values())

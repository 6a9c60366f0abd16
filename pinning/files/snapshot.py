# SPDX-License-Identifier: Apache-2.0
"""Copies of a device's tensors in locked memory, for as long as a file is written from there."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import numpy

from pinning.arena import Arena, ArenaAllocation
from pinning.copies import copy_batch_async
from pinning.errors import LockLimitError, PinningError, PoolLimitError
from pinning.machine.room import system_memory
from pinning.plugin import MemoryDevice
from pinning.queues import Event, default_queue
from pinning.runtime.per_device import PerDevice

_SHARE = 4  # of the free memory a quarter
_LEAST = 1 << 20  # bytes; to hold less than that is not worth a copy
Range = tuple[int, int, int]


class Parts(NamedTuple):
    """What is written of one device's memory, None: the host's: offset in the file, address and bytes; its owners."""

    device: MemoryDevice | None
    ranges: list[Range]
    owners: list[object]


class _Kept:
    """The arena of a device, made when it is needed first, and anew in a child of fork."""

    def __init__(self, device: MemoryDevice) -> None:
        self._device = device
        self.arena: Arena | None = None

    def get(self) -> Arena:
        if self.arena is None or self.arena.closed:
            most = system_memory().free // _SHARE
            self.arena = Arena(_LEAST, self._device, grow=max(most, _LEAST))
        return self.arena


_kept: PerDevice[_Kept] = PerDevice(_Kept)


def snapshot(
    parts: Parts, arena: Arena | None, blocks: list[ArenaAllocation], copies: list[Event]
) -> tuple[list[Range], Parts]:
    """Begin to copy as much as an arena has room for: where that is then, and what is left.

    Blocks of the arena and copies are added one by one, for the caller has to let go of them also after an error.
    """
    held: list[Range] = []
    left = list(parts.ranges)
    assert parts.device is not None
    try:
        chosen = _kept.get(parts.device).get() if arena is None else arena
        while left:
            block = _block(chosen, sum(size for _, _, size in left))
            if block is None:
                break
            blocks.append(block)
            chosen.wait()  # what is copied there is locked then
            taken, left = _split(left, block.nbytes)
            at, to, sources, sizes = block.ptr, [], [], []
            for begin, ptr, size in taken:
                held.append((begin, at, size))
                to.append(at)
                sources.append(ptr)
                sizes.append(size)
                at += size
            dsts, srcs = (numpy.asarray(each, numpy.uint64) for each in (to, sources))
            copies.append(copy_batch_async(dsts, srcs, sizes, default_queue(parts.device)))
    except (LockLimitError, PoolLimitError):  # it is written from where it is
        pass
    return held, Parts(parts.device, left, parts.owners)


def _block(arena: Arena, wanted: int) -> ArenaAllocation | None:
    room = max(arena.largest_available, arena.maximum - arena.nbytes)
    size = min(wanted, arena.largest_available if arena.largest_available >= _LEAST else room)
    if size < min(wanted, _LEAST):
        return None
    return arena.allocate(size)


def _split(ranges: list[Range], nbytes: int) -> tuple[list[Range], list[Range]]:
    """The first bytes of ranges, and the others."""
    taken: list[Range] = []
    for i, (begin, ptr, size) in enumerate(ranges):
        if size > nbytes:
            cut = [(begin + nbytes, ptr + nbytes, size - nbytes), *ranges[i + 1 :]]
            return ([*taken, (begin, ptr, nbytes)] if nbytes else taken), cut
        taken.append((begin, ptr, size))
        nbytes -= size
    return taken, []


def trim_snapshots() -> int:
    """Give the locked memory back that `save_file_async` keeps and no save uses now.

    Returns
    -------
    int
        How many bytes.
    """
    freed = 0
    for each in [found for slot in list(_kept.by_id.values()) if (found := slot()) is not None]:
        arena = each.arena
        if arena is not None and not arena.closed:
            nbytes = arena.nbytes
            with suppress(PinningError):  # it is in use
                arena.close()
                each.arena, freed = None, freed + nbytes
    return freed

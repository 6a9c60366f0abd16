# SPDX-License-Identifier: Apache-2.0
"""Copies of a device's tensors in locked memory, kept while a file is written from there."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy

from pinning.arena import Arena, ArenaAllocation
from pinning.copies import copy_batch_async
from pinning.errors import LockLimitError, PinningError, PoolLimitError
from pinning.machine.room import system_memory
from pinning.plugin import MemoryDevice
from pinning.queues import Event, default_queue
from pinning.queues.submitter import replace
from pinning.runtime.per_device import PerDevice

_SHARE = 4  # a quarter of the free memory
_LEAST = 1 << 20  # bytes; less is not worth a copy
_PADDING = 64  # bytes that aligning an allocation at the end of an arena may take
Range = tuple[int, int, int]


class Parts(NamedTuple):
    """Parts of one device's memory (None: the host's) to write: offset in the file, address, bytes; their owners."""

    device: MemoryDevice | None
    ranges: list[Range]
    owners: list[object]


class _Kept:
    """The arena of a device, made when it is first needed, and anew in a forked child."""

    def __init__(self, device: MemoryDevice) -> None:
        self._device = device
        self.arena: Arena | None = None

    def get(self) -> Arena:
        while (arena := self.arena) is None or arena.closed:
            most = system_memory().free // _SHARE
            made = Arena(_LEAST, self._device, grow=max(most, _LEAST))
            if not replace(vars(self), "arena", arena, made):  # another thread was quicker
                made.close()
        return arena

    def allocate(self, wanted: int) -> ArenaAllocation | None:
        while True:
            arena = self.get()
            try:
                return _block(arena, wanted)
            except PinningError:
                if not arena._ends:  # by `trim_snapshots`
                    raise
                with suppress(PinningError):  # another save was quicker, and uses it
                    arena.close()


_kept: PerDevice[_Kept] = PerDevice(_Kept)


def snapshot(
    parts: Parts, arena: Arena | None, blocks: list[ArenaAllocation], copies: list[Event]
) -> tuple[list[Range], Parts]:
    """Begin to copy as much as an arena has room for; returns where that will be, and the rest.

    Blocks of the arena and copies are appended one by one, because the caller has to release them after an error too.
    """
    held: list[Range] = []
    left = list(parts.ranges)
    assert parts.device is not None
    try:
        allocate = _kept.get(parts.device).allocate if arena is None else partial(_block, arena)
        while left:
            block = allocate(sum(size for _, _, size in left))
            if block is None:
                break
            blocks.append(block)
            block.arena.wait()  # until the block is locked
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
    except (LockLimitError, PoolLimitError):  # the rest is written from where it is
        pass
    return held, Parts(parts.device, left, parts.owners)


def _block(arena: Arena, wanted: int) -> ArenaAllocation | None:
    room = max(arena.largest_available, arena.maximum - arena.nbytes - _PADDING)
    size = min(wanted, arena.largest_available if arena.largest_available >= _LEAST else room)
    if size < min(wanted, _LEAST):
        return None
    return arena.allocate(size)


def _split(ranges: list[Range], nbytes: int) -> tuple[list[Range], list[Range]]:
    """The first `nbytes` bytes of ranges, and the rest."""
    taken: list[Range] = []
    for i, (begin, ptr, size) in enumerate(ranges):
        if size > nbytes:
            cut = [(begin + nbytes, ptr + nbytes, size - nbytes), *ranges[i + 1 :]]
            return ([*taken, (begin, ptr, nbytes)] if nbytes else taken), cut
        taken.append((begin, ptr, size))
        nbytes -= size
    return taken, []


def trim_snapshots() -> int:
    """Free the locked memory that `save_file_async` keeps and that no save uses now.

    Returns
    -------
    int
        The number of bytes freed.
    """
    freed = 0
    for arena in [each.arena for each in _kept.all()]:
        if arena is not None and not arena.closed:
            nbytes = arena.nbytes
            with suppress(PinningError):  # it is in use
                arena.close()
                freed += nbytes
    return freed

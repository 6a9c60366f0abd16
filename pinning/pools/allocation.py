# SPDX-License-Identifier: Apache-2.0
"""What a pool gives out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.errors import PoolLimitError
from pinning.memory import Allocation, owned
from pinning.plugin import MemoryDevice
from pinning.queues.pending import uses

if TYPE_CHECKING:
    from pinning.pools.blocks import Block
    from pinning.pools.pool import Pool
    from pinning.queues import Queue


class PoolAllocation(Allocation):
    """A block of a pool. Its `free` is one in the queue where it was allocated.

    Attributes
    ----------
    queue : Queue
        Where it was allocated.
    """

    __slots__ = ("block", "queue")

    def __init__(self, pool: Pool, queue: Queue, place: MemoryDevice, size: int, block: Block) -> None:
        ptr = block.start
        there = ptr - block.segment.base + block.segment.device_base
        super().__init__(ptr, there, size, pool.kind, pool.context, place, pool)
        self.queue = queue
        self.block = block

    def busy(self) -> bool:
        points = uses(self)
        if not points or self.queue.closed:
            return bool(points)
        before = self.queue.history()
        return not all(point in before for point in points)

    def give_back(self) -> None:
        if self.queue.closed:  # all that was ever in it is over
            self.pool.put_back(self, self.block.after)
        else:
            self.pool.take_back(self.queue, self, ())


class RefusedAllocation(Allocation):
    """What there is instead of memory when its pool is at its maximum: every use raises the error."""

    __slots__ = ("error",)

    def __init__(self, pool: Pool, place: MemoryDevice, size: int, error: PoolLimitError) -> None:
        self.size = size
        self.kind = pool.kind
        self.context = pool.context
        self.device = place
        self.pool = pool
        self.error = error
        self._process = owned.process
        self._ended = True

    @property
    def ptr(self) -> int:  # type: ignore[override]
        raise self.error

    @property
    def device_ptr(self) -> int:  # type: ignore[override]
        raise self.error

    def claim(self) -> None:
        raise self.error

    def __repr__(self) -> str:
        return f"<Allocation of {self.size} bytes, refused: {self.error}>"

# SPDX-License-Identifier: Apache-2.0
"""What `Queue.alloc` and `Queue.free` do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pinning.errors import InvalidRangeError, PinningError
from pinning.memory import Allocation, default_context
from pinning.plugin import Device, MemoryKind
from pinning.pools.given import PoolAllocation, claim, error_of, unclaim
from pinning.pools.pool import Pool
from pinning.queues import Event

if TYPE_CHECKING:
    from pinning.queues import Queue


def alloc_in(
    queue: Queue, nbytes: int, kind: MemoryKind | None, pool: Pool | None, wait_for: Iterable[Event]
) -> tuple[Allocation, Event]:
    """Allocate in the order of a queue; see `Queue.alloc`.

    Without `pool`, the default one of the queue's device and `kind`; without `kind`, that of `pool`, or else DEVICE.

    Raises
    ------
    PinningError
        The kind is not the pool's.
    """
    if pool is None:
        pool = default_pool(queue.device, MemoryKind.DEVICE if kind is None else kind)
    elif kind not in (None, pool.kind):
        raise PinningError(f"{pool!r} has no memory of another kind, such as {kind}")
    return pool.alloc(queue, nbytes, wait_for)


def free_in(queue: Queue, allocation: Allocation, wait_for: Iterable[Event]) -> Event:
    """Free in the order of a queue; see `Queue.free`.

    Raises
    ------
    InvalidRangeError
        It is freed already, or was not allocated in a queue.
    """
    if not isinstance(allocation, PoolAllocation):
        raise InvalidRangeError(f"{allocation!r} was not allocated in a queue: use its free(), once its work is over")
    if error_of(allocation) is not None:
        return Event.over(queue, error_of(allocation))
    claim(allocation)
    try:
        event: Event = allocation.pool.take_back(queue, allocation, tuple(wait_for))
    except BaseException:
        unclaim(allocation)
        raise
    return event


def default_pool(device: Device, kind: MemoryKind) -> Pool:
    """The pool of a device's default context for memory of one kind, the same each time."""
    known = _default_pools.get((id(device), kind))
    if known is None:
        known = _default_pools.setdefault((id(device), kind), Pool(default_context(device), kind))
    return known


_default_pools: dict[tuple[int, MemoryKind], Pool] = {}

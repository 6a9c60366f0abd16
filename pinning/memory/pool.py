# SPDX-License-Identifier: Apache-2.0
"""Pools: memory that is allocated and freed in the order of queues."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Self

from pinning.errors import ArgumentError, PinningError
from pinning.locking.devices import device as device_of_name
from pinning.memory.allocation import Allocation, end_dropped, kind_named
from pinning.memory.context import Context, default_context
from pinning.memory.pool_store import Store
from pinning.plugin import Device, MemoryKind, MemoryKindLike
from pinning.queues import Event
from pinning.runtime.arguments import describe, flag
from pinning.runtime.handles import refuse_closed
from pinning.runtime.per_device import PerDevice
from pinning.runtime.process import defer

if TYPE_CHECKING:
    from pinning.queues import Queue


class Pool(Store):
    """A stream-ordered allocator of memory of one kind; a context manager, which closes it.

    A block freed in a queue is reused as soon as the new allocation is ordered after the free: immediately in the same
    in-order queue; elsewhere if the wait list leads to the free's event, or if the free is known to be complete.

    Parameters
    ----------
    context : Context, or Device or str
        The owner of the memory: the default context of a device, if one is given. Queues of its devices allocate here.
    kind : MemoryKind
    release_threshold : int, optional
        Bytes: while more is reserved, wholly free blocks go back to the vendor. This is checked at each free. By
        default everything is kept until `trim_to` or `close`.
    maximum_size : int, optional
        Bytes that may be reserved at most.
    zero_initialize : bool
        Whether every allocation is filled with zeroes, in the order of its queue.
    read_only : bool
        A promise by the caller that devices only read this memory. `Allocation.read_only` passes it on.

    Attributes
    ----------
    closed : bool
        Whether nothing can be allocated here any more.
    reserved, used : int
        Bytes that the pool has from the vendor, and of these the bytes in allocated blocks, which are multiples of 256.
    reserved_high, used_high : int
        Their maximum since `reset_high`.

    Examples
    --------
    >>> with pinning.Pool("host", zero_initialize=True) as pool, pinning.Queue("host") as queue:
    ...     memory, ready = queue.alloc(1000, pool=pool)
    ...     freed = queue.free(memory)
    ...     pool.reserved >= 1000
    True
    """

    def __init__(
        self,
        context: Context | Device | str,
        kind: MemoryKindLike = MemoryKind.DEVICE,
        *,
        release_threshold: int | None = None,
        maximum_size: int | None = None,
        zero_initialize: bool = False,
        read_only: bool = False,
    ) -> None:
        if not isinstance(context, Context):
            context = default_context(context)
        if context.closed:
            raise PinningError(f"{context!r} is closed; nothing can be allocated in it")
        zeroed, constant = flag(zero_initialize, "zero_initialize"), flag(read_only, "read_only")
        super().__init__(context, kind, release_threshold, maximum_size, zeroed, constant)

    def __enter__(self) -> Self:
        refuse_closed(self)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # this module may be gone by then
        if is_finalizing() or not self.reserved:
            return
        try:
            warnings.warn(f"{self!r} was dropped; close it, or use `with`", ResourceWarning, stacklevel=2, source=self)
        finally:
            # Deferred, because the garbage collector may run this at any point, under any lock.
            defer(end_dropped, self.close)

    def __repr__(self) -> str:
        return f"<Pool of {self.kind.name} of {self.context!r}{', closed' if self.closed else ''}>"


class QuietPool(Pool):
    """A pool that may be dropped without a warning."""

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and self.reserved:
            defer(end_dropped, self.close)


def default_pool(device: Device | str, kind: MemoryKindLike) -> Pool:
    """The pool of a device's default context for memory of one kind, the same until it is closed."""
    return _default_pool(device_of_name(device), kind_named(kind))


def _default_pool(device: Device, kind: MemoryKind) -> Pool:
    return _default_pools[id(kind)].get_open(device)  # an enum's own hash takes longer than all else here


_default_pools = {id(kind): PerDevice(partial(QuietPool, kind=kind)) for kind in MemoryKind}


def alloc_in(
    queue: Queue, nbytes: int, kind: MemoryKindLike | None, pool: Pool | None, wait_for: Iterable[Event]
) -> tuple[Allocation, Event]:
    """Allocate in the order of a queue; see `Queue.alloc`.

    Without `pool`, the default one of the queue's device and `kind`; without `kind`, that of `pool`, or else DEVICE.

    Raises
    ------
    ArgumentError
        The kind is not the pool's.
    """
    if kind is not None and not isinstance(kind, MemoryKind):
        kind = kind_named(kind)
    if pool is None:
        pool = _default_pool(queue.device, MemoryKind.DEVICE if kind is None else kind)
    elif not isinstance(pool, Pool):
        raise TypeError(f"pool is {describe(pool)}; it must be a pinning.Pool")
    elif kind is not None and kind is not pool.kind:
        raise ArgumentError(f"kind is {kind.name}, and {pool!r} has {pool.kind.name}: leave out one of the two")
    return pool.alloc(queue, nbytes, wait_for)

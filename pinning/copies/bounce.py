# SPDX-License-Identifier: Apache-2.0
"""Copies between devices that cannot reach each other: through pinned host memory, one block at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from pinning.copies.costs import costs
from pinning.copies.plan import Step
from pinning.locking.devices import is_host
from pinning.plugin import MemoryDevice, VendorQueue
from pinning.queues import Event, Queue, default_queue
from pinning.queues.staging import staging_of

E = TypeVar("E", bound=Event)


def bounce(
    step: Step,
    to: MemoryDevice,
    origin: MemoryDevice,
    queue: Queue,
    wait_for: Iterable[Event],
    owners: Sequence[object],
    kind: Callable[[], E],
) -> E:
    """Copy `step` from device `origin` to device `to`; the event is one of `queue`. Raises as `copy_async`."""
    out = queue if queue.device is origin else default_queue(origin)
    back = queue if queue.device is to else default_queue(to)
    # The destination's vendor may read a block during the call, before it is filled, unless it knows it as pinned.
    rings = staging_of(origin if is_host(to) else to)
    block = rings.borrow(step.size, costs) or _Pageable(min(step.size, costs.ring_bytes))
    last: Event = queue.submit(None, wait_for)
    try:
        for at in range(0, step.size, block.nbytes):
            count = min(block.nbytes, step.size - at)
            last = out.submit(copies_of(block.ptr, step.src + at, count), (last,), (block, *owners))
            if isinstance(block, _Pageable) and back._reads_early:
                last.wait()
            last = back.submit(copies_of(step.dst + at, block.ptr, count), (last,), (block, *owners))
        return queue.submit(None, (last,), (), kind)
    except Exception:  # nothing stays submitted; after Ctrl-C it goes on, and keeps the memory
        for each in (out, back):
            with suppress(Exception):  # the first error says more
                each.synchronize()
        raise


def copies_of(dst: int, src: int, size: int) -> Callable[[VendorQueue], None]:
    return lambda vendor_queue: vendor_queue.copy(dst, src, size)


class _Pageable:
    """Pageable memory, used if no pinned memory is available: each copy then blocks the caller until it is done."""

    def __init__(self, nbytes: int) -> None:
        self._memory = (ctypes.c_char * nbytes)()
        self.ptr, self.nbytes = ctypes.addressof(self._memory), nbytes

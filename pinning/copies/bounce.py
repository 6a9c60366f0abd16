# SPDX-License-Identifier: Apache-2.0
"""Copies between devices that cannot reach each other: through pinned memory of the host, a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from pinning.copies.costs import costs
from pinning.copies.plan import Step
from pinning.plugin import MemoryDevice, MemoryKind, VendorQueue
from pinning.queues import Event, Queue, default_queue

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
    """Copy `step` from device `origin` to device `to`; the event is one of `queue`. Raises what `copy_async` does."""
    out = queue if queue.device is origin else default_queue(origin)
    back = queue if queue.device is to else default_queue(to)
    block = _Block(origin, min(step.size, costs.ring_bytes))
    last: Event = queue.submit(None, wait_for)
    for at in range(0, step.size, block.nbytes):
        count = min(block.nbytes, step.size - at)
        last = out.submit(_copies(block.ptr, step.src + at, count), (last,), (block, *owners))
        last = back.submit(_copies(step.dst + at, block.ptr, count), (last,), (block, *owners))
    return queue.submit(None, (last,), (), kind)


def _copies(dst: int, src: int, size: int) -> Callable[[VendorQueue], None]:
    return lambda vendor_queue: vendor_queue.copy(dst, src, size)


class _Block:
    """Pinned memory that is freed when the queues have let go of it."""

    def __init__(self, device: MemoryDevice, nbytes: int) -> None:
        self.ptr = device.allocate(nbytes, MemoryKind.HOST)
        self.nbytes = nbytes
        self._device = device

    def __del__(self) -> None:
        if hasattr(self, "_device"):
            with suppress(Exception):  # the device is lost; nobody is there to hear
                self._device.free(self.ptr, MemoryKind.HOST)

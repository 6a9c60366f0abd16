# SPDX-License-Identifier: Apache-2.0
"""The memory of arrays: which work uses it, and when it is given back."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from pinning.arrays.streams import Stream, device_of, queue_of
from pinning.errors import PinningError
from pinning.memory import Allocation, default_context
from pinning.plugin import Device, MemoryDevice, MemoryKind
from pinning.queues import Event, Queue, default_queue

_MANY = 32  # uses, above which those that are over are looked for


class _Use:
    """Work in a queue. One for each submission: it goes only if the queue was found idle after that."""

    __slots__ = ("queue",)

    def __init__(self, queue: Queue) -> None:
        self.queue = queue


class Buffer:
    """Memory that one array or several views of it share. Once nobody has it, it is given back at the next `tidy`.

    Attributes
    ----------
    device : MemoryDevice
        Whose arrays these are.
    place : MemoryDevice or None
        Whose memory it is; None for the host's.
    shared : bool
        Whether others know the address, so that they may use it in queues that are not known here.
    """

    __slots__ = ("__weakref__", "_uses", "allocation", "device", "owner", "place", "shared")

    def __init__(
        self,
        device: MemoryDevice,
        place: MemoryDevice | None,
        allocation: Allocation | None,
        owner: object,
        shared: bool,
    ) -> None:
        self.device = device
        self.place = place
        self.allocation = allocation
        self.owner = owner
        self.shared = shared
        self._uses: set[_Use] = set()
        if allocation is not None:
            _live.add(allocation)

    def use_in(self, queue: Queue) -> None:
        """Note work in a queue for which nobody waits here, which has just been submitted."""
        self._uses.add(_Use(queue))
        if len(self._uses) > _MANY:
            self.queues()

    def queues(self) -> list[Queue]:
        """Those with such work that is not over."""
        found: dict[Queue, None] = {}
        for use in list(self._uses):  # and of no later one, which another thread may note meanwhile
            queue = use.queue
            if queue in found or not queue.usable or queue.poll():
                self._uses.discard(use)
            else:
                found[queue] = None
        return list(found)

    def pending(self) -> list[Event]:
        """What must be over before the memory is used anywhere; waits where others may use it."""
        if self.shared:
            self.device.synchronize()
            return []
        events = []
        for queue in self.queues():
            try:
                events.append(queue.record())
            except PinningError:
                if queue.usable:
                    raise  # else another thread has closed it, which waits for all in it
        return events

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.allocation is None:
            raise AttributeError("this memory is not the host's")
        return self.allocation.__array_interface__

    def __del__(self) -> None:
        allocation = getattr(self, "allocation", None)
        if allocation is not None and not sys.is_finalizing():
            # Not freed here: the garbage collector runs this in the middle of anything, under any lock.
            _dropped.append(_Dropped(allocation, self.device if self.shared else None))
            _live.discard(allocation)


def allocate(
    nbytes: int, kind: MemoryKind, device: MemoryDevice, stream: Queue | None, write_combined: bool = False
) -> Buffer:
    """New memory, from the device's pool: for use in `stream` alone, or else anywhere.

    Write-combined memory comes from the vendor, and can be used anywhere.
    """
    if not nbytes:
        return Buffer(device, device, None, None, False)
    tidy()
    if write_combined:
        whole = default_context(device).alloc(nbytes, kind, write_combined=True)
        return Buffer(device, None, whole, None, True)
    queue = stream or default_queue(device)
    allocation, ready = queue.alloc(nbytes, kind)
    place = None if kind is MemoryKind.HOST else device
    buffer = Buffer(device, place, allocation, None, kind is not MemoryKind.DEVICE)
    if stream is None:
        ready.wait()
    else:
        buffer.use_in(stream)
    return buffer


def run(
    act: Callable[[Queue, list[Event]], Iterable[Event]], device: MemoryDevice, stream: Stream, *buffers: Buffer
) -> None:
    """Have `act` submit work that uses these buffers: in `stream` without waiting, or else after all that is under way.

    `act` is given the queue and what to wait for, and returns the events of its work.
    """
    if stream is not None:
        queue = queue_of(stream, device)
        try:
            act(queue, [])
        finally:  # also of a part of it
            for buffer in buffers:
                buffer.use_in(queue)
        return
    queue = default_queue(device)
    for event in act(queue, [event for buffer in buffers for event in buffer.pending()]):
        event.wait()
    queue.poll()  # lets go of the buffers


# ---- giving back ----


class _Dropped(NamedTuple):
    allocation: Allocation
    shared_on: MemoryDevice | None


_live: set[Allocation] = set()  # so that none is collected in one go with its buffer, and warns
_dropped: deque[_Dropped] = deque()
_deferring: list[None] = []  # one for each `defer_cleanup`: appending and popping need no lock


def tidy() -> None:
    """Give back the memory of arrays that nobody has any more.

    What others had the address of goes back once the device has done all its work, as a vendor's own free would wait.
    """
    if _deferring:
        return
    idle: list[MemoryDevice] = []
    for each in list(_dropped):
        allocation, device = each
        with suppress(PinningError):  # the next time tries again
            if device is not None and device not in idle and not allocation.freed:
                device.synchronize()
                idle.append(device)
            if not allocation.freed:  # as it is in a child after fork, or by another thread
                allocation.free()
        if allocation.freed:
            with suppress(ValueError):
                _dropped.remove(each)


def synchronize(device: Device | str | None = None) -> None:
    """Wait until a device has done all its work, and give back the memory of arrays that nobody has any more.

    Raises
    ------
    VendorError
        The device is lost.
    """
    on = device_of(device, None)
    on.synchronize()
    default_queue(on).poll()  # lets go of the arrays that its work has used
    tidy()


@contextmanager
def defer_cleanup() -> Iterator[None]:
    """Give no memory of arrays back for the length of a ``with`` block, in any thread.

    Giving back may wait for a device, which a program may not want in the middle of something.
    """
    _deferring.append(None)
    try:
        yield
    finally:
        _deferring.pop()
        tidy()

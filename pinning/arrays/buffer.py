# SPDX-License-Identifier: Apache-2.0
"""The memory of arrays: which work uses it, and when it is given back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import ref

from pinning.arrays.streams import Stream, device_of, queue_of
from pinning.errors import PinningError
from pinning.memory import Allocation, default_context
from pinning.plugin import Device, MemoryDevice, MemoryKind
from pinning.queues import Event, Queue, default_queue

_MANY = 32  # uses, above which completed ones are removed


class _Use:
    """Work in a queue. One for each submission, removed only if the queue was found idle after that."""

    __slots__ = ("queue",)

    def __init__(self, queue: Queue) -> None:
        self.queue = queue


class _Memory:
    """What is needed to free the memory after its buffer is gone."""

    __slots__ = ("allocation", "device", "shared")

    def __init__(self, allocation: Allocation | None, device: MemoryDevice, shared: bool) -> None:
        self.allocation = allocation
        self.device = device
        self.shared = shared


class Buffer:
    """Memory that an array and its views share. Once unreferenced it is given back at the next `tidy`.

    `place` is the device whose memory it is, None for the host's; `shared`: other libraries know the address, and may
    use it in queues that are not known here.
    """

    __slots__ = ("__weakref__", "_memory", "_uses", "allocation", "device", "owner", "place")

    def __init__(
        self,
        device: MemoryDevice,
        place: MemoryDevice | None,
        allocation: Allocation | None,
        owner: object,
        shared: bool,
    ) -> None:
        self.device: MemoryDevice = device
        self.place: MemoryDevice | None = place
        self.allocation: Allocation | None = allocation
        self.owner: object = owner
        self._memory = _Memory(allocation, device, shared)
        self._uses: set[_Use] = set()
        if allocation is not None:
            # No `__del__`: this callback notes the end in one step in C, wherever the collector runs.
            _memories[ref(self, _dropped.append)] = self._memory

    @property
    def shared(self) -> bool:
        return self._memory.shared

    @shared.setter
    def shared(self, shared: bool) -> None:
        self._memory.shared = shared

    def use_in(self, queue: Queue) -> None:
        """Note work that has just been submitted to a queue and that the caller does not wait for."""
        self._uses.add(_Use(queue))
        if len(self._uses) > _MANY:
            self.queues()

    def queues(self) -> list[Queue]:
        """The queues with noted work that is not complete."""
        busy: dict[Queue, None] = {}
        for use in list(self._uses):  # a later use, which another thread may note meanwhile, stays
            queue = use.queue
            if queue in busy or not queue.usable or queue.poll():
                self._uses.discard(use)
            else:
                busy[queue] = None
        return list(busy)

    def pending(self) -> list[Event]:
        """Events that must complete before the memory is used anywhere; if it is `shared`, waits for the device."""
        if self.shared:
            self.device.synchronize()
            return []
        events = []
        for queue in self.queues():
            try:
                events.append(queue.record())
            except PinningError:
                if queue.usable:
                    raise  # otherwise another thread has closed it, which waits for its work
        return events

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.allocation is None:
            raise AttributeError("this memory is not the host's")
        return self.allocation.__array_interface__


def allocate(
    nbytes: int, kind: MemoryKind, device: MemoryDevice, stream: Queue | None, write_combined: bool = False
) -> Buffer:
    """New memory from the device's pool, for use in `stream` only or, if that is None, anywhere.

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
    """Submit work by `act(queue, wait_for)`, which returns its events. Without `stream`, wait before and after it."""
    if stream is not None:
        queue = queue_of(stream, device)
        try:
            act(queue, [])
        finally:  # a part may have been submitted despite an error
            for buffer in buffers:
                buffer.use_in(queue)
        return
    queue = default_queue(device)
    for event in act(queue, [event for buffer in buffers for event in buffer.pending()]):
        event.wait()
    queue.poll()  # releases the buffers


# ---- giving back ----


# The memory of each buffer, kept here so that it is not collected with the buffer; references to buffers that are gone.
_memories: dict[ref[Buffer], _Memory] = {}
_dropped: deque[ref[Buffer]] = deque()
_deferring: list[None] = []  # one for each `defer_cleanup`: appending and popping need no lock


def tidy() -> None:
    """Give back the memory of arrays that are gone.

    Memory whose address others knew is freed after the device has completed all its work, as a vendor's free waits.
    """
    if _deferring:
        return
    idle: list[MemoryDevice] = []
    for buffer in list(_dropped):
        memory = _memories.get(buffer)
        if memory is None or _give_back(memory, idle):
            _memories.pop(buffer, None)
            with suppress(ValueError):  # another thread was quicker
                _dropped.remove(buffer)


def _give_back(memory: _Memory, idle: list[MemoryDevice]) -> bool:
    """Free memory; False if that failed, to be tried again. `idle`: devices that have been waited for."""
    allocation = memory.allocation
    if allocation is None or allocation.freed:  # in a forked child, or by another thread
        return True
    with suppress(PinningError):
        if memory.shared and memory.device not in idle:
            memory.device.synchronize()
            idle.append(memory.device)
        allocation.free()
    return allocation.freed


def synchronize(device: Device | str | None = None) -> None:
    """Wait until a device has completed all its work, and give back the memory of arrays that are gone.

    Raises
    ------
    VendorError
        The device is lost.
    """
    target = device_of(device, None)
    target.synchronize()
    default_queue(target).poll()  # releases the arrays that its work has used
    tidy()


@contextmanager
def defer_cleanup() -> Iterator[None]:
    """Give back no memory of arrays during a ``with`` block, in any thread.

    Giving back may wait for a device; this postpones such waits.
    """
    _deferring.append(None)
    try:
        yield
    finally:
        _deferring.pop()
        tidy()

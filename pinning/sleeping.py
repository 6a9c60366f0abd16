# SPDX-License-Identifier: Apache-2.0
"""Memory of devices that is given back for a while: its contents are in locked host memory until it wakes.

`Parked` does that for any memory, also for torch's; `sleep` and `wake` for what `alloc` has made sleepable.
"""

from __future__ import annotations

import time
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, NamedTuple, NoReturn
from weakref import ref

import numpy

from pinning.arena import Arena
from pinning.copies import copy_async, copy_batch_async
from pinning.errors import InvalidRangeError, PinningError
from pinning.locking.devices import device as device_of_name
from pinning.locking.lock_async import PendingLock, lock_unlisted
from pinning.machine import numa
from pinning.memory import Allocation
from pinning.queues import Event, Queue
from pinning.queues.links import Links
from pinning.queues.queue import kept_queue
from pinning.runtime.arguments import describe
from pinning.runtime.handles import refuse_copy
from pinning.runtime.per_device import device_slots
from pinning.runtime.process import defer

__all__ = ["sleep", "sleep_async", "wake", "wake_async"]

_ALIGNMENT = 256  # bytes
_ALONE = 1 << 20  # bytes from which a part is copied separately
_UNIT = 64 << 20  # bytes of host memory that are locked at a time, while the next are populated
_THREADS = 16  # that populate it, at most
_AHEAD = 8  # pending copies at a time, so that links are released soon
_PAUSE = 0.0001  # seconds, while another thread submits a copy
_QUEUE = "sleep"  # a key of `device_slots`


class Memory(NamedTuple):
    """Memory of a device that can be given back, and had again."""

    device: str
    set_awake: Callable[[bool], object]
    parts: Callable[[], Sequence[tuple[int, int]]]  # addresses and sizes of what is kept: always as many, as large


class _Part(NamedTuple):
    ptr: int
    nbytes: int
    offset: int  # in the host memory
    device: str


class Parked:
    """The host memory of what is parked, as `pinning.torch.park` returns; kept for the next time until that is gone.

    Attributes
    ----------
    parked : bool
        Whether the contents are in the host now, or dropped.
    nbytes : int
        Bytes that the last `park` has copied.
    """

    def __init__(self) -> None:
        self._host: Arena | None = None
        self._locks: list[PendingLock] = []  # of all of it, or of what it had before it grew
        self._away: Sequence[Memory] = ()
        self.nbytes: int = 0

    @property
    def parked(self) -> bool:
        return bool(self._away)

    def park(self, memory: Sequence[Memory], links: Links, keep: bool = True) -> None:
        """Copy memory to the host, or drop its contents, and give it back; after an error nothing has changed."""
        memory = memory if keep else [each._replace(parts=list) for each in memory]
        self.prepare(memory)
        _synchronize(memory)
        parts = _placed(memory)
        self._copy(parts, links, back=False)
        self._away, self.nbytes = memory, sum(part.nbytes for part in parts)
        try:
            for each in memory:
                each.set_awake(False)
        except BaseException:
            self.wake(links)
            raise
        if parts:
            self.lock(parts[0].device)  # not before: the first copies were slower beside it

    def wake(self, links: Links) -> None:
        deque(self.waking(links), maxlen=0)

    def waking(self, links: Links, order: Iterable[Iterable[int]] = ()) -> Iterator[None]:
        """Copy all back, first what has the addresses in `order`, with a step after each of these.

        After an error all is still parked.
        """
        try:
            for memory in self._away:
                memory.set_awake(True)
            _synchronize(self._away)  # torch's memory may be in use until then
            parts = sorted(_placed(self._away))
            starts, left = [part.ptr for part in parts], dict.fromkeys(parts)
            for addresses in order:
                places = sorted({bisect(starts, ptr) for ptr in addresses} - {0})
                first = [part for at in places if (part := parts[at - 1]) in left]
                self._copy(first, links, back=True)
                for part in first:
                    del left[part]
                yield
            self._copy(list(left), links, back=True)
        except BaseException:
            for memory in self._away:
                memory.set_awake(False)
            raise
        self._away = ()

    def prepare(self, memory: Sequence[Memory], limit: int = 0) -> None:
        """Have room in the host for this memory; it can grow to `limit`."""
        parts, host = _placed(memory), self._host
        nbytes = parts[-1].offset + parts[-1].nbytes if parts else 0
        if nbytes > (host.maximum if host is not None else 0):
            self.release()  # before other memory is allocated
            self._host = Arena(nbytes, (), grow=max(nbytes, limit))
        elif host is not None and nbytes > host.nbytes:
            host.grow(nbytes - host.nbytes)

    def lock(self, device: str) -> None:
        """Populate and lock the memory in the host in the background; copies of what is not locked are staged."""
        host, gpu = self._host, device_of_name(device)
        start = sum(lock.size for lock in self._locks)
        if host is not None and start < host.nbytes:
            cpus = numa.usable_cpus(numa.node_of(gpu))
            how = {"threads": min(_THREADS, len(cpus)), "cpus": cpus}
            with suppress(PinningError):
                self._locks.append(lock_unlisted((host.ptr + start, host.nbytes - start), gpu, _UNIT, how))

    def release(self) -> None:
        """Free the memory in the host."""
        host, self._host, locks, self._locks = self._host, None, self._locks, []
        if host is not None:
            _free(host, locks)

    def _copy(self, parts: Iterable[_Part], links: Links, back: bool) -> None:
        host = self._host.ptr if self._host is not None else 0
        small: dict[Queue, list[tuple[int, int, int]]] = {}
        pending: deque[Event] = deque()
        with ExitStack() as stack:
            queues: dict[str, Queue] = {}
            for ptr, nbytes, offset, device in parts:
                if device not in queues:
                    queues[device] = stack.enter_context(Queue(device, links=links))
                dst, src = (ptr, host + offset) if back else (host + offset, ptr)
                if nbytes < _ALONE:
                    small.setdefault(queues[device], []).append((dst, src, nbytes))
                    continue
                pending.append(copy_async(dst, src, nbytes, queue=queues[device]))
                if len(pending) > _AHEAD:
                    pending.popleft().wait()
            for queue, items in small.items():
                dsts, srcs, sizes = numpy.array(items, numpy.uint64).T.copy()
                pending.append(copy_batch_async(dsts, srcs, sizes, queue=queue))
            for event in pending:
                event.wait()

    def __del__(self) -> None:
        if self._host is not None:
            defer(partial(_free, self._host, self._locks))  # not here: the garbage collector may run this at any point

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it holds the contents of parked memory; wake that first")

    def __repr__(self) -> str:
        return f"<Parked: {self.nbytes} bytes, {'in the host' if self.parked else 'awake'}>"


def _free(host: Arena, locks: list[PendingLock]) -> None:
    for lock in locks:
        lock.cancel()
    host._close()


def _placed(memory: Iterable[Memory]) -> list[_Part]:
    """What is kept, each part with its place in the host."""
    parts, end = [], 0
    for each in memory:
        for ptr, nbytes in each.parts():
            parts.append(_Part(ptr, nbytes, end, each.device))
            end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return parts


def _synchronize(memory: Iterable[Memory]) -> None:
    for name in {each.device for each in memory}:
        device_of_name(name).synchronize()  # type: ignore[attr-defined]


# ---- what `alloc` has made sleepable ----


def sleep_async(memory: Allocation, *, keep: bool = True, links: Links = "idle") -> Event:
    """As `sleep`, of one allocation, in another thread: the GPU's memory is free after the event.

    Parameters
    ----------
    memory, keep, links
        As for `sleep`.
    """
    return _call(memory, lambda parked, whole: None if parked.parked else parked.park([whole], links, keep))


def sleep(*memory: Allocation, keep: bool = True, links: Links = "idle") -> None:
    """Give memory of ``alloc(..., sleepable=True)`` back to the GPU, while its addresses stay reserved.

    Waits for all work of the GPU, and for the copy. Nothing may use the memory until `wake`: copies and fills of this
    package are refused, but a kernel that touches it fails, and with it the process's CUDA context. It may be freed.

    Parameters
    ----------
    *memory : Allocation
        What is asleep stays so.
    keep : bool
        Copy the contents to locked host memory, which is kept for the next time until the allocation is freed; or drop
        them, so that they are undefined after `wake`.
    links : {"own", "idle"} or devices
        As for `Queue`.

    Raises
    ------
    InvalidRangeError
        It is freed, or was not allocated with ``sleepable=True``.
    MemoryError, VendorError
        The host's memory cannot be allocated, or a copy failed.

    After an error the allocation concerned is awake.
    """
    _wait([sleep_async(each, keep=keep, links=links) for each in memory])


def wake_async(memory: Allocation, *, links: Links = "idle") -> Event:
    """As `wake`, of one allocation, in another thread: its contents are back after the event.

    Parameters
    ----------
    memory, links
        As for `wake`.
    """
    return _call(memory, lambda parked, _: parked.wake(links))


def wake(*memory: Allocation, links: Links = "idle") -> None:
    """Bring back what `sleep` has taken away, to the same addresses.

    Parameters
    ----------
    *memory : Allocation
        What is awake stays so.
    links : {"own", "idle"} or devices
        As for `Queue`.

    Raises
    ------
    InvalidRangeError
        It is freed, or was not allocated with ``sleepable=True``.
    OutOfMemoryError, VendorError
        There is no room on the GPU, or a copy failed. That allocation still sleeps: try again.
    """
    _wait([wake_async(each, links=links) for each in memory])


def _wait(events: list[Event]) -> None:
    for event in events:
        event.wait()


def _call(memory: Allocation, act: Callable[[Parked, Memory], Any]) -> Event:
    """Call `act` on a thread that does all of this for the device, in order."""
    if not isinstance(memory, Allocation):
        raise TypeError(f"{describe(memory)} is no allocation, made by alloc(..., sleepable=True)")
    device: Any = memory.device
    alive = ref(memory)  # a queue keeps its last call

    def called() -> None:
        if (memory := alive()) is None:
            return
        if memory.freed:
            raise InvalidRangeError(f"{memory!r} can neither sleep nor wake")
        parked = memory._parked = memory._parked or Parked()
        ptr, size = memory.ptr, memory.size
        set_awake = partial(device.set_awake, ptr)
        set_awake(not parked.parked)  # refuses what is not sleepable
        try:
            while memory._set_asleep(True):
                time.sleep(_PAUSE)
            act(parked, Memory(device.name, set_awake, lambda: [(ptr, size)]))
        finally:
            memory._set_asleep(parked.parked)

    return kept_queue(device_slots(device), _QUEUE, partial(Queue, "host:0")).call(called)

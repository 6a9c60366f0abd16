# SPDX-License-Identifier: Apache-2.0
"""Memory of GPUs that sleeps: its contents are in the host, and its addresses stay reserved until it wakes."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from pinning.errors import GraphCaptureError, LockLimitError, PinningError
from pinning.locking.devices import device as device_of_name
from pinning.plugin import native
from pinning.queues import Event, Queue
from pinning.queues.links import Links
from pinning.sleeping import Memory, Parked
from pinning.torch.parking import Holder, _parked
from pinning.torch.storages import tensors_of

_tags: dict[str, _Tag] = {}


class _Tag:
    """The memory of one tag, with which one thing is done at a time, in the order of its queue."""

    def __init__(self) -> None:
        self.parked = Parked()
        self.queue = Queue("host:0")
        self.keep = True
        self.pools: list[Any] = []
        self.idle: defaultdict[int, deque[Any]] = defaultdict(deque)  # pools that no context uses, by GPU

    def memory(self) -> list[Memory]:
        return [each for pool in self.pools for each in _memory_of(pool)]

    def prepare(self) -> None:
        """Begin to lock host memory for what the tag has now."""
        memory = self.memory()
        with suppress(LockLimitError):  # the next `sleep` reports it
            if memory and not self.parked.parked:
                self.parked.prepare(memory, torch.cuda.mem_get_info(memory[0].device)[1])
                self.parked.lock(memory[0].device)

    def sleep(self, keep: bool, links: Links) -> None:
        if self.parked.parked:
            return
        if sum(map(len, self.idle.values())) < len(self.pools):
            raise PinningError("memory is being allocated in it: leave the `with` block of sleepable first")
        memory = self.memory()
        if any(each.parts() for each in memory):
            self.parked.park(memory, links, keep)
        else:  # nothing is left of it
            self.pools.clear()
            self.idle.clear()
            self.parked.release()
        torch.cuda.empty_cache()

    def wake(self, order: list[Any], links: Links) -> list[Event]:
        addresses = [[tensor.untyped_storage().data_ptr() for tensor in tensors_of(each)] for each in order]
        steps = self.parked.waking(links, addresses)
        events: list[Event] = []
        for _ in range(len(order) + 1):  # one fails if the one before it does
            events.append(self.queue.call(partial(next, steps, None), events[-1:]))
        return events


@contextmanager
def sleepable(tag: str = "default", device: Any = None, *, keep: bool = True) -> Iterator[Any]:
    """Within this context, tensors that this thread makes on a GPU are in memory that can sleep.

    Its addresses stay reserved: views, tied tensors, CUDA graphs and whatever else has an address are valid again once
    it is awake. Contexts may be nested; the inner one counts. Memory that other threads allocate, such as those that
    compute gradients, is not included.

    Parameters
    ----------
    tag : str
        What sleeps and wakes together. It must be awake.
    device : torch.device or str or int, optional
        An NVIDIA GPU; by default torch's current one. A tag may have memory of several.
    keep : bool
        What `sleep` does by default: keep the contents, for which host memory is locked in the background from the end
        of this context; or drop them.

    Yields
    ------
    torch.cuda.MemPool
        Graphs captured with ``pool=`` its `id` have their own memory there.
    """
    index = device if isinstance(device, int) else torch.device("cuda" if device is None else device).index
    index = torch.cuda.current_device() if index is None else index
    _gpu(_name(index))
    of = _tags.get(tag) or _tags.setdefault(tag, _Tag())
    if of.parked.parked:
        raise PinningError(f"{tag!r} is asleep: wake it before more is allocated in it")
    of.keep = keep
    try:
        pool = of.idle[index].pop()
    except IndexError:  # a pool takes one context at a time
        with torch.cuda.device(index):
            pool = torch.cuda.MemPool(_allocator().allocator())
        of.pools.append(pool)
    try:
        with torch.cuda.use_mem_pool(pool, index):
            yield pool
    finally:
        of.idle[index].append(pool)
    if keep:
        of.queue.call(of.prepare)


def sleep_async(tag: str, *, keep: bool | None = None, links: Links = "idle") -> Event:
    """As `sleep`, of one tag, in another thread: the GPU's memory is free after the event."""
    of = _known(tag)
    return of.queue.call(partial(of.sleep, of.keep if keep is None else keep, links))


def sleep(*tags: str, keep: bool | None = None, links: Links = "idle") -> None:
    """Give the memory of tags back to the GPUs, while its addresses stay reserved.

    Waits for all work of the GPUs, and for the copies. Nothing may use the memory until `wake`: a kernel that touches
    it fails (cudaErrorIllegalAddress), and with it the process's CUDA context. A tag without tensors is freed, also its
    memory in the host; what is asleep stays so.

    Parameters
    ----------
    *tags : str
        Those of `sleepable`; by default all.
    keep : bool, optional
        Copy the contents to locked host memory, which is kept for the next time; or drop them, so that they are
        undefined after `wake`. By default as `sleepable` said.
    links : {"own", "idle"} or devices
        As for `pinning.Queue`.

    Raises
    ------
    PinningError
        There is no such tag, or a thread is in its `sleepable`, or (GraphCaptureError) the current stream is captured.
    MemoryError, VendorError
        The host's memory cannot be allocated, or a copy failed. After any error that tag is awake.
    """
    for tag in tags or list(_tags):
        sleep_async(tag, keep=keep, links=links).wait()


def wake_async(tag: str, order: Iterable[Any] = (), *, links: Links = "idle") -> list[Event]:
    """As `wake`, of one tag, in another thread; what tensors, modules or collections in `order` have is copied first.

    Returns one event for each of `order`, which can be used after it, and one for all. They fail as `wake` does.
    """
    return _known(tag).wake(list(order), links)


def wake(*what: Holder | str, links: Links = "idle") -> None:
    """Bring back what `sleep` and `park` have taken away.

    Memory of tags has its former addresses. What was parked comes with all that was parked in the same call, and may
    have others: CUDA graphs must then be captured again. Everything is on the GPUs when the call returns, for work of
    any stream. What is awake stays so.

    Parameters
    ----------
    *what : str, torch.nn.Module or torch.optim.Optimizer
        Tags of `sleepable`, by default all; or what was parked.
    links : {"own", "idle"} or devices
        As for `pinning.Queue`.

    Raises
    ------
    PinningError
        There is no such tag, or it was never parked, or (GraphCaptureError) the current stream is captured.
    OutOfMemoryError, torch.OutOfMemoryError, VendorError
        There is no room on a GPU, even without what torch has cached, or a copy failed. That tag, or that call of
        `park`, still sleeps as a whole: try again.
    """
    for each in what or list(_tags):
        if isinstance(each, str):
            wake_async(each, links=links)[-1].wait()
        elif (parked := _parked.get(each)) is None:
            raise PinningError(f"this {type(each).__name__} was not parked: there is nothing to wake")
        else:
            parked.wake(links)


def _known(tag: str) -> _Tag:
    if tag not in _tags:
        raise PinningError(f"nothing was allocated with sleepable({tag!r}); the tags are {', '.join(_tags) or 'none'}")
    if torch.cuda.is_current_stream_capturing():
        raise GraphCaptureError("the current stream is captured, but memory sleeps or wakes once: do it after that")
    return _tags[tag]


def _memory_of(pool: Any) -> Iterator[Memory]:
    """What torch's pool has from us, and in each the blocks that are in use."""
    for segment in pool.snapshot():
        blocks, at = [], segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                blocks.append((at, block["size"]))
            at += block["size"]
        device = _name(segment["device"])
        yield Memory(device, partial(_set_awake, device, segment["address"]), partial(list, blocks))


def _set_awake(device: str, ptr: int, awake: bool) -> None:
    try:
        _gpu(device).set_awake(ptr, awake)
    except MemoryError:
        torch.cuda.empty_cache()  # which may have what is missing
        _gpu(device).set_awake(ptr, awake)


def _name(index: int) -> str:
    return f"cuda:{index}"


def _gpu(name: str) -> native.NativeDevice:
    return device_of_name(name)  # type: ignore[return-value]


@cache
def _allocator() -> Any:
    library = Path(native.__file__).parents[1] / "lib" / "libpinning.so.0"
    return torch.cuda.memory.CUDAPluggableAllocator(str(library), "pinning_sleepable_alloc", "pinning_sleepable_free")

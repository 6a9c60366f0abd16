# SPDX-License-Identifier: Apache-2.0
"""Queues of a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from numbers import Integral
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Protocol, Self, TypeVar
from weakref import ref

from pinning.errors import ArgumentError, InvalidRangeError, PinningError
from pinning.locking import devices
from pinning.plugin import Device, MemoryDevice, MemoryKindLike, VendorQueue
from pinning.queues import pending
from pinning.queues.event import Event
from pinning.queues.host_callback import HostCallback
from pinning.queues.lane import Lane, _handle_and_thread  # type: ignore[import-not-found]  # it has no stub
from pinning.queues.links import Chosen, Links, chosen_links
from pinning.queues.submitter import Submitter, replace
from pinning.runtime.arguments import describe, integer, is_one_of
from pinning.runtime.handles import refuse_closed, refuse_copy
from pinning.runtime.per_device import device_slots

if TYPE_CHECKING:
    from pinning.memory import Allocation, Pool

Order = Literal["in_order", "out_of_order"]
_K = TypeVar("_K")
_Key = tuple[int, int, int]  # a stream: the id of its device, its handle, and the thread, see `_key_of`

_lanes: dict[_Key, ref[Lane]] = {}  # of streams to which others submit


class Pools(Protocol):
    """Allocation in the order of a queue, by `pinning.memory`, which this package does not import."""

    def alloc_in(
        self, queue: Queue, nbytes: int, kind: MemoryKindLike | None, pool: Pool | None, wait_for: Iterable[Event]
    ) -> tuple[Allocation, Event]: ...

    def free_in(self, queue: Queue, allocation: Allocation, wait_for: Iterable[Event]) -> Event: ...


class Queue(Submitter):
    """A queue of operations on a device; on CUDA a stream. Any thread may submit.

    In order, each operation starts when all before it are complete. Out of order, it starts when its wait list is
    complete; a few operations run at a time, in no guaranteed order.

    A queue that is dropped is given back to the vendor when its work is complete.

    Parameters
    ----------
    device : MemoryDevice or str, optional
        The device or its name; by default the default device.
    order : {"in_order", "out_of_order"}
    links : {"own", "idle"} or devices, optional
        Which buses copies of 64 MiB and more between host and device may use: only the device's own; also those of
        all peers that are connected by a faster link and have no work of this package; or also those of the named
        peers, while they have none. By default `pinning.copies.costs.links`, which is ``"own"``.

    Raises
    ------
    PinningError
        The device has no queues; or one of `links` is named twice, is the device itself, or cannot carry its copies.
    ArgumentError
        `order` or `links` is invalid.
    VendorError
        The vendor refused.

    Examples
    --------
    >>> with pinning.Queue() as queue:
    ...     called = queue.call(lambda: print("in its turn"))
    ...     called.wait()
    in its turn
    """

    _pools: ClassVar[Pools]  # set by pinning.memory, which imports this package and not the reverse
    _adopted: ClassVar[dict[_Key, ref[Queue]]] = {}
    _given_away: _Key | None = None  # its stream, once others know the handle
    _links: Chosen | None = None

    def __init__(
        self, device: Device | str | None = None, order: Order = "in_order", *, links: Links | None = None
    ) -> None:
        if not is_one_of(order, "in_order", "out_of_order"):
            raise ArgumentError(f"order is {describe(order)}; it must be 'in_order' or 'out_of_order'")
        owner = _memory_device(device)
        if links is not None:
            self._links = chosen_links(links, owner)
        super().__init__(owner, order == "in_order")

    @classmethod
    def adopt(cls, stream: object, device: Device | str | None = None) -> Queue:
        """Make a queue over a stream of another owner, which goes on using it.

        Parameters
        ----------
        stream : object or int
            Anything with ``__cuda_stream__``, which is kept alive; or the vendor's handle, such as a cudaStream_t,
            which the caller keeps valid. The same object gives the same queue as long as that is in use; each thread
            has its own for the per-thread default stream.
        device : MemoryDevice or str, optional
            The device of the stream; the default device when None.

        Raises
        ------
        PinningError
            `stream` has another version of the protocol, or the device has no queues.
        VendorError
            The vendor refused, perhaps because there is no such stream.
        """
        if isinstance(stream, Queue):
            return stream
        owner = _memory_device(device)
        if isinstance(stream, Integral):
            handle = integer(stream, "the queue", "the handle of a vendor's queue")
            if not 0 <= handle < 1 << 64:
                raise InvalidRangeError(f"{handle:#x} is not a handle of a queue; give a Queue, or the vendor's handle")
            return cls._over(owner, _lane_over(owner, handle, None))
        handle = _handle_of(stream)
        key = _key_of(owner, handle)
        while True:
            known = cls._adopted.get(key)
            queue = None if known is None else known()
            if queue is not None and queue.usable:
                return queue
            queue = cls._over(owner, _lane_over(owner, handle, stream))
            if replace(cls._adopted, key, known, ref(queue, partial(_forget, cls._adopted, key))):
                return queue

    @classmethod
    def _over(cls, device: MemoryDevice, lane: Lane) -> Queue:
        queue = cls.__new__(cls)
        Submitter.__init__(queue, device, True, lane)
        return queue

    @property
    def links(self) -> Chosen | None:
        """The buses that large copies may use, as in `Queue`; None: as in `costs.links`. Can be set."""
        return self._links

    @links.setter
    def links(self, links: Links | None) -> None:
        self._links = None if links is None else chosen_links(links, self.device)

    @property
    def handle(self) -> int:
        """The vendor's handle, such as a cudaStream_t, for others to submit to; 0 if there is none.

        An out-of-order queue has several; this is the first one's. Once it has been read, others may submit, so each
        operation's vendor event is made at once.
        """
        lane = self._share()
        handle: int = lane.vendor.handle
        if handle and self._given_away is None:
            self._given_away = key = _key_of(self.device, handle)
            if self.order == "in_order":
                _lanes[key] = ref(lane, partial(_forget, _lanes, key))
        return handle

    @property
    def __cuda_stream__(self) -> Callable[[], tuple[int, int]]:
        """A queue of an NVIDIA GPU as a stream, for other libraries; see `handle`.

        Raises
        ------
        AttributeError
            The device is of another vendor.
        """
        if self.device.vendor != "cuda":
            raise AttributeError(f"{self!r} is not a CUDA stream")
        return lambda: (0, self.handle)

    def alloc(
        self,
        nbytes: int,
        kind: MemoryKindLike | None = None,
        pool: Pool | None = None,
        wait_for: Iterable[Event] = (),
    ) -> tuple[Allocation, Event]:
        """Allocate memory for work that comes after the event, such as later work in this in-order queue.

        Parameters
        ----------
        nbytes : int
            Bytes, at least one.
        kind : MemoryKind or str
            Which devices can reach it; by default the kind of `pool`, or else DEVICE.
        pool : Pool, optional
            The pool to allocate from; by default that of this kind in the device's default context.
        wait_for : iterable of Event
            Events that must complete before the memory is used. A block whose free is one of them, or comes before one
            of them, can be reused.

        Returns
        -------
        (Allocation, Event)
            The pointer is known at once. Beyond the pool's maximum, the event fails, and the pointer raises its error.
        """
        self._check_uncaptured("memory is allocated once")
        return self._pools.alloc_in(self, nbytes, kind, pool, wait_for)

    def free(self, allocation: Allocation, wait_for: Iterable[Event] = ()) -> Event:
        """Give memory back to its pool, once `wait_for` and, in an in-order queue, all earlier work are complete.

        Parameters
        ----------
        allocation : Allocation
            One that `alloc` has returned.
        wait_for : iterable of Event
            Events that must complete first as well, such as work of other queues on the memory.
        """
        self._check_uncaptured("memory is freed once")
        return self._pools.free_in(self, allocation, wait_for)

    @contextmanager
    def keep_recorded(self) -> Iterator[list[object]]:
        """Within this context, a list keeps what is recorded into graphs, alive and locked, instead of the graph.

        A graph that keeps something takes 1.4 us longer to launch (H200). Keep the list until the graph, and all that
        was instantiated from it, are gone: a launch without it reads and writes memory that may belong to others.

        Examples
        --------
        >>> with queue.keep_recorded() as kept, torch.cuda.graph(graph, stream=stream):
        ...     pinning.copy_async(static_input, locked_buffer, queue=queue)
        """
        kept: list[object] = []
        self._record_to(kept)
        try:
            yield kept
        finally:
            self._record_to(None)

    def call(self, function: Callable[[], object], wait_for: Iterable[Event] = ()) -> Event:
        """Call a Python function in its turn, on a thread of the vendor.

        If it raises, the event fails, and the queue goes on. It must not wait for work of the device; a wait for this
        queue itself is refused. It is called even if an event in `wait_for` has failed. If the event was dropped, an
        error goes to `sys.unraisablehook`. If it forks and returns in the child too, its thread ends there, and with it
        a child that has no other.

        Parameters
        ----------
        function : callable
            Called without arguments.
        wait_for : iterable of Event
            Events that must complete first.
        """
        if not callable(function):
            raise TypeError(f"function is {describe(function)}; it must be a function without arguments")
        return self._call(function, wait_for)

    def _call(self, function: Callable[[], object], wait_for: Iterable[Event], keep: tuple[object, ...] = ()) -> Event:
        """`call`, and keep the owners of the memory that the function uses until it is over."""
        event = Event()
        callback = HostCallback(function, event)

        def work(queue: VendorQueue) -> None:
            callback.queue = queue
            queue.call(callback.function, callback.argument)

        return self.submit(work, wait_for, (callback, *keep), lambda: event)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "use pinning.Queue(device) where it is needed")

    def __enter__(self) -> Self:
        refuse_closed(self)
        return self

    def close(self) -> None:
        """Wait until all work is complete, and give the vendor's queue back. Can be repeated. Events stay valid.

        A queue that was adopted from another library's stream over this queue's handle is closed too. As long as one is
        open that was adopted by the handle itself, the vendor's queue is kept.

        Raises
        ------
        VendorError
            Work failed, and no event reports it. Or the vendor refused to take the queue back; then it is still open,
            unless the vendor refuses everything, because the device is lost.
        """
        known = None if self._given_away is None else self._adopted.get(self._given_away)
        adopted = None if known is None else known()
        try:
            if adopted is not None and adopted is not self:
                adopted.close()
        finally:
            super().close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        name = getattr(self.device, "name", self.device)
        return f"<Queue of {name}, {self.order}{', closed' if self.closed else ''}>"


_DEFAULT = "default queue"  # the key in a device's slots
default_queues: dict[int, ref[Queue]] = {}  # default queues by id of the device, for Cython code


def default_queue(device: Device | str | None = None) -> Queue:
    """The in-order queue of a device that is used if none is given. One for each device, made on demand.

    Raises
    ------
    PinningError
        The device has no queues.
    """
    owner = _memory_device(device)
    queue = kept_queue(device_slots(owner), _DEFAULT, partial(Queue, owner))
    cached = default_queues.get(id(owner))
    if cached is None or cached() is not queue:
        default_queues[id(owner)] = ref(queue, partial(default_queues.pop, id(owner)))  # the reference is pop's default
    return queue


def kept_queue(queues: dict[_K, Any], key: _K, make: Callable[[], Queue]) -> Queue:
    """Return the queue that is kept under a key, made when it is first needed, and anew in a forked child."""
    while (queue := queues.get(key)) is None or not queue.usable:
        made = make()
        if not replace(queues, key, queue, made):  # another thread was quicker
            made.close()
    return queue  # type: ignore[no-any-return]


def as_queue(queue: object, device: Device | str | None = None) -> Queue:
    """Return the queue meant: itself, one over an object with ``__cuda_stream__``, or the default queue for None."""
    if isinstance(queue, Queue):
        return queue
    return default_queue(device) if queue is None else Queue.adopt(queue, device)


def _memory_device(device: Device | str | None) -> MemoryDevice:
    found: Any = devices.default_device() if device is None else devices.device(device)
    if not callable(getattr(found, "make_queue", None)):
        raise PinningError(f"{getattr(found, 'name', found)} has no queues; its plugin offers locks only")
    return found  # type: ignore[no-any-return]


def _handle_of(stream: object) -> int:
    protocol = getattr(stream, "__cuda_stream__", None)
    if not callable(protocol):
        raise TypeError(
            f"{describe(stream)} is not a queue: neither a pinning.Queue nor an object with __cuda_stream__; "
            "pinning.Queue(device) makes one"
        )
    returned = protocol()
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise TypeError(f"{describe(stream)}.__cuda_stream__ returned {describe(returned)}; it must return (0, handle)")
    version, handle = returned
    if version != 0:
        raise PinningError(f"{stream!r} has version {version} of __cuda_stream__; only version 0 is supported")
    return int(handle)


def _key_of(device: MemoryDevice, handle: int) -> _Key:
    return id(device), *_handle_and_thread(device, handle)


def _lane_over(device: MemoryDevice, handle: int, stream: object) -> Lane:
    """The one lane over a stream of another owner: so a copy knows what earlier copies there may still write."""
    key = _key_of(device, handle)
    while True:
        vendor = device.adopt_queue(handle)
        number = getattr(vendor, "stream_number", 0)
        known = _lanes.get(key)
        lane = None if known is None else known()
        if lane is not None and lane.join(number):
            return lane
        lane = Lane(vendor, True, True, device, stream, number)
        if replace(_lanes, key, known, ref(lane, partial(_forget, _lanes, key))):
            return lane
        pending.retire(lane)  # another thread was quicker


def _forget(where: dict[_Key, ref[Any]], key: _Key, gone: ref[Any]) -> None:
    if where.get(key) is gone:  # else another one has taken its place
        del where[key]

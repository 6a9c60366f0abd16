# SPDX-License-Identifier: Apache-2.0
"""Many copies as one: thousands of blocks between pools of the host and of a device, in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy
from numpy.typing import NDArray

from pinning.copies.batch_plan import BatchPlan, how, plan_of_batch, plan_of_items
from pinning.copies.batch_work import BatchCopy
from pinning.copies.copy import resubmitted
from pinning.copies.direct import copy_async, explain
from pinning.copies.ends import End, end_of
from pinning.copies.work import Copy, submit_native
from pinning.errors import ArgumentError, InvalidRangeError, PinningError
from pinning.locking.devices import is_host
from pinning.plugin import MemoryDevice
from pinning.queues import Event, Queue, as_queue, default_queue
from pinning.queues.submitter import events_of
from pinning.runtime.arguments import byte_count, describe, integer, is_one_of

Engine = Literal["auto", "copy", "kernel"]
Addresses = NDArray[numpy.uint64]

_UNKNOWN = 2**64 - 1  # the size of what an address is of


def copy_batch_async(
    dsts: Sequence[object] | NDArray[Any],
    srcs: Sequence[object] | NDArray[Any],
    sizes: int | Sequence[int] | NDArray[Any] | None = None,
    queue: Queue | object | None = None,
    wait_for: Iterable[Event] = (),
    engine: Engine = "auto",
) -> Copy:
    """Copy many ranges in a queue, as one piece of work; return once it is submitted.

    Item `i` goes from ``srcs[i]`` to ``dsts[i]``. It starts when what was submitted before and `wait_for` are over; one
    event tells the end of all. In what order items are copied is no promise: where two write the same byte, either may
    have the last word, and an item that reads what another writes may see it before or after.

    Parameters
    ----------
    dsts, srcs : sequence of objects, or array of addresses
        Each as an end of `copy_async`; or arrays of integers, shape (n,): addresses of host or device memory, which the
        caller keeps until the copy is over. The form for many thousand items.
    sizes : int or array of int, optional
        Bytes of every item, or of each, shape (n,). By default all of each buffer; needed with addresses.
    queue : Queue or object with ``__cuda_stream__``, optional
        By default the default queue of the device whose memory the first item uses.
    wait_for : iterable of Event
        What must be over before.
    engine : {"auto", "copy", "kernel"}
        What moves locked memory: the copy engines, one descriptor an item; or a kernel on a few multiprocessors, which
        is far faster for items below about 64 KiB. By itself this takes the kernel for small items where there are
        several, unless the queue's last kernel has waited for multiprocessors longer than the engines take.

    Returns
    -------
    Copy
        Its `path` and `reason` tell how many parts went which way. One item is copied as by `copy_async`.

    Raises
    ------
    InvalidRangeError
        The numbers of items differ, or an item is empty, no range of memory, read only or runs out of its buffer; the
        message names it, and nothing is copied.
    PinningError
        The engine is none of these, the device has no kernel and one is asked for, or a buffer is of another vendor's
        device than the queue.
    VendorError
        The vendor refused. What was submitted before that is over by then.
    """
    _check_engine(engine)
    _check_counts(dsts, srcs)
    if len(dsts) == 1 and engine != "kernel":
        dst, src, size = _one(dsts, srcs, sizes)
        try:
            return copy_async(dst, src, size, queue, wait_for)
        except (InvalidRangeError, TypeError) as error:
            raise type(error)(f"item 0 of the batch: {error}") from None
    return _submit(_batch(dsts, srcs, sizes, queue), engine, wait_for)


def copy_batch(
    dsts: Sequence[object] | NDArray[Any],
    srcs: Sequence[object] | NDArray[Any],
    sizes: int | Sequence[int] | NDArray[Any] | None = None,
    queue: Queue | object | None = None,
    engine: Engine = "auto",
) -> Copy:
    """`copy_batch_async`, and wait until it is done.

    Parameters
    ----------
    dsts, srcs, sizes, queue, engine
        As for `copy_batch_async`, which also says what is raised.

    Returns
    -------
    Copy
        It is over.
    """
    done = copy_batch_async(dsts, srcs, sizes, queue, (), engine)
    done.wait()
    return done


def copy_blocks(
    dst: object,
    dst_indices: Sequence[int] | NDArray[Any],
    src: object,
    src_indices: Sequence[int] | NDArray[Any],
    block_bytes: int,
    queue: Queue | object | None = None,
    wait_for: Iterable[Event] = (),
    engine: Engine = "auto",
) -> Copy:
    """Copy blocks of one pool to another's: block ``src_indices[i]`` to block ``dst_indices[i]``.

    Parameters
    ----------
    dst, src : object
        The pools, each as an end of `copy_async` that says how large it is; block `k` begins at byte
        ``k * block_bytes``.
    dst_indices, src_indices : sequence of int, or array, shape (n,)
        Whole numbers from 0 on. A destination that stands twice gets either block.
    block_bytes : int
        Bytes of a block.
    queue, wait_for, engine
        As for `copy_batch_async`.

    Raises
    ------
    InvalidRangeError
        A block lies outside of its pool; the message names it. Otherwise as `copy_batch_async`.
    """
    _check_engine(engine)
    given = None if queue is None else as_queue(queue)
    size = byte_count(block_bytes, "block_bytes")
    preferred = None if given is None else given.device
    ends = end_of(dst, preferred), end_of(src, preferred)
    if ends[0].read_only:
        raise InvalidRangeError(f"dst at {ends[0].ptr:#x} is read only; copy into writable memory")
    to = _blocks("dst", ends[0], dst_indices, size)
    origin = _blocks("src", ends[1], src_indices, size)
    if to.size != origin.size:
        raise InvalidRangeError(f"there are {to.size} dst_indices and {origin.size} src_indices; give as many of each")
    chosen = given or _queue_of([end.device for end in ends])
    _check_vendors([end.device for end in ends if end.device is not None], chosen)
    owners = tuple(end.owner for end in ends)
    return _submit(_Batch(to, origin, numpy.array([size], numpy.uint64), owners, chosen), engine, wait_for)


def explain_batch(
    dsts: Sequence[object] | NDArray[Any],
    srcs: Sequence[object] | NDArray[Any],
    sizes: int | Sequence[int] | NDArray[Any] | None = None,
    queue: Queue | object | None = None,
    engine: Engine = "auto",
) -> BatchPlan:
    """How `copy_batch_async` would move these now; nothing is copied. Raises what `copy_batch_async` does.

    Parameters
    ----------
    dsts, srcs, sizes, queue, engine
        As for `copy_batch_async`.

    Returns
    -------
    BatchPlan
        How many parts and bytes go which way, and why.
    """
    _check_engine(engine)
    _check_counts(dsts, srcs)
    if len(dsts) == 1 and engine != "kernel":
        dst, src, size = _one(dsts, srcs, sizes)
        try:
            return plan_of_items([explain(dst, src, size, queue)])
        except (InvalidRangeError, TypeError) as error:
            raise type(error)(f"item 0 of the batch: {error}") from None
    return plan_of_batch(_work(_batch(dsts, srcs, sizes, queue), engine))


class _Batch(NamedTuple):
    """What is to be copied: addresses, and one size or one for each item."""

    dsts: Addresses
    srcs: Addresses
    sizes: Addresses
    owners: tuple[object, ...]
    queue: Queue

    def span(self) -> tuple[int, int]:
        """The start and the size of a range in which all of both sides lies."""
        first = min(int(self.dsts.min()), int(self.srcs.min()))
        last = max(int(self.dsts.max()), int(self.srcs.max())) + int(self.sizes.max())
        return first, min(last, _UNKNOWN) - first


def _check_engine(engine: Engine) -> None:
    if not is_one_of(engine, "auto", "copy", "kernel"):
        raise ArgumentError(f"engine is {describe(engine)}; it must be 'auto', 'copy' or 'kernel'")


def _one(dsts: Any, srcs: Any, sizes: Any) -> tuple[Any, Any, int | None]:
    """Both ends and the size of the only item."""
    dst = int(_integers("dsts", dsts)[0]) if isinstance(dsts, numpy.ndarray) else dsts[0]
    src = int(_integers("srcs", srcs)[0]) if isinstance(srcs, numpy.ndarray) else srcs[0]
    if sizes is None or isinstance(sizes, int):
        return dst, src, sizes
    return dst, src, int(_given_sizes(sizes, 1)[0])


def _check_counts(dsts: Any, srcs: Any) -> None:
    for name, ends in (("dsts", dsts), ("srcs", srcs)):
        if not hasattr(ends, "__len__"):
            raise TypeError(f"{name} is {describe(ends)}; it must be a sequence of ends, or an array of addresses")
    if len(dsts) != len(srcs):
        raise InvalidRangeError(f"there are {len(dsts)} dsts and {len(srcs)} srcs; a batch has one of each for an item")
    if len(dsts) == 0:
        raise InvalidRangeError("the batch has no items; give at least one dst and one src")


def _batch(dsts: Any, srcs: Any, sizes: Any, queue: object) -> _Batch:
    given = None if queue is None else as_queue(queue)
    preferred = None if given is None else given.device
    to, origin = _side("dst", dsts, preferred), _side("src", srcs, preferred)
    of_items = _sizes(sizes, to, origin)
    chosen = given or _queue_of([_first_device(side) for side in (to, origin)])
    _check_vendors(to.devices + origin.devices, chosen)
    return _Batch(to.ptrs, origin.ptrs, of_items, to.owners + origin.owners, chosen)


class _Side(NamedTuple):
    """All ends of one side. `sizes` are the buffers' own; none where addresses were given."""

    ptrs: Addresses
    sizes: Addresses | None
    owners: tuple[object, ...]
    devices: tuple[MemoryDevice, ...]


def _side(name: str, ends: Any, preferred: Any) -> _Side:
    if isinstance(ends, numpy.ndarray):
        return _Side(_integers(f"{name}s", ends), None, (), ())
    resolved = []
    for i, buffer in enumerate(ends):
        try:
            end = end_of(buffer, preferred)
        except (InvalidRangeError, TypeError) as error:
            raise type(error)(f"item {i} of the batch: {name}: {error}") from None
        if name == "dst" and end.read_only:
            raise InvalidRangeError(f"item {i} of the batch: dst at {end.ptr:#x} is read only")
        resolved.append(end)
    ptrs = numpy.array([end.ptr for end in resolved], numpy.uint64)
    known = numpy.array([_UNKNOWN if end.size is None else end.size for end in resolved], numpy.uint64)
    devices = {id(end.device): end.device for end in resolved if end.device is not None}
    return _Side(ptrs, known, tuple(end.owner for end in resolved if end.owner is not None), tuple(devices.values()))


def _sizes(sizes: Any, to: _Side, origin: _Side) -> Addresses:
    """Bytes of all items, or of each, within what the buffers of both sides have."""
    if to.sizes is None and origin.sizes is None and isinstance(sizes, int):
        return numpy.array([byte_count(sizes, "sizes")], numpy.uint64)
    most = numpy.full(to.ptrs.shape, _UNKNOWN, numpy.uint64)
    for side in (to, origin):
        if side.sizes is None:
            continue
        differs = (most != side.sizes) & (most != _UNKNOWN) & (side.sizes != _UNKNOWN)
        if sizes is None and differs.any():
            i = int(differs.argmax())
            raise InvalidRangeError(
                f"item {i} of the batch: dst has {most[i]} bytes and src {side.sizes[i]}; give sizes to copy a part"
            )
        most = numpy.minimum(most, side.sizes)
    if sizes is None:
        if (unknown := (most == _UNKNOWN)).any():
            i = int(unknown.argmax())
            raise InvalidRangeError(f"item {i} of the batch: an address does not say how many bytes it has: give sizes")
        return most
    of_items = _given_sizes(sizes, to.ptrs.size)
    if (beyond := (of_items > most)).any():
        i = int(beyond.argmax())
        size, room = of_items[i % of_items.size], most[i]
        raise InvalidRangeError(f"item {i} of the batch: its size is {size}, and a buffer of it has {room} bytes")
    return of_items


def _given_sizes(sizes: Any, items: int) -> Addresses:
    if isinstance(sizes, (str, bytes)) or not getattr(sizes, "ndim", hasattr(sizes, "__len__")):
        return numpy.array([byte_count(sizes, "sizes")], numpy.uint64)
    of_items = _integers("sizes", sizes)
    if of_items.size != items:
        raise InvalidRangeError(f"there are {of_items.size} sizes for {items} items; give one, or one for each")
    return of_items


def _integers(name: str, values: Any) -> Addresses:
    try:
        given = numpy.asarray(values)
    except ValueError:  # a sequence in it, of another length than the next
        given = numpy.empty(1, object)
    if given.dtype.kind in "Of" and given.ndim == 1 and not isinstance(values, numpy.ndarray):
        given = numpy.array([_word(each, i, name) for i, each in enumerate(values)], numpy.uint64)
    if given.shape == (0,):
        raise InvalidRangeError(f"{name} is empty: the batch has no items; give at least one")
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise TypeError(f"{name} must be whole numbers in one dimension, not {given.dtype} of shape {given.shape}")
    if given.dtype.kind == "i" and given.min() < 0:
        i = int((given < 0).argmax())
        raise InvalidRangeError(f"item {i} of the batch: {given[i]} in {name} is negative")
    return numpy.ascontiguousarray(given, numpy.uint64)


def _word(value: Any, item: int, name: str) -> int:
    """What NumPy has no integer for, or not one for all of them."""
    number = integer(value, f"item {item} of the batch: what is in {name}", "64 bits wide")
    if not 0 <= number < 1 << 64:
        raise InvalidRangeError(f"item {item} of the batch: {describe(number)} in {name} is not in [0, 2**64)")
    return number


def _blocks(name: str, pool: End, indices: Any, block_bytes: int) -> Addresses:
    numbers, size = _integers(f"{name}_indices", indices), pool.size
    if size is None:
        raise InvalidRangeError(f"{name} is an address, which does not say how many blocks it has: give a buffer")
    count = size // block_bytes
    if numbers.max() >= count:
        i = int((numbers >= count).argmax())
        raise InvalidRangeError(
            f"item {i} of the batch: {name} has no block {numbers[i]}; its {size} bytes are {count} blocks of "
            f"{block_bytes}"
        )
    return numpy.uint64(pool.ptr) + numbers * numpy.uint64(block_bytes)


def _first_device(side: _Side) -> MemoryDevice | None:
    return next(iter(side.devices), None) if side.sizes is not None else end_of(int(side.ptrs[0])).device


def _check_vendors(devices: Iterable[MemoryDevice], queue: Queue) -> None:
    """Refuse memory of which the queue's device knows nothing: it would be taken for the host's."""
    for device in devices:
        if not is_host(device) and device.vendor != queue.device.vendor:
            raise PinningError(f"{device.name} is of another vendor than {queue!r}: copy its items by copy_async")


def _queue_of(devices: Sequence[MemoryDevice | None]) -> Queue:
    return default_queue(next((device for device in devices if device is not None), None))


def _work(batch: _Batch, engine: Engine) -> BatchCopy:
    queue = batch.queue
    by_kernel = queue.moves_parts and not (engine == "auto" and queue.kernel_is_late(batch.dsts.size))
    return BatchCopy(queue.device, batch.dsts, batch.srcs, batch.sizes, batch.owners, engine, by_kernel)


def _submit(batch: _Batch, engine: Engine, wait_for: Iterable[Event]) -> Copy:
    waits = events_of(wait_for)
    return resubmitted(lambda: _all_at_once(batch, engine, waits), batch.queue.device, batch.span)


def _all_at_once(batch: _Batch, engine: Engine, wait_for: tuple[Event, ...]) -> Copy:
    work = _work(batch, engine)
    copy = submit_native(batch.queue, work, wait_for)
    copy.path, copy.reason = how(work)
    return copy

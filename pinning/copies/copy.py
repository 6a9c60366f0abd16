# SPDX-License-Identifier: Apache-2.0
"""Copies between host and devices, each on the fastest path there is for it."""

from __future__ import annotations

from collections.abc import Iterable

from pinning.copies.bounce import bounce
from pinning.copies.costs import costs
from pinning.copies.direct import Copy, copy_whole
from pinning.copies.ends import End, end_of
from pinning.copies.plan import Path, Plan, plan
from pinning.copies.repeats import lock_if_repeated
from pinning.copies.submit import holds, submit
from pinning.devices import default_device
from pinning.errors import InvalidRangeError, PinningError
from pinning.plugin import MemoryDevice, VendorQueue, host_work
from pinning.queues import Event, Queue, default_queue
from pinning.staging import staging_of


def copy_async(
    dst: object,
    src: object,
    nbytes: int | None = None,
    queue: Queue | object | None = None,
    wait_for: Iterable[Event] = (),
) -> Copy:
    """Copy bytes, in a queue; return once the copy is submitted.

    The memory of both ends is kept alive until it is done. Later work in the queue sees the data. A copy on the path
    ``"plain"`` blocks the caller while the vendor reads or writes pageable memory.

    Parameters
    ----------
    dst, src : object
        Each an `Allocation`, a `Lock`, anything that `pinning.lock` takes and whose bytes are contiguous, an object
        with ``__cuda_array_interface__``, or an address of host or device memory (with `nbytes`).
    nbytes : int, optional
        How many; by default all, and then both ends must have the same size.
    queue : Queue or object with ``__cuda_stream__``, optional
        By default the default queue of the device whose memory is an end.
    wait_for : iterable of Event, optional
        What must be over before.

    Raises
    ------
    TypeError
        An end is no buffer.
    InvalidRangeError
        The sizes differ, an end is too small, is read only, or its bytes are scattered.
    VendorError
        The vendor refused. What fails later reaches the `Copy`.
    """
    if nbytes is None and isinstance(queue, Queue):
        whole = copy_whole(dst, src, queue, wait_for, costs)
        if whole is not None:
            return whole
    to, origin, size, on = _ends(dst, src, nbytes, queue)
    device = on.device
    chosen = plan(to, origin, size, device, stages=on.waits_for_values)
    if to.device is None and origin.device is None:
        return _by_host(chosen, (to.owner, origin.owner), on, wait_for)
    if chosen.to_device is not None and chosen.path in (Path.STAGED, Path.PLAIN):
        host, buffer = (origin.ptr, src) if chosen.to_device else (to.ptr, dst)
        if lock_if_repeated(buffer, host, size, device):
            chosen = plan(to, origin, size, device, stages=on.waits_for_values).as_locked()
    if to.device is not None and origin.device is not None and chosen.path is Path.STAGED:
        copy = bounce(chosen.steps[0], to.device, origin.device, on, wait_for, (to.owner, origin.owner), Copy)
        copy.path, copy.reason = chosen.path, chosen.reason
        return copy
    held: list[object] = []
    how = chosen.path, chosen.reason

    def work(vendor_queue: VendorQueue) -> None:
        nonlocal how
        how = submit(chosen, device, vendor_queue, held)

    copy = on.submit(work, wait_for, (to.owner, origin.owner, held), Copy)
    copy.path, copy.reason = how
    return copy


def copy(dst: object, src: object, nbytes: int | None = None, queue: Queue | object | None = None) -> Copy:
    """`copy_async`, and wait until it is done."""
    done = copy_async(dst, src, nbytes, queue)
    done.wait()
    return done


def copy_2d_async(
    dst: object,
    dst_pitch: int,
    src: object,
    src_pitch: int,
    width: int,
    height: int,
    queue: Queue | object | None = None,
    wait_for: Iterable[Event] = (),
) -> Copy:
    """Copy `height` rows of `width` bytes, whose starts are `dst_pitch` and `src_pitch` bytes apart.

    Raises
    ------
    InvalidRangeError
        A pitch is smaller than a row, or an end is too small; otherwise as `copy_async`.
    """
    for name, pitch in (("dst_pitch", dst_pitch), ("src_pitch", src_pitch)):
        if pitch < width:
            raise InvalidRangeError(f"{name} is {pitch}; rows of {width} bytes need at least that")
    if width <= 0 or height <= 0:
        raise InvalidRangeError(f"{height} rows of {width} bytes: nothing to copy")
    on = _queue(queue)
    to, origin = end_of(dst, _device(on)), end_of(src, _device(on))
    for name, end, pitch in (("dst", to, dst_pitch), ("src", origin, src_pitch)):
        spans = pitch * (height - 1) + width
        if end.size is not None and end.size < spans:
            raise InvalidRangeError(f"{name} has {end.size} bytes; {height} rows, {pitch} bytes apart, span {spans}")
    _refuse_read_only(to)
    on = on or default_queue(to.device or origin.device or _default())
    span = src_pitch * (height - 1) + width
    chosen = plan(to, origin, span, on.device, stages=False)
    if len(chosen.steps) > 1:
        raise InvalidRangeError(
            f"the rows cross the border of a lock ({chosen.reason}), which no vendor's 2-D copy does: lock all of them"
        )

    held: list[object] = []

    def work(vendor_queue: VendorQueue) -> None:
        held.extend(holds(chosen, on.device))
        vendor_queue.copy_2d(to.ptr, dst_pitch, origin.ptr, src_pitch, width, height)

    copy = on.submit(work, wait_for, (to.owner, origin.owner, held), Copy)
    copy.path, copy.reason = chosen.path, chosen.reason
    return copy


def fill(
    dst: object,
    value: int | bytes,
    nbytes: int | None = None,
    queue: Queue | object | None = None,
    wait_for: Iterable[Event] = (),
) -> Event:
    """Fill memory of a device or of the host with a value, in a queue.

    Parameters
    ----------
    dst : object
        As in `copy_async`.
    value : int or bytes
        A byte, or 1, 2 or 4 bytes that are repeated.
    nbytes : int, optional
        A multiple of the value's length; all of `dst` by default.

    Raises
    ------
    InvalidRangeError
        The value has another length, or does not fit a whole number of times.
    """
    pattern = bytes([value]) if isinstance(value, int) else bytes(value)
    if len(pattern) not in (1, 2, 4):
        raise InvalidRangeError(f"the value has {len(pattern)} bytes; it must have 1, 2 or 4")
    given = _queue(queue)
    to = end_of(dst, _device(given))
    _refuse_read_only(to)
    size = _size(nbytes, to.size, to.size)
    if size % len(pattern):
        raise InvalidRangeError(f"{size} bytes are no whole number of values of {len(pattern)}")
    on = given or default_queue(to.device or _default())
    count = size // len(pattern)
    if to.device is None:
        return on.call(lambda: host_work.fill(to.ptr, pattern, count), wait_for)
    return on.submit(lambda vendor_queue: vendor_queue.fill(to.ptr, pattern, count), wait_for, (to.owner,))


def explain(dst: object, src: object, nbytes: int | None = None, queue: Queue | object | None = None) -> Plan:
    """Which path `copy_async` would take now, and why; nothing is copied. Raises what `copy_async` does."""
    to, origin, size, on = _ends(dst, src, nbytes, queue)
    return plan(to, origin, size, on.device, stages=on.waits_for_values)


def _ends(dst: object, src: object, nbytes: int | None, queue: object) -> tuple[End, End, int, Queue]:
    given = _queue(queue)
    to, origin = end_of(dst, _device(given)), end_of(src, _device(given))
    _refuse_read_only(to)
    size = _size(nbytes, to.size, origin.size)
    if nbytes is None and to.size is not None and origin.size is not None and to.size != origin.size:
        raise InvalidRangeError(f"dst has {to.size} bytes and src {origin.size}; give nbytes to copy a part")
    return to, origin, size, given or default_queue(to.device or origin.device or _default())


def _by_host(chosen: Plan, owners: tuple[object, ...], queue: Queue, wait_for: Iterable[Event]) -> Copy:
    """Between two ends on the host: CUDA would do it at once, when the queue's earlier work is over, and block."""
    (step,) = chosen.steps
    held: list[object] = []

    def work(vendor_queue: VendorQueue) -> None:
        staging = staging_of(queue.device)
        held.append(staging.copy_in_host(vendor_queue, step.dst, step.src, step.size, costs))

    copy = queue.submit(work, wait_for, (*owners, held), Copy)
    copy.path, copy.reason = chosen.path, chosen.reason
    return copy


def _size(nbytes: int | None, *sizes: int | None) -> int:
    known = [size for size in sizes if size is not None]
    if nbytes is None:
        if not known:
            raise InvalidRangeError("an address does not say how many bytes to copy: give nbytes")
        return known[0]
    if nbytes <= 0 or any(nbytes > size for size in known):
        raise InvalidRangeError(f"nbytes is {nbytes}; it must lie between 1 and {min(known, default='the size')}")
    return nbytes


def _refuse_read_only(to: End) -> None:
    if to.read_only:
        raise InvalidRangeError(f"dst at {to.ptr:#x} is read only; copy into writable memory")


def _queue(queue: object) -> Queue | None:
    if queue is None or isinstance(queue, Queue):
        return queue
    return Queue.adopt(queue)


def _device(queue: Queue | None) -> MemoryDevice | None:
    return None if queue is None else queue.device


def _default() -> MemoryDevice:
    device = default_device()
    if not isinstance(device, MemoryDevice):
        raise PinningError(f"{device.name} has no queues to copy in; name a queue of another device")
    return device

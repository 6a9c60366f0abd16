# SPDX-License-Identifier: Apache-2.0
"""Copies that are more than one vendor call, and copies of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from pinning.copies.bounce import bounce
from pinning.copies.costs import costs
from pinning.copies.ends import End, end_of
from pinning.copies.plan import CopyPath, Plan, Reason
from pinning.copies.repeats import lock_if_repeated
from pinning.copies.work import Copy, RangeCopy, count_moved, submit_native, submit_rows
from pinning.errors import InvalidRangeError, VendorError
from pinning.locking.devices import pinned_map
from pinning.plugin import LockLimit, MemoryDevice, VendorQueue
from pinning.queues import Event, Queue, as_queue, default_queue
from pinning.queues.staging import staging_of
from pinning.queues.submitter import events_of
from pinning.runtime.arguments import integer
from pinning.runtime.units import exact_size

_TRIES = 100  # attempts, if another thread locks or unlocks each time; the error of the last one is raised


def copy_planned(
    to: End,
    origin: End,
    size: int,
    queue: Queue,
    wait_for: Iterable[Event],
    early: bool,
    in_turn: bool,
    buffer: object,
) -> Copy:
    """Submit a copy that is more than one vendor call.

    Parameters
    ----------
    early : bool
        Whether the source may be read before the copy's turn.
    in_turn : bool
        Whether it must not, because pending work may write it.
    buffer : object
        The buffer of the host's end, which may be locked if it is copied often.
    """
    host = to if to.device is None else origin
    attempt = partial(_copy_planned, to, origin, size, queue, wait_for, early, in_turn, buffer)
    return resubmitted(attempt, queue.device, lambda: (host.ptr, size))


def resubmitted(attempt: Callable[[], Copy], device: MemoryDevice, span: Callable[[], tuple[int, int]]) -> Copy:
    """Plan and submit a copy by `attempt`; again, if the vendor refuses it and what is locked has changed meanwhile.

    Another thread may have locked a part of what was planned as pageable, and no vendor copies across its border.

    Parameters
    ----------
    span : callable
        Returns the start and the size of a range that contains the host's memory.
    """
    device_map = pinned_map(device)
    for _ in range(_TRIES - 1):
        changes = device_map._changes()
        try:
            return attempt()
        except VendorError:
            if not device_map._changed_since(changes, *span()):
                raise
    return attempt()


def _copy_planned(
    to: End,
    origin: End,
    size: int,
    queue: Queue,
    wait_for: Iterable[Event],
    early: bool,
    in_turn: bool,
    buffer: object,
) -> Copy:
    work = plan_copy(to, origin, size, queue, early, in_turn)
    plan = work.plan()
    if plan.to_device is not None and plan.path in (CopyPath.STAGED, CopyPath.PLAIN):
        host = origin.ptr if plan.to_device else to.ptr
        if lock_if_repeated(buffer, host, size, queue.device):
            work = plan_copy(to, origin, size, queue, early, in_turn)
            plan = work.plan().as_locked()
    if plan.reason_code is Reason.NOT_CONNECTED:
        assert to.device is not None
        assert origin.device is not None
        queue.check_uncaptured("a copy through the host is made once")
        copy = bounce(plan.steps[0], to.device, origin.device, queue, wait_for, (to.owner, origin.owner), Copy)
        count_moved(CopyPath.STAGED, size)
    else:
        copy = submit_native(queue, work, wait_for)
    copy.path, copy.reason = plan.path, plan.reason
    if work.reason_code is Reason.NO_ROOM:
        copy.path = work.path
        refusal = staging_refusal(queue.device)
        in_use = f"all {costs.staging_bytes} bytes for staging are in use, or the vendor refused them"
        copy.reason += f", but {refusal or in_use}"
    return copy


def explain_copy(to: End, origin: End, size: int, queue: Queue) -> Plan:
    """The plan that a copy would follow if it were submitted now."""
    plan = plan_copy(to, origin, size, queue).plan()
    refusal = staging_refusal(queue.device) if plan.reason_code is Reason.LARGE else None
    return plan if refusal is None else plan.as_refused(refusal)


def staging_refusal(device: MemoryDevice) -> str | None:
    """The limit that leaves no room for a staging ring; None if there is a ring, or no such limit."""
    ask: Callable[[], LockLimit | None] | None = getattr(device, "lock_limit", None)
    limit = ask() if ask and staging_of(device).empty else None
    free = costs.ring_bytes if limit is None else limit.limit - limit.used
    if limit is None or free >= costs.ring_bytes:
        return None
    return (
        f"{limit.name} leaves {exact_size(max(free, 0))} to lock, and staging needs {exact_size(costs.ring_bytes)}; "
        f"to raise it: {limit.remedy}"
    )


def plan_copy(
    to: End, origin: End, size: int, queue: Queue, early: bool = False, in_turn: bool = False
) -> RangeCopy:
    """Plan a copy in a queue now, and hold the locks of what it copies directly; nothing is submitted."""
    return RangeCopy(to, origin, size, queue.device, queue.waits_for_values, early, in_turn)


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

    Parameters
    ----------
    dst, src : object
        As in `copy_async`.
    dst_pitch, src_pitch : int
        Bytes from the start of a row to that of the next; at least `width`.
    width, height : int
        Bytes of a row, and the number of rows.
    queue, wait_for
        As in `copy_async`.

    Raises
    ------
    InvalidRangeError
        A pitch is smaller than a row, or an end is too small; otherwise as `copy_async`.
    """
    width, height = integer(width, "width"), integer(height, "height", "the number of rows")
    dst_pitch, src_pitch = integer(dst_pitch, "dst_pitch"), integer(src_pitch, "src_pitch")
    for name, pitch in (("dst_pitch", dst_pitch), ("src_pitch", src_pitch)):
        if pitch < width:
            raise InvalidRangeError(f"{name} is {pitch}; rows of {width} bytes need at least that")
    if width <= 0 or height <= 0:
        raise InvalidRangeError(f"{height} rows of {width} bytes: nothing to copy")
    given = None if queue is None else as_queue(queue)
    preferred = None if given is None else given.device
    to, origin = end_of(dst, preferred), end_of(src, preferred)
    for name, end, pitch in (("dst", to, dst_pitch), ("src", origin, src_pitch)):
        spans = pitch * (height - 1) + width
        if end.size is not None and end.size < spans:
            raise InvalidRangeError(f"{name} has {end.size} bytes; {height} rows, {pitch} bytes apart, span {spans}")
        if end.ptr + spans > 1 << 64:
            raise InvalidRangeError(f"{spans} bytes at {end.ptr:#x}, {name}, run past the top of the address space")
    if to.read_only:
        raise InvalidRangeError(f"dst at {to.ptr:#x} is read-only; copy into writable memory")
    chosen = given or default_queue(to.device or origin.device)
    rows = _Rows(to, dst_pitch, origin, src_pitch, width, height)
    waits = events_of(wait_for)
    return resubmitted(lambda: _copy_rows(rows, chosen, waits), chosen.device, rows.host_span)


class _Rows(NamedTuple):
    """The rows that `copy_2d_async` copies."""

    to: End
    dst_pitch: int
    origin: End
    src_pitch: int
    width: int
    height: int

    @property
    def host_pitch(self) -> int:
        return self.src_pitch if self.to.device is not None else self.dst_pitch

    def host_span(self) -> tuple[int, int]:
        """The start and the size of the host's range."""
        host = self.origin if self.to.device is not None else self.to
        return host.ptr, self.host_pitch * (self.height - 1) + self.width


def _copy_rows(block: _Rows, queue: Queue, wait_for: tuple[Event, ...]) -> Copy:
    to, dst_pitch, origin, src_pitch, width, height = block
    host_pitch = block.host_pitch
    _, span = block.host_span()
    planned = RangeCopy(to, origin, span, queue.device, stages=False)
    plan = planned.plan()
    borders = [step.dst - to.ptr for step in plan.steps[1:]]

    def work(vendor_queue: VendorQueue) -> None:
        submitted = False
        try:
            for row, rows, column, count in _blocks(borders, host_pitch, width, height):
                at, start = to.ptr + row * dst_pitch + column, origin.ptr + row * src_pitch + column
                if rows == 1:
                    vendor_queue.copy(at, start, count)
                else:
                    vendor_queue.copy_2d(at, dst_pitch, start, src_pitch, count, rows)
                submitted = True
        except BaseException:
            if submitted:
                with suppress(BaseException):  # the first error says more
                    vendor_queue.synchronize()
            raise

    span = dst_pitch * (height - 1) + width
    copy = submit_rows(queue, work, to.ptr, span, wait_for, (planned, to.owner, origin.owner), plan.is_direct)
    count_moved(plan.path, width * height)
    copy.path, copy.reason = plan.path, plan.reason
    return copy


def _blocks(borders: list[int], pitch: int, width: int, height: int) -> Iterator[tuple[int, int, int, int]]:
    """Blocks that cross no border: the first row, the number of rows, the first column, and the bytes of each row.

    Borders are those of locks, as offsets in the host's memory.
    """
    cut: dict[int, list[int]] = {}
    starts = {0, height}
    for border in borders:
        row, column = divmod(border, pitch)
        if 0 < column < width:
            cut.setdefault(row, []).append(column)
            starts |= {row, row + 1}
        else:
            starts.add(row + (column > 0))
    for first, end in pairwise(sorted(starts)):
        for column, next_column in pairwise([0, *cut.get(first, ()), width]):
            yield first, end - first, column, next_column - column

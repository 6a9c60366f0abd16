# SPDX-License-Identifier: Apache-2.0
"""Copies of rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pinning.copies.batch import copy_rows_in_turn
from pinning.copies.copy import check_addresses, resubmitted
from pinning.copies.ends import End, end_of
from pinning.copies.work import Copy, RowsCopy, submit_native
from pinning.errors import InvalidRangeError
from pinning.locking.devices import is_host
from pinning.locking.lock import Lock
from pinning.queues import Event, Queue, as_queue, default_queue
from pinning.queues.submitter import events_of
from pinning.runtime.arguments import integer
from pinning.runtime.buffers import Buffer


def copy_2d_async(
    dst: Buffer | Lock,
    dst_pitch: int,
    src: Buffer | Lock,
    src_pitch: int,
    width: int,
    height: int,
    queue: Queue | object | None = None,
    wait_for: Iterable[Event] = (),
) -> Copy:
    """Copy `height` rows of `width` bytes, whose starts are `dst_pitch` and `src_pitch` bytes apart, in a queue.

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
    ArgumentError
        An end is memory of a device of another vendor than the queue's.
    """
    width, height = integer(width, "width"), integer(height, "height", "the number of rows")
    dst_pitch, src_pitch = integer(dst_pitch, "dst_pitch"), integer(src_pitch, "src_pitch")
    if width <= 0 or height <= 0:
        raise InvalidRangeError(f"width is {width} and height {height}; both must be at least 1")
    for name, pitch in (("dst_pitch", dst_pitch), ("src_pitch", src_pitch)):
        if pitch < width:
            raise InvalidRangeError(f"{name} is {pitch}; it must be at least the width of a row, {width} bytes")
    given = None if queue is None else as_queue(queue)
    preferred = None if given is None else given.device
    to, origin = end_of(dst, preferred), end_of(src, preferred)
    ends = []
    for name, end, pitch in (("dst", to, dst_pitch), ("src", origin, src_pitch)):
        spans = pitch * (height - 1) + width
        if end.size is not None and end.size < spans:
            raise InvalidRangeError(f"{name} has {end.size} bytes; {height} rows, {pitch} bytes apart, span {spans}")
        if end.ptr + spans > 1 << 64:
            raise InvalidRangeError(f"{spans} bytes at {end.ptr:#x}, {name}, run past the top of the address space")
        end.check_room(spans)
        ends.append((end, spans))
    if to.read_only:
        raise InvalidRangeError(f"dst at {to.ptr:#x} is read-only; copy into writable memory")
    check_addresses(*ends)
    of_devices = [end.device for end in (to, origin) if end.device is not None]
    chosen = given or default_queue(min(of_devices, key=is_host, default=None))
    for end in (to, origin):
        end.check_reach(chosen)
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

    def host_span(self) -> tuple[int, int]:
        """The start and the size of the host's range."""
        host, pitch = (self.origin, self.src_pitch) if self.to.device is not None else (self.to, self.dst_pitch)
        return host.ptr, pitch * (self.height - 1) + self.width


def _copy_rows(rows: _Rows, queue: Queue, wait_for: tuple[Event, ...]) -> Copy:
    work = RowsCopy(*rows, queue.device)
    plan = work.plan()
    if rows.origin.device is None and not plan.is_direct:
        copy = copy_rows_in_turn(*rows, queue, wait_for)
        if copy is not None:
            return copy
    copy = submit_native(queue, work, wait_for)
    copy.path, copy.reason = plan.path, plan.reason
    return copy

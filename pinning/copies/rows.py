# SPDX-License-Identifier: Apache-2.0
"""Copies of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from pinning.copies.batch import copy_rows_in_turn
from pinning.copies.copy import resubmitted
from pinning.copies.ends import End, end_of
from pinning.copies.work import Copy, RangeCopy, count_moved, submit_rows
from pinning.errors import InvalidRangeError
from pinning.plugin import VendorQueue
from pinning.queues import Event, Queue, as_queue, default_queue
from pinning.queues.submitter import events_of
from pinning.runtime.arguments import integer


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
    if to.device is not None and origin.device is None and not plan.is_direct:
        copy = copy_rows_in_turn(*block, queue, wait_for)
        if copy is not None:
            return copy
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

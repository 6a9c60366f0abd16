# SPDX-License-Identifier: Apache-2.0
"""Copies between arrays of any strides, in as few vendor copies as possible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy

from pinning.arrays.layout import Array, address_of
from pinning.copies import Copy, copy_2d_async, copy_async
from pinning.copies.ends import End
from pinning.errors import LayoutError
from pinning.plugin import MemoryDevice
from pinning.queues import Event, Queue

_LARGEST_PITCH = 1 << 31  # bytes between two rows, from which on CUDA refuses a 2-D copy


class Side(NamedTuple):
    """One side of a copy: an array or a layout, the device of its memory (None: the host), and what keeps it alive."""

    array: Array
    device: MemoryDevice | None
    owner: object

    def end(self, offset: int, size: int | None) -> Any:
        """The part of it that begins `offset` bytes after its first element."""
        return End(address_of(self.array) + offset, size, self.device, False, self.owner)

    def whole(self, offset: int) -> Any:
        """All of it. An array of the host as it is, so that the copy engine recognizes it the next time."""
        return self.array if self.owner is self.array else self.end(offset, self.array.nbytes)


class Rows(NamedTuple):
    """`height` rows of `width` bytes: their offset on each side, and the distance between rows there."""

    to: int
    origin: int
    width: int
    height: int
    to_pitch: int
    origin_pitch: int


class _Axis(NamedTuple):
    length: int
    to: int
    origin: int


def move(to: Side, origin: Side, queue: Queue, wait_for: Iterable[Event] = ()) -> list[Copy]:
    """Copy between arrays of one shape and itemsize. LayoutError if elements of the destination share memory."""
    if not to.array.nbytes:
        return []
    before = tuple(wait_for)
    copies = []
    for rows in rows_between(to.array, origin.array):
        size = rows.width * rows.height
        if size == to.array.nbytes and rows.height == 1:
            copies.append(copy_async(to.whole(rows.to), origin.whole(rows.origin), queue=queue, wait_for=before))
        elif rows.height == 1:
            dst, src = to.end(rows.to, size), origin.end(rows.origin, size)
            copies.append(copy_async(dst, src, queue=queue, wait_for=before))
        else:
            dst, src = to.end(rows.to, None), origin.end(rows.origin, None)
            copies.append(
                copy_2d_async(dst, rows.to_pitch, src, rows.origin_pitch, rows.width, rows.height, queue, before)
            )
    return copies


def rows_between(to: Array, origin: Array) -> Iterator[Rows]:
    """The copies of rows that make up a copy between two arrays of the same shape and itemsize, neither empty."""
    width = to.itemsize
    axes, to_start, origin_start = _axes(to, origin)
    _refuse_shared_elements(axes, to)
    if axes and axes[-1].to == axes[-1].origin == width:
        width *= axes.pop().length
    rows = max((axis for axis in axes if _can_be_rows(axis, width)), default=_Axis(1, width, width))
    if rows in axes:
        axes.remove(rows)
    for index in numpy.ndindex(*(axis.length for axis in axes)):
        at = to_start + sum(i * axis.to for i, axis in zip(index, axes, strict=True))
        source = origin_start + sum(i * axis.origin for i, axis in zip(index, axes, strict=True))
        yield Rows(at, source, width, rows.length, rows.to, rows.origin)


def _axes(to: Array, origin: Array) -> tuple[list[_Axis], int, int]:
    """The dimensions in the order of the destination's memory, the outermost first, and joined where possible.

    Also the offset of their start on each side: dimensions with negative strides in the destination are reversed.
    """
    axes: list[_Axis] = []
    to_start = origin_start = 0
    for length, step, source in zip(to.shape, to.strides, origin.strides, strict=True):
        if length == 1:
            continue
        if step < 0:
            to_start += (length - 1) * step
            origin_start += (length - 1) * source
            step, source = -step, -source
        axes.append(_Axis(length, step, source))
    axes.sort(key=lambda axis: (axis.to, abs(axis.origin)), reverse=True)
    joined: list[_Axis] = []
    for axis in axes:
        outer = joined[-1] if joined else None
        if outer and outer.to == axis.to * axis.length and outer.origin == axis.origin * axis.length:
            joined[-1] = _Axis(outer.length * axis.length, axis.to, axis.origin)
        else:
            joined.append(axis)
    return joined, to_start, origin_start


def _refuse_shared_elements(axes: list[_Axis], to: Array) -> None:
    left, width = list(axes), to.itemsize
    if left and left[-1].to == width:
        width *= left.pop().length
    while left and left[0].to >= width + sum((axis.length - 1) * axis.to for axis in left[1:]):
        left.pop(0)  # each step of the outermost exceeds the extent of those within it
    starts = numpy.zeros(1, numpy.int64)
    for axis in left:
        starts = numpy.add.outer(starts, numpy.arange(axis.length) * axis.to).ravel()
    starts.sort()
    if (numpy.diff(starts) < width).any():
        raise LayoutError(
            f"elements of an array with shape {to.shape} and strides {to.strides} share memory: it cannot be written"
        )


def _can_be_rows(axis: _Axis, width: int) -> bool:
    return width <= axis.to < _LARGEST_PITCH and width <= axis.origin < _LARGEST_PITCH

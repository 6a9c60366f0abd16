# SPDX-License-Identifier: Apache-2.0
"""Copies of an array on a device to the host, from the host, and from another device."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy

from pinning.arrays.buffer import run
from pinning.arrays.layout import Array, address_of, check_order, compact_strides, plan_like
from pinning.arrays.move import Side, move
from pinning.arrays.streams import Stream, queue_of
from pinning.arrays.view import View, new_view
from pinning.copies import fill_async
from pinning.copies.ends import End
from pinning.errors import LayoutError
from pinning.queues import Event, Queue


def fetch(array: View, ary: Array | None, stream: Stream) -> Array:
    """Copy to the host; see `DeviceArray.copy_to_host`."""
    forwards = _forwards(array._layout)
    layout = array._layout[forwards]
    if ary is not None:
        check_alike(ary, array._layout)
        if not ary.flags.writeable:
            raise LayoutError("ary is read-only; copy into a writable array")
    host = _directly(layout, ary, forwards)
    final = host[forwards] if ary is None else ary
    if not array.nbytes:
        return final

    def act(queue: Queue, wait_for: list[Event]) -> list[Event]:
        events: list[Event] = list(move(_of_host(host), _of(array, layout), queue, wait_for))
        if not numpy.may_share_memory(host, final):
            events.append(queue.call(partial(numpy.copyto, final, host[forwards]), events))
        return events

    run(act, array.device, stream, array._buffer)
    return final


def put(array: View, source: Array, stream: Stream) -> None:
    """Copy from an array of the host that has the same shape and dtype."""
    _check_writable(array)
    if not array.nbytes:
        return
    forwards = _forwards(array._layout)
    layout = array._layout[forwards]
    pattern = _pattern(source)
    if pattern and address_of(layout) % len(pattern) == 0 and _is_compact(layout):
        end: Any = End(address_of(layout), array.nbytes, array._buffer.place, False, array._buffer)
        run(lambda queue, before: [fill_async(end, pattern, None, queue, before)], array.device, stream, array._buffer)
        return
    host = _directly(layout, source, forwards)
    if not numpy.may_share_memory(host, source):
        host[forwards] = source
    run(partial(move, _of(array, layout), _of_host(host)), array.device, stream, array._buffer)


def take(array: View, origin: View, stream: Stream) -> None:
    """Copy from an array on a device that has the same shape and dtype."""
    check_alike(origin._layout, array._layout)
    _check_writable(array)
    if origin.device is not array.device:
        if not (_same_places(origin._layout, array.strides) and _is_compact(array._layout)):
            put(array, fetch(origin, None, None), stream)  # rows cannot be copied from one vendor's device to another's
            return
    elif array.size and numpy.may_share_memory(array._layout, origin._layout):
        origin = copied(origin, "K", stream)
    buffers = (array._buffer, origin._buffer)
    run(partial(move, _of(array, array._layout), _of(origin, origin._layout)), array.device, stream, *buffers)


def copied(array: View, order: str, stream: Stream) -> View:
    """A copy on the same device; see `DeviceArray.copy`."""
    check_order(order, "K")
    plan = plan_like(array._layout)
    if order != "K":
        plan = plan._replace(strides=None, order=order)
    view = new_view(plan, array.device, None if stream is None else queue_of(stream, array.device))
    take(view, array, stream)
    return view


def check_alike(array: Array, wanted: Array) -> None:
    """Refuse an array of another shape or dtype."""
    if not isinstance(array, numpy.ndarray):
        raise TypeError(f"ary is a {type(array).__name__}; give a NumPy array, such as numpy.empty({wanted.shape})")
    if array.shape != wanted.shape:
        raise LayoutError(f"the array has shape {array.shape} and this one {wanted.shape}: reshape it, or take a part")
    if array.dtype != wanted.dtype:
        raise LayoutError(f"the array has dtype {array.dtype} and this one {wanted.dtype}: convert it with astype")


def _check_writable(array: View) -> None:
    if array.read_only:
        raise LayoutError(f"{array!r} is read-only; copy it first")


def _of(array: View, layout: Array) -> Side:
    return Side(layout, array._buffer.place, array._buffer)


def _of_host(array: Array) -> Side:
    return Side(array, None, array)


def _forwards(array: Array) -> tuple[Any, ...]:
    """The index that reverses the dimensions with negative strides; applied twice, it changes nothing."""
    return (*(slice(None, None, -1 if step < 0 else 1) for step in array.strides), ...)


def _turned(array: Array, forwards: tuple[Any, ...]) -> Array:
    """The array with these dimensions reversed; itself if there are none, because copies recognize it again."""
    return array[forwards] if any(index is not ... and index.step == -1 for index in forwards) else array


def _directly(layout: Array, array: Array | None, forwards: tuple[Any, ...]) -> Array:
    """The host's side of a copy, with dimensions reversed as in `layout`: `array` if it suits, else a new one."""
    if array is not None:
        turned = _turned(array, forwards)
        # Of several parts, the copy of one could overwrite what another has yet to read.
        torn = numpy.may_share_memory(array, layout) and not _is_compact(layout)
        if _same_places(turned, compact_strides(layout)) and not torn:
            return turned
    return numpy.empty_like(layout, order="K", subok=False)


def _is_compact(array: Array) -> bool:
    """Whether the elements are contiguous, in any order of dimensions, without negative strides."""
    return _same_places(array, compact_strides(array))


def _same_places(array: Array, strides: tuple[int, ...]) -> bool:
    """Whether the elements are at the same offsets as those of an array of this shape with these strides."""
    steps = zip(array.shape, array.strides, strides, strict=True)
    return all(length == 1 or step == wanted for length, step, wanted in steps)


def _pattern(array: Array) -> bytes:
    """The 1, 2 or 4 bytes whose repetition is the whole array, if that repeats one element; otherwise empty."""
    if not array.ndim or any(step for length, step in zip(array.shape, array.strides, strict=True) if length > 1):
        return b""
    first: tuple[Any, ...] = (*(0,) * array.ndim, ...)
    element: bytes = array[first].tobytes()  # of an array: a scalar's bytes would be in this machine's order
    for size in (1, 2, 4):
        if len(element) % size == 0 and element == element[:size] * (len(element) // size):
            return element[:size]
    return b""

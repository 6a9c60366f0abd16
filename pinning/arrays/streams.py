# SPDX-License-Identifier: Apache-2.0
"""Queues, with CUDA's names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pinning.errors import ArgumentError, PinningError
from pinning.plugin import Device, MemoryDevice
from pinning.queues import Queue, as_queue, default_queue

Stream = Any  # a `Queue`, an object with ``__cuda_stream__``, or None


def stream(device: Device | str | None = None) -> Queue:
    """A new in-order queue of a device; close it, or drop it, which does not wait."""
    return Queue(device)


def default_stream(device: Device | str | None = None) -> Queue:
    """The queue of a device that is used if none is given."""
    return default_queue(device)


def external_stream(handle: int, device: Device | str | None = None) -> Queue:
    """A queue over a stream that another library made and keeps alive, by its handle, such as a ``cudaStream_t``."""
    return Queue.adopt(handle, device)


@contextmanager
def auto_synchronize(stream: Stream) -> Iterator[Queue]:
    """Wait for all work of a stream at the end of a ``with`` block."""
    queue = _as_queue(stream)
    try:
        yield queue
    finally:
        queue.synchronize()


def device_of(device: Device | str | None, stream: Stream) -> MemoryDevice:
    """The device meant: the one named, or else that of the stream, or else the default one."""
    if device is None and isinstance(stream, Queue):
        return stream.device
    return default_queue(device).device


def queue_of(stream: Stream, device: MemoryDevice) -> Queue:
    """A stream that is not None, as a queue of this device."""
    queue = _as_queue(stream, device)
    if queue.device is not device:
        raise PinningError(
            f"{queue!r} is not a stream of {device.name}, where the array is: give a stream of that device"
        )
    return queue


def _as_queue(stream: Stream, device: MemoryDevice | None = None) -> Queue:
    if isinstance(stream, int) and stream == 0:  # numba waits then; a vendor's stream 0 would not
        raise ArgumentError(
            f"stream is {stream}; omit the argument where numba takes stream=0. The vendor's default stream is "
            "external_stream(0)"
        )
    return as_queue(stream, device)

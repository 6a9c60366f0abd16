# SPDX-License-Identifier: Apache-2.0
"""Copies and fills."""

from collections.abc import Iterable
from typing import Literal, SupportsIndex

from pinning.copies.plan import Plan
from pinning.copies.work import Copy
from pinning.queues import Event, Queue

def copy_async(
    dst: object,
    src: object,
    nbytes: int | None = None,
    queue: Queue | object | None = None,
    wait_for: Iterable[Event] = (),
    *,
    src_access_order: Literal["stream", "any"] = "stream",
) -> Copy:
    """Copy bytes, in a queue; return once the copy is submitted.

    The memory of both ends is kept alive until it is done. Later work in the queue sees the data. A copy on the path
    ``"plain"`` blocks the caller while the vendor reads or writes pageable memory.

    Parameters
    ----------
    dst, src : object
        Each an `Allocation`, a `Lock` that is held, anything that `pinning.lock` takes and whose bytes are contiguous,
        an object with ``__cuda_array_interface__`` or DLPack's C exchange API, such as a torch tensor, or an address of
        host or device memory (with `nbytes`).
    nbytes : int, optional
        How many; by default all, and then both ends must have the same size.
    queue : Queue or object with ``__cuda_stream__``, optional
        By default the default queue of the device whose memory is an end.
    wait_for : iterable of Event, optional
        What must be over before.
    src_access_order : {"stream", "any"}
        When the source may be read, as CUDA has it. ``"stream"``: not before the copy's turn. ``"any"``: at once, for
        nothing before the copy writes it, or who does is not waited for; that lets copies of pageable memory in a row
        overlap. Where the queue's pending work cannot write the source, they overlap anyhow.

    Raises
    ------
    TypeError
        An end is no buffer.
    InvalidRangeError
        The sizes differ, an end is too small, is read only, or its bytes are scattered.
    VendorError
        The vendor refused. What fails later reaches the `Copy`.
    """

def copy(dst: object, src: object, nbytes: int | None = None, queue: Queue | object | None = None) -> Copy:
    """`copy_async`, and wait until it is done."""

def fill(
    dst: object,
    value: SupportsIndex | bytes,
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
        A byte, as an integer between 0 and 255, NumPy's too; or 1, 2 or 4 bytes that are repeated.
    nbytes : int, optional
        A multiple of the value's length; all of `dst` by default.

    Raises
    ------
    InvalidRangeError
        The value is no byte, has another length, or does not fit a whole number of times.
    TypeError
        It is a float.
    """

def explain(dst: object, src: object, nbytes: int | None = None, queue: Queue | object | None = None) -> Plan:
    """Which path `copy_async` would take now, and why; nothing is copied. Raises what `copy_async` does."""

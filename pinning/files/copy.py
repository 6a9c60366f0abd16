# SPDX-License-Identifier: Apache-2.0
"""Copies of a file's bytes into memory of a device or the host."""

from __future__ import annotations

from collections.abc import Iterable

from pinning.copies.ends import end_of
from pinning.errors import InvalidRangeError
from pinning.files.file_work import FileCopy, OpenFile, copy_parts
from pinning.files.shards import AnyPath
from pinning.locking.devices import is_host as is_device_of_host
from pinning.plugin import Device
from pinning.queues import Event, Queue, as_queue, default_queue
from pinning.runtime.arguments import byte_count, integer


def copy_file_async(
    dst: object,
    path: AnyPath,
    offset: int = 0,
    nbytes: int | None = None,
    queue: Queue | object | None = None,
    wait_for: Iterable[Event] = (),
) -> FileCopy:
    """Copy bytes of a file into memory of a device or the host, while the caller goes on.

    Threads read the file straight into pinned blocks, from where the device copies: nothing is mapped, and nothing is
    copied twice. What is not in the page cache is read past it, where the disk allows that.

    Parameters
    ----------
    dst : buffer
        Any end that `copy_async` takes.
    path : path-like
        A regular file. It is opened at once, and stays open until the copy is over; to rename another over it changes
        nothing. It may be read before the copy's turn, where nothing that is pending in the queue could write it.
    offset : int
        The first byte to read.
    nbytes : int, optional
        How many; by default all from `offset` on, which must then be as many as `dst` has.
    queue : Queue or object with ``__cuda_stream__``, optional
        By default the default queue of the device of `dst`.
    wait_for : iterable of Event
        What must be over before; the file is not read before that.

    Returns
    -------
    FileCopy
        An event. If the file cannot be read, or is truncated meanwhile, it fails with a `FileError`; `dst` is anything
        then, and the queue goes on.

    Raises
    ------
    OSError
        The file cannot be opened.
    FileError
        It is a folder, a pipe or a device.
    InvalidRangeError
        It has not so many bytes, or `dst` has not, or `dst` is read only.
    """
    chosen = None if queue is None else as_queue(queue)
    end = end_of(dst, None if chosen is None else chosen.device)
    if end.read_only:
        raise InvalidRangeError(f"dst at {end.ptr:#x} is read only; copy into writable memory")
    with OpenFile(path) as file:
        size = _size(file, offset, nbytes, end.size)
        file.look_for_cold(offset, size)
        return copy_parts(
            chosen or default_queue(end.device),
            file,
            [(end.ptr, offset, size)],
            in_device=not is_host(end.device),
            wait_for=wait_for,
            keep=(end.owner,),
        )


def copy_file(
    dst: object,
    path: AnyPath,
    offset: int = 0,
    nbytes: int | None = None,
    queue: Queue | object | None = None,
) -> FileCopy:
    """`copy_file_async`, and wait until the bytes are there. Raises what that does, and what its event fails with.

    Parameters
    ----------
    dst, path, offset, nbytes, queue
        As for `copy_file_async`.

    Returns
    -------
    FileCopy
        It is over.
    """
    copy = copy_file_async(dst, path, offset, nbytes, queue)
    try:
        copy.wait()
    except BaseException:
        copy.cancel()  # Ctrl-C
        raise
    return copy


def is_host(device: Device | None) -> bool:
    """Whether what this device allocates is memory of the host, so that threads can read a file straight into it."""
    return device is None or is_device_of_host(device)


def _size(file: OpenFile, offset: int, nbytes: int | None, room: int | None) -> int:
    offset = integer(offset, "offset")
    rest = file.nbytes - offset
    if offset < 0 or rest <= 0:
        raise InvalidRangeError(
            f"offset is {offset}; {file.path!r} has {file.nbytes} bytes, and it must be that of one of them"
        )
    if nbytes is not None:
        return byte_count(nbytes, most=rest if room is None else min(rest, room))
    if room is not None and room != rest:
        raise InvalidRangeError(
            f"dst has {room} bytes, and {file.path!r} from byte {offset} on {rest}; give nbytes to copy a part"
        )
    return rest

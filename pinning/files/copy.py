# SPDX-License-Identifier: Apache-2.0
"""Copies of a file's bytes into memory of a device or the host."""

from __future__ import annotations

from collections.abc import Iterable

from pinning.copies.ends import end_of
from pinning.copies.links import DIVIDED_FROM, Rounds, divided, ways_of
from pinning.errors import InvalidRangeError
from pinning.files.divided import FileParts
from pinning.files.file_work import FileCopy, OpenFile, copy_of, copy_parts, may_be_early
from pinning.files.order import wait_for_saves
from pinning.files.shards import AnyPath
from pinning.locking.devices import is_host as is_device_of_host
from pinning.locking.lock import Lock
from pinning.plugin import Device
from pinning.queues import Event, Queue, as_queue, default_queue
from pinning.queues.submitter import events_of
from pinning.runtime.arguments import byte_count, integer, path_name
from pinning.runtime.buffers import Buffer


def copy_file_async(
    dst: Buffer | Lock,
    path: AnyPath,
    offset: int = 0,
    nbytes: int | None = None,
    queue: Queue | object | None = None,
    wait_for: Iterable[Event] = (),
) -> FileCopy:
    """Copy bytes of a file into memory of a device or the host, while the caller continues.

    Threads read the file directly into pinned blocks, from where the device copies: nothing is mapped, and nothing is
    copied twice. Data that is not in the page cache is read with O_DIRECT, if the file system allows that.

    Parameters
    ----------
    dst : buffer
        Any end that `copy_async` takes.
    path : path-like
        A regular file. It is opened immediately, or after saves of it that are in the background, and stays open until
        the copy is complete; renaming another file over it has no effect. It may be read early, if nothing pending in
        the queue could write it.
    offset : int
        The first byte to read.
    nbytes : int, optional
        How many; by default all from `offset` on, which must then be as many as `dst` has.
    queue : Queue or object with ``__cuda_stream__``, optional
        By default the default queue of the device of `dst`.
    wait_for : iterable of Event
        Events that must complete first; the file is not read before that.

    Returns
    -------
    FileCopy
        An event. If the file cannot be read, or is truncated, it fails with a `FileError`; the contents of `dst` are
        then undefined, and the queue continues.

    Raises
    ------
    OSError
        The file cannot be opened.
    FileError
        It is a folder, a pipe or a device.
    InvalidRangeError
        The file or `dst` has fewer bytes, or `dst` is read-only.
    ArgumentError
        `dst` is memory of a device of another vendor than the queue's.
    """
    return _copied(dst, path, offset, nbytes, queue, events_of(wait_for), False)


def copy_file(
    dst: Buffer | Lock,
    path: AnyPath,
    offset: int = 0,
    nbytes: int | None = None,
    queue: Queue | object | None = None,
) -> FileCopy:
    """`copy_file_async`, and wait for the copy. Raises the errors of that call, and that of its event.

    All bytes are then in `dst`, for work of any stream, thread or device.

    Parameters
    ----------
    dst, path, offset, nbytes, queue
        As for `copy_file_async`.

    Returns
    -------
    FileCopy
        The completed copy.

    Examples
    --------
    >>> saved = Path("numbers").write_bytes(bytes(range(100)))
    >>> numbers = numpy.empty(10, "u1")
    >>> copied = pinning.copy_file(numbers, "numbers", offset=50, nbytes=10)
    >>> numbers[0]
    np.uint8(50)
    """
    copy = _copied(dst, path, offset, nbytes, queue, (), True)
    try:
        copy.wait()
    except BaseException:
        copy.cancel()  # Ctrl-C
        raise
    return copy


def _copied(
    dst: Buffer | Lock,
    path: AnyPath,
    offset: int,
    nbytes: int | None,
    queue: Queue | object | None,
    wait_for: tuple[Event, ...],
    waited: bool,
) -> FileCopy:
    """As `copy_file_async`; `waited`: the caller waits for it, so it may be submitted part by part."""
    given = None if queue is None else as_queue(queue)
    end = end_of(dst, None if given is None else given.device)
    if end.read_only:
        raise InvalidRangeError(f"dst at {end.ptr:#x} is read-only; copy into writable memory")
    if given is not None:
        end.check_reach(given)
    wait_for_saves(path_name(path))
    with OpenFile(path) as file:
        size = _size(file, offset, nbytes, end.size)
        end.check_room(size)
        file.look_for_cold(offset, size)
        chosen, in_device = given or default_queue(end.device), not is_host(end.device)
        parts = [(end.ptr, offset, size)]
        ways = ways_of(chosen) if in_device and size >= DIVIDED_FROM else ()
        if not ways:
            return copy_parts(chosen, file, parts, in_device=in_device, wait_for=wait_for, keep=(end.owner,))
        whole = FileParts(file, parts, (end.owner,), may_be_early(chosen, wait_for), copy_of(file))
        if not waited:
            return divided(whole, size, chosen, wait_for, ways) or whole.submit_all(chosen, wait_for)
        rounds = Rounds(chosen)
        try:
            rounds.add(whole.part, size)
            rounds.finish()
        except BaseException:
            whole.of.cancel()  # Ctrl-C
            raise
        copy = chosen.submit(None, (), (), whole.make_event)
        rounds.describe(copy)
        return copy


def is_host(device: Device | None) -> bool:
    """Whether this device allocates memory of the host, so that threads can read a file directly into it."""
    return device is None or is_device_of_host(device)


def _size(file: OpenFile, offset: int, nbytes: int | None, room: int | None) -> int:
    offset = integer(offset, "offset")
    rest = file.nbytes - offset
    if file.nbytes == 0:
        raise InvalidRangeError(f"{file.path!r} is empty; there is nothing to copy")
    if offset < 0 or rest <= 0:
        raise InvalidRangeError(
            f"offset is {offset}; it must be at least 0 and below the {file.nbytes} bytes of {file.path!r}"
        )
    if nbytes is not None:
        return byte_count(nbytes, most=rest if room is None else min(rest, room))
    if room is not None and room != rest:
        raise InvalidRangeError(
            f"dst has {room} bytes, and {file.path!r} from byte {offset} on {rest}; give nbytes to copy a part"
        )
    return rest

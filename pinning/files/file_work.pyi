# SPDX-License-Identifier: Apache-2.0
"""Open files, and what copies from and to them put into queues."""

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from pinning.copies.work import Copy
from pinning.queues import Event, Queue

class OpenFile:
    """A regular file that copies read or write. It is closed when this is, and no copy uses it any more.

    Parameters
    ----------
    path : path-like
    create : bool
        Make a new file, and write it.

    Raises
    ------
    OSError
        It cannot be opened.
    FileError
        It is a folder, a pipe or a device.
    """

    def __init__(self, path: str | bytes | os.PathLike[str] | os.PathLike[bytes], create: bool = False) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def nbytes(self) -> int:
        """How long it is now."""

    def fileno(self) -> int: ...
    def look_for_cold(self, offset: int, nbytes: int) -> None:
        """From now on read past the page cache what of these bytes is not in it, if the disk allows that."""

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

class FileCopy(Copy):
    """A copy from or to a file under way: a `Copy` that fails with a `FileError` if the file cannot be read or written.

    The queue goes on as if the copy had worked; what it should have written is then anything. If the event is dropped,
    the error goes to `sys.unraisablehook`.
    """

    def cancel(self) -> None:
        """Move no more bytes of the file. It is over soon once its queue has come to it, and then it has failed."""

def copy_parts(
    queue: Queue,
    file: OpenFile,
    parts: Iterable[tuple[int, int, int]],
    *,
    in_device: bool,
    writes: bool = False,
    wait_for: Iterable[Event] = (),
    keep: Iterable[object] = (),
    early: bool | None = None,
) -> FileCopy:
    """Copy between parts of a file and parts of memory, as one piece of work.

    Parameters
    ----------
    parts : iterable of (int, int, int)
        Where to, where from, and how many bytes; the file's end of each is an offset in it, and these ascend.
    in_device : bool
        Whether the memory is the device's of the queue, and not the host's.
    writes : bool
        Whether the file is written.
    keep : iterable
        What keeps the memory alive.
    early : bool, optional
        Whether the file may be read before the copy's turn; by default where nothing that is pending could write it.

    Raises
    ------
    VendorError
        The vendor refused a step. What was submitted before it is done by then.
    """

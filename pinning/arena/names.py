# SPDX-License-Identifier: Apache-2.0
"""Named shared memory, and its removal after processes have died.

Each process that uses a segment holds a shared lock (flock) on its file, which the kernel releases when the process
ends for any reason. The name is removed by a process that finds no other lock: the last one that leaves or, if that was
killed, the next one that makes a segment.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from pinning.arena.memory import Segment
from pinning.errors import ArgumentError, InvalidRangeError, LockLimitError, PinningError
from pinning.machine.room import Room, check, file_system
from pinning.runtime.arguments import describe

FOLDER = Path("/dev/shm")
PREFIX = "pinning-arena."
_LONGEST = 200  # bytes; a file name may have 255


def path_of(name: str) -> Path:
    """The file of a name. Raises ArgumentError if no file can have the name."""
    if not isinstance(name, str):
        raise TypeError(f"name is {describe(name)}; it must be a string")
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        encoded = b""
    if not encoded or "/" in name or "\0" in name or len(encoded) > _LONGEST:
        raise ArgumentError(f"name is {describe(name)}; it must have 1 to {_LONGEST} bytes, without '/' and NUL")
    return FOLDER / (PREFIX + name)


def open_segment(name: str, nbytes: int, create: bool | None) -> Segment:
    """Make or join the segment of a name; see `Arena`."""
    path = path_of(name)
    try:
        while True:
            found = Segment.join(path)
            if found is None:
                if create is False:
                    raise PinningError(
                        f"there is no segment {name!r} ({path}): make it first, with create=None or True"
                    )
                remove_abandoned()
                check(nbytes, _room(path))
                made = Segment.make(FOLDER, path, nbytes)
                if made is not None:
                    try:
                        check(nbytes, _room(path))  # again: of two made at the same time, each sees the other now
                    except LockLimitError:
                        made.leave()
                        raise
                    return made
            elif found.abandoned and create is not False:
                found.leave()  # which removes it
            elif create:
                raise PinningError(f"there is a segment {name!r} of {found.size} bytes, which others use ({path})")
            elif found.size != nbytes:
                there = found.size
                found.forget()  # leaves it as it was
                raise InvalidRangeError(
                    f"nbytes is {nbytes}, but the segment {name!r} has {there} bytes: give that, or another name"
                )
            else:
                if found.abandoned:
                    found.take()
                return found
    except OSError as error:
        of_another = error.errno in (errno.EPERM, errno.EACCES) and path.exists()
        why = f"{path} belongs to another user: choose another name" if of_another else str(error)
        raise PinningError(f"shared memory {name!r} cannot be used: {why}") from error


def abandoned() -> list[tuple[str, int]]:
    """The segments of this user that killed processes left and no process uses: name, and bytes in memory."""
    found = []
    for path in sorted(FOLDER.glob(PREFIX + "?*")):
        with suppress(OSError):
            if path.stat().st_uid == os.geteuid() and _is_abandoned(path):
                found.append((path.name.removeprefix(PREFIX), path.stat().st_blocks * 512))
    return found


def remove_abandoned() -> None:
    """Remove the segments of this user that no process uses."""
    for path in FOLDER.glob(PREFIX + "?*"):
        with suppress(OSError):
            if path.stat().st_uid == os.geteuid():
                segment = Segment.join(path, wait=False)
                if segment is not None and segment.abandoned:
                    segment.leave()


def _is_abandoned(path: Path) -> bool:
    # Read-only, and without a `Segment`, whose end would remove the file.
    import fcntl

    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def _room(path: Path) -> Room:
    """The room for the segment at this path: the free bytes, less those that other segments have not touched yet."""
    promised = 0
    for each in FOLDER.glob(PREFIX + "?*"):
        with suppress(OSError):
            status = each.stat()
            promised += max(status.st_size - status.st_blocks * 512, 0) if each != path else 0
    room = file_system(FOLDER)
    name = f"{room.name}, with the {promised} bytes that other arenas will still need there," if promised else room.name
    return Room(name, room.limit, room.free - promised, f"{room.remedy}, or leave out the name")

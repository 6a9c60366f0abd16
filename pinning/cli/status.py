# SPDX-License-Identifier: Apache-2.0
"""What processes have locked, read from their status pages: see ``<pinning/status_page.hpp>``."""

from __future__ import annotations

import os
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_NAME = "/memfd:pinning-status"
_MAGIC, _VERSION = 0x0031_4E49_5049_4E50, 3
_HEAD = struct.Struct("=QIIQq4QQQQ5QQ")
_NO_LIMIT = 2**64 - 1
_SLOT = struct.Struct("=QQq23s?48s160s")
_SLOTS_AT = 256
_MOST_SLOTS = 4096
PATHS = ("direct", "staged", "plain", "small")


class NoStatusError(Exception):
    """A process has no readable status page; the message says why, and what would help."""


class Locked(NamedTuple):
    """A locked range."""

    device: str
    start: int  # address
    size: int  # bytes
    idle: bool  # a cached registration, with no lock
    registrations: int  # how many it consists of: pieces, or adjacent ranges
    since: float  # seconds since 1970
    owner: str  # the type of the locked object; empty if not given
    site: str  # where in the program it was locked; empty unless that runs with PINNING_LOCK_SITES=on


class Used(NamedTuple):
    """The budget of a process, in bytes."""

    limit: int | None  # how many may be locked; None: no limit
    used: int  # locked or being locked, on all devices and maps; idle ones included
    idle: int  # registered and not locked
    external: int  # pinned by other libraries, as far as maps know
    idle_limit: int | None  # how many may be idle; None: no separate limit


@dataclass(frozen=True)
class Status:
    """What one process has locked at an instant."""

    pid: int
    command: str
    time: float  # when it was read; seconds since 1970
    since: float  # when the process first locked something
    locked: int  # bytes that vendors have locked, on all devices; idle ones included
    budget: Used
    registrations: int  # how many were made so far, ended ones included
    unlisted: int  # how many of those held are missing in `ranges`
    moved: dict[str, int]  # bytes copied so far, by path: counted at submission; for files, when moved
    by_peers: int  # of these, the bytes that went over peers' links
    ranges: list[Locked]  # by device and address


def status_of(pid: int) -> Status:
    """What a process has locked, read from its status page; works for a hung process too.

    Raises
    ------
    NoStatusError
        There is no such process, it is another user's, or it has locked nothing yet.
    """
    page = _page_of(pid)
    if not any(page[: _HEAD.size]):  # the process is making it
        raise _nothing_locked(pid)
    unreadable = NoStatusError(f"process {pid} runs a version of pinning whose status page this one cannot read")
    try:
        magic, version, slots, _, since, *figures = _HEAD.unpack_from(page)
        if magic != _MAGIC or version != _VERSION:
            raise unreadable
        listed = page[_SLOTS_AT : _SLOTS_AT + slots * _SLOT.size]
        locks = [_locked(*fields) for fields in _SLOT.iter_unpack(listed) if fields[0]]
    except struct.error:  # any process may have a file of this name
        raise unreadable from None
    locked, registrations, unlisted, limit, used, idle, external, idle_limit, by_peers = figures[len(PATHS) :]
    return Status(
        pid,
        _command(pid),
        time.time(),
        since / 1e9,
        locked,
        Used(_limit(limit), used, idle, external, _limit(idle_limit)),
        registrations,
        unlisted,
        dict(zip(PATHS, figures[: len(PATHS)], strict=True)),
        by_peers,
        _joined(sorted(locks)),
    )


def all_status() -> list[Status]:
    """The status of each process with a readable page, by PID."""
    found = []
    for pid in sorted(int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()):
        with suppress(NoStatusError):
            found.append(status_of(pid))
    return found


def _descriptor(pid: int) -> Path:
    try:
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it has been closed meanwhile
                if str(each.readlink()).startswith(_NAME):
                    return each
    except (FileNotFoundError, ProcessLookupError):
        raise NoStatusError(f"there is no process {pid}") from None
    except PermissionError:
        raise _hidden(pid) from None
    raise _nothing_locked(pid)


def _page_of(pid: int) -> bytes:
    descriptor = _descriptor(pid)
    try:
        with descriptor.open("rb") as page:
            return page.read(_SLOTS_AT + _MOST_SLOTS * _SLOT.size)
    except FileNotFoundError:
        raise NoStatusError(f"process {pid} has ended") from None
    except PermissionError:
        raise _hidden(pid) from None


def _nothing_locked(pid: int) -> NoStatusError:
    return NoStatusError(
        f"process {pid} has locked nothing with pinning so far, has closed its descriptors, or runs with "
        "PINNING_STATUS=off"
    )


def _hidden(pid: int) -> NoStatusError:
    """Why the kernel does not show the descriptors of a process."""
    if os.geteuid() != 0:
        return NoStatusError(
            f"process {pid} belongs to another user, or is not dumpable: run this as that user, or as root"
        )
    return NoStatusError(
        f"the kernel does not show root the descriptors of process {pid}: this needs CAP_SYS_PTRACE "
        "(for a container: --cap-add SYS_PTRACE) in the process's user namespace, or a kernel policy forbids it"
    )


def _command(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").split()  # `python -c` has line breaks
        return b" ".join(words).decode(errors="replace")
    return ""


def _limit(figure: int) -> int | None:
    return None if figure == _NO_LIMIT else figure


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="replace")


def _locked(start: int, size: int, since: int, device: bytes, idle: bool, owner: bytes, site: bytes) -> Locked:
    return Locked(_text(device), start, size, idle, 1, since / 1e9, _text(owner), _text(site))


def _joined(ranges: list[Locked]) -> list[Locked]:
    """Join the pieces of each lock into one range."""

    joined: list[Locked] = []
    for each in ranges:
        if joined and _belongs(each, joined[-1]):
            last = joined[-1]
            joined[-1] = last._replace(size=last.size + each.size, registrations=last.registrations + 1)
        else:
            joined.append(each)
    return joined


def _belongs(piece: Locked, to: Locked) -> bool:
    same = (piece.device, piece.idle, piece.owner, piece.site) == (to.device, to.idle, to.owner, to.site)
    return same and piece.start == to.start + to.size

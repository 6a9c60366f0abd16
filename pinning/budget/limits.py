# SPDX-License-Identifier: Apache-2.0
"""How much this process may keep locked, and how much of it the registration cache may have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from numbers import Integral, Real
from typing import Any, NamedTuple

from pinning.budget import cache as _cache
from pinning.budget.checks import check_limit, check_memory
from pinning.errors import InvalidRangeError, LockLimitError
from pinning.machine.room import Room, cgroup_memory, system_memory
from pinning.plugin import Device
from pinning.runtime.arguments import byte_count

_IDLE = "the most bytes in the cache, or True or False"
before_refusal: list[Callable[[], object]] = []  # by packages above: called before a lock beyond the limit is refused
_BYTES_OR_FRACTION = "the number of bytes, or a fraction above 0.0 and up to 1.0 of the memory this process may use"


class Budget(NamedTuple):
    """What `budget` returns: bytes, over all devices.

    Attributes
    ----------
    limit : int or None
        The most that may be locked; None if no limit is known.
    used : int
        Locked, or being locked, by the maps of all devices, including idle regions. A range locked on two devices
        counts twice, unless the vendor locks memory for both at once.
    idle : int
        The part of `used` in the registration cache, without a lock; it is given back when room is needed.
    external : int
        Pinned by other libraries, as far as it is in the maps; it counts against the limit too.
    idle_limit : int or None
        The most that may be idle: 0 if nothing is kept, None without a limit.
    source : str
        What sets the limit.
    """

    limit: int | None
    used: int
    idle: int
    external: int
    idle_limit: int | None
    source: str

    @property
    def free(self) -> int | None:
        """Bytes that can still be locked if idle regions are given back; None without a limit."""
        return None if self.limit is None else max(self.limit - self.used + self.idle - self.external, 0)


def budget(limit: int | float | None = None, *, idle: bool | int | None = None) -> Budget:
    """Set or return the limit on the bytes that this process may keep locked, over all devices.

    A lock beyond it raises `LockLimitError` after all idle regions have been given back; copies of memory that cannot
    be locked are staged. Locks of native code in the process count too. Existing locks stay.

    Parameters
    ----------
    limit : int or float, optional
        Bytes, or a fraction above 0.0 and up to 1.0 of the memory that this process may use (the smallest limit of its
        control groups, or the memory of the machine). None leaves it unchanged. Initially 1.0.
    idle : bool or int, optional
        The registration cache: True switches it on, a number of bytes is its maximum, False switches it off; None
        leaves it unchanged. It is off initially. With it, unlocked buffers stay registered with the vendor (idle), so
        that the next lock of one, or of a part of it, makes no vendor call. Idle regions are given back, least recently
        used first, when a lock does not fit, when memory is short, by `give_back_idle`, and soon after their owner is
        dropped. Only whole NumPy arrays, bytes, bytearrays and mappings are kept; until they are given back they can be
        neither resized nor closed (BufferError).

    Returns
    -------
    Budget
        The current limit and use.

    Raises
    ------
    TypeError, InvalidRangeError
        An invalid limit or number of bytes.

    Examples
    --------
    >>> pinning.budget(1 << 30).limit
    1073741824
    """
    global _chosen
    most_idle: int | None = None
    chosen = None if limit is None else _choice(limit)
    if idle is not None:
        most_idle = (_cache.NO_LIMIT if idle else 0) if isinstance(idle, bool) else byte_count(idle, "idle", 0, _IDLE)
    if chosen is not None:
        _chosen = chosen  # first, so that a limit set by native code in between is seen
    if chosen is not None or most_idle is not None:
        _cache.set_limits(None if chosen is None else chosen.limit, most_idle)
    most, used, idling, external, idle_limit = _cache.figures()
    source = _chosen.source if most == _chosen.limit else "pinning_set_budget, called by native code"
    return Budget(_told(most), used, idling, external, _told(min(idle_limit, most)), source)


def give_back_idle(nbytes: int | None = None) -> int:
    """Unlock idle regions, which are registered without a lock, the least recently used first.

    Parameters
    ----------
    nbytes : int, optional
        How many bytes to give back at least, if there are as many; all by default.

    Returns
    -------
    int
        Bytes given back, which may exceed `nbytes`.

    Raises
    ------
    VendorError
        The vendor refused one region, which stays idle; the others have been given back.
    """
    return _cache.give_back(_cache.NO_LIMIT if nbytes is None else byte_count(nbytes, least=0))


def check_lock(size: int, device: Device, resident: bool) -> None:
    """Refuse a lock that cannot fit even with an empty cache, before any page is touched. Raises as `check_room`.

    `resident`: the pages are in memory already, so locking takes no more of it.
    """
    check_limit(size, device)
    if not resident:
        check_memory(size)
    check_budget(size)


def check_budget(size: int) -> None:
    """Refuse `size` more bytes if the budget has no room for them even with an empty cache. Raises LockLimitError."""
    global _chosen
    _cache.make_room(size)
    try:
        _cache.check(size)
    except LockLimitError:
        for function in before_refusal:
            function()
        before = _chosen
        if before.by_default and _cache.figures()[0] == before.limit:
            now = _default()  # a container's limit may have been raised meanwhile
            # While that was read, another thread may have set a limit: it stays.
            if _chosen is before and _cache.replace_limit(before.limit, now.limit) and _chosen is before:
                _chosen = now
        _cache.check(size)


class _Limit(NamedTuple):
    limit: int
    source: str
    by_default: bool = False


def _choice(limit: Any) -> _Limit:
    if isinstance(limit, Integral) or not isinstance(limit, Real):  # NumPy's too
        return _Limit(byte_count(limit, "limit", 0, _BYTES_OR_FRACTION), f"pinning.budget({limit})")
    if not 0.0 < float(limit) <= 1.0:
        raise InvalidRangeError(f"limit is {limit!r}; it must be {_BYTES_OR_FRACTION}")
    room = _memory()
    if room is None:
        raise InvalidRangeError(f"limit is {limit!r}, of a memory size that /proc does not tell here: give bytes")
    return _Limit(int(room.limit * float(limit)), f"pinning.budget({limit}), of {room.name}")


def _default() -> _Limit:
    room = _memory()
    return _Limit(_cache.NO_LIMIT, "no limit is known", True) if room is None else _Limit(room.limit, room.name, True)


def _memory() -> Room | None:
    """The smallest limit on the memory of this process; `check_memory` checks how much of it is free."""
    rooms: list[Room] = []
    with suppress(OSError):
        rooms.append(system_memory())
    with suppress(OSError):
        rooms += cgroup_memory()
    return min(rooms, key=lambda room: room.limit, default=None)


def _told(limit: int) -> int | None:
    return None if limit == _cache.NO_LIMIT else limit


_chosen = _default()
if _cache.figures()[0] == _cache.NO_LIMIT:
    _cache.set_limits(_chosen.limit, None)

# SPDX-License-Identifier: Apache-2.0
"""Ranges that are copied again and again are locked for good, if `Costs.lock_after` is set."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any
from weakref import ref

from pinning.copies.costs import costs
from pinning.errors import PinningError
from pinning.locking.devices import pinned_map
from pinning.map.pinned_map import Hold
from pinning.plugin import MemoryDevice

_REMEMBERED = 256
_ENDS_EARLY = ("close", "release", "append")  # methods of mmap, memoryview, array: their memory may go first
_times: OrderedDict[tuple[int, int, int], int] = OrderedDict()  # device, first byte, size: copies, the latest last
_watched: dict[int, ref[object]] = {}  # of the owners of locked ranges; each callback drops the owner's lock


def lock_if_repeated(buffer: object, ptr: int, size: int, device: MemoryDevice) -> bool:
    """Count one more copy of a pageable range, and lock it when it is due. Returns whether it is locked now.

    It stays locked until the array that owns the memory is collected. Nothing is locked if the owner cannot be watched
    for that, or if the vendor refuses.
    """
    if costs.lock_after is None or size < costs.lock_from:
        return False
    key = id(device), ptr, size
    times = _times.pop(key, 0) + 1
    _times[key] = times
    while len(_times) > _REMEMBERED:
        _times.popitem(last=False)
    if times < costs.lock_after:
        return False
    owner = _owner(buffer)
    if any(hasattr(owner, end) for end in _ENDS_EARLY):
        return False
    try:
        ref(owner)
        hold = Hold(pinned_map(device), ptr, size, None, None, None)
    except (TypeError, PinningError):
        return False
    # Not `weakref.finalize`, which Ctrl-C may end before it has begun: this callback is one step in C.
    watch = ref(owner, hold.drop)
    _watched[id(watch)] = watch
    for each, watched in list(_watched.items()):
        if watched() is None:
            _watched.pop(each, None)
    _times.pop(key, None)
    return True


def _owner(buffer: Any) -> object:
    """The array at the end of a chain of views: a view may go while its memory stays."""
    while type(base := getattr(buffer, "base", None)) is type(buffer):
        buffer = base
    return buffer

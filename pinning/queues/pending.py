# SPDX-License-Identifier: Apache-2.0
"""Work that the program does not wait for: the service thread releases what finished work has kept.

That thread also gives back dropped queues once their work is over.

exit: waits for work, but not for ever. fork: queues belong to the parent; in the child, their calls raise an error.
"""

from __future__ import annotations

import math
import time
import warnings
from contextlib import suppress
from functools import partial
from typing import Protocol
from weakref import WeakSet

from pinning.budget.limits import before_refusal
from pinning.errors import VendorError
from pinning.plugin import MemoryDevice, VendorQueue
from pinning.runtime import process
from pinning.runtime.process import WeakRegistry, at_exit, emptied_at_fork

EXIT_SECONDS = 10.0


class Lane(Protocol):
    """One vendor's queue: see lane.pyx."""

    @property
    def closed(self) -> bool: ...
    @property
    def lost(self) -> bool: ...
    @property
    def silent(self) -> bool: ...
    @property
    def retired(self) -> bool: ...
    @property
    def owner_device(self) -> MemoryDevice: ...
    @property
    def count(self) -> int: ...
    @property
    def reached(self) -> int: ...
    def poll(self) -> bool: ...
    def ask_last(self) -> None: ...
    def unwatch(self) -> bool: ...
    def retire(self) -> None: ...
    def close(self) -> None: ...
    def uses(self, thing: object) -> list[tuple[Lane, int]]: ...


_lanes: WeakRegistry[Lane] = emptied_at_fork(WeakRegistry())
_lent: WeakSet[Lane] = WeakSet()  # lanes that carry copies of other devices
_RECENTLY = 0.005  # seconds for which a device counts as busy after it was last seen to get work
_seen: dict[str, tuple[int, float]] = {}  # by device name: operations submitted, and when that number last changed


def _is_busy(lane: Lane) -> bool:
    """Poll a lane that keeps something, or is retired; close it if it can be. Returns whether to look again."""
    over = lane.closed or lane.poll() or (lane.retired and (lane.lost or lane.silent))
    if over and lane.retired and not lane.closed:
        with suppress(Exception):  # the lane has no user left
            lane.close()
    return not (over and lane.unwatch())


# One step in C, which neither Ctrl-C nor the garbage collector can interrupt.
look_after: partial[None] = partial(process.look_after, _is_busy)


def track(lane: Lane) -> None:
    """Add a new lane."""
    _lanes.add(lane)


def lend(lane: Lane) -> None:
    """Do not count what is submitted to this lane as work of its device: it is work for another device."""
    _lent.add(lane)


def retire(lane: Lane) -> None:
    """Have a lane closed once its work is over; no more can be submitted to it."""
    lane.retire()
    look_after(lane)


def vendor_queue(device: MemoryDevice) -> VendorQueue:
    """A new queue of a device; if the vendor has none left, after those that are dropped and over are given back."""
    try:
        return device.make_queue()
    except VendorError:
        dropped = [lane for lane in _lanes if lane.retired and not lane.closed]
        for lane in dropped:
            with suppress(Exception):
                _is_busy(lane)
        if not any(lane.closed for lane in dropped):
            raise
        return device.make_queue()


def uses(thing: object) -> list[tuple[Lane, int]]:
    """Poll the vendors, and return the operations that keep this very object and are not known to be over."""
    found = []
    for lane in _lanes:
        if lane.uses(thing):
            with suppress(Exception):  # then nothing new is known
                if not lane.poll():
                    lane.ask_last()
            found += lane.uses(thing)
    return found


def _poll_all() -> None:
    """Copies that are over let go of what was unlocked meanwhile."""
    for lane in _lanes:
        with suppress(Exception):
            lane.poll()


before_refusal.append(_poll_all)


def is_idle(device: MemoryDevice) -> bool:
    """Whether a device has no work in this package's queues now, and got none lately."""
    lanes = [lane for lane in _lanes if lane.owner_device is device and not lane.closed and lane not in _lent]
    count, now = sum(lane.count for lane in lanes), time.monotonic()
    known, since = _seen.setdefault(device.name, (count, -math.inf))
    if count != known:
        _seen[device.name], since = (count, now), now
    return now - since >= _RECENTLY and all(lane.poll() for lane in lanes)


def _wait_for_all() -> None:
    end = time.monotonic() + EXIT_SECONDS
    for lane, count in [(lane, lane.count) for lane in _lanes]:  # not for what daemon threads submit meanwhile
        while not (lane.closed or lane.poll() or lane.lost or lane.silent or lane.reached >= count):
            if time.monotonic() > end:
                late = f"work is still in a queue {EXIT_SECONDS:g} s after the program's end"
                warnings.warn(late, ResourceWarning, stacklevel=1)
                return
            time.sleep(0.0005)


at_exit(_wait_for_all)

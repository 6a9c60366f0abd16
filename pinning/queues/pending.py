# SPDX-License-Identifier: Apache-2.0
"""What becomes of work that is not waited for: the service thread lets go of what finished work has kept.

Queues that were dropped are given back once their work is over, also by that thread.

exit: work is waited for, but not for ever. fork: queues belong to the parent; the child's handles do nothing, and say
so.
"""

from __future__ import annotations

import math
import time
import warnings
from contextlib import suppress
from functools import partial
from typing import Protocol
from weakref import WeakSet

from pinning.plugin import MemoryDevice
from pinning.queues.order import TimelinePoint
from pinning.runtime import process
from pinning.runtime.process import Subsystem, WeakRegistry, at_exit, at_fork

EXIT_SECONDS = 10.0


class Lane(Protocol):
    """One vendor's queue: see lane.pyx."""

    @property
    def closed(self) -> bool: ...
    @property
    def lost(self) -> bool: ...
    @property
    def retired(self) -> bool: ...
    @property
    def owner_device(self) -> MemoryDevice: ...
    @property
    def count(self) -> int: ...
    def poll(self) -> bool: ...
    def unwatch(self) -> bool: ...
    def retire(self) -> None: ...
    def close(self) -> None: ...
    def uses(self, thing: object) -> list[TimelinePoint]: ...


_lanes: WeakRegistry[Lane] = WeakRegistry()
_lent: WeakSet[Lane] = WeakSet()  # lanes that carry copies of other devices
_abandoned: list[object] = []
_RECENTLY = 0.005  # seconds, for which a device counts as at work after it was last seen to get some
_seen: dict[str, tuple[int, float]] = {}  # by name, how much had been submitted and when that was new


def _is_busy(lane: Lane) -> bool:
    """Look at a lane that keeps something, or is retired."""
    over = lane.closed or lane.poll() or (lane.lost and lane.retired)
    if over and lane.retired and not lane.closed:
        with suppress(Exception):  # the lane has no user left
            lane.close()
    return not (over and lane.unwatch())


# One step in C, wherever Ctrl-C and the garbage collector strike.
look_after = partial(process.look_after, _is_busy)


def know(lane: Lane) -> None:
    """There is a new lane."""
    _lanes.add(lane)


def lend(lane: Lane) -> None:
    """What is submitted to this lane is no work of its device: it is another's."""
    _lent.add(lane)


def retire(lane: Lane) -> None:
    """No more work can be submitted to the lane."""
    lane.retire()
    look_after(lane)


def abandon(parents: object) -> None:
    """Never destroy, in a child process, what belongs to its parent."""
    _abandoned.append(parents)


def uses(thing: object) -> tuple[TimelinePoint, ...]:
    """The operations that keep this very object and are not known to be over, after the vendors have been asked."""
    points = []
    for lane in _lanes:
        if lane.uses(thing):
            with suppress(Exception):  # then it says no more than before
                lane.poll()
            points += lane.uses(thing)
    return tuple(points)


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
    for lane in _lanes:
        while not (lane.closed or lane.poll() or lane.lost):
            if time.monotonic() > end:
                late = f"work is still in a queue {EXIT_SECONDS:g} s after the program's end"
                warnings.warn(late, ResourceWarning, stacklevel=1)
                return
            time.sleep(0.0005)


def _after_fork_in_child() -> None:
    global _lanes
    abandon(list(_lanes))
    _lanes = WeakRegistry()


at_exit(Subsystem.QUEUES, _wait_for_all)
at_fork(Subsystem.QUEUES, _after_fork_in_child)

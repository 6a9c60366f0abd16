# SPDX-License-Identifier: Apache-2.0
"""What becomes of work while nobody looks: a daemon thread lets go of what finished work has kept.

Queues that were dropped are given back once their work is over, also by this thread.

exit: work is waited for, but not for ever. fork: queues belong to the parent; the child's handles do nothing, and say
so.
"""

from __future__ import annotations

import threading
import time
import warnings
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from pinning.queues.order import TimelinePoint
from pinning.runtime.process import Living, Part, at_exit, in_child

SHORTEST, LONGEST = 0.005, 0.1  # seconds between two looks
EXIT_SECONDS = 10.0


class Lane(Protocol):
    """One vendor's queue: see lane.pyx."""

    @property
    def closed(self) -> bool: ...
    @property
    def lost(self) -> bool: ...
    @property
    def retired(self) -> bool: ...
    def poll(self) -> bool: ...
    def unwatch(self) -> bool: ...
    def retire(self) -> None: ...
    def close(self) -> None: ...
    def uses(self, thing: object) -> list[TimelinePoint]: ...


_lanes: Living[Lane] = Living()
# Lanes that keep something from now on, or are retired. Its put is safe wherever the garbage collector strikes.
news: SimpleQueue[Lane] = SimpleQueue()
_thread: threading.Thread | None = None
_abandoned: list[object] = []


def know(lane: Lane) -> None:
    """There is a new lane."""
    global _thread
    _lanes.add(lane)
    if _thread is None:
        _thread = threading.Thread(target=_look_after, args=(news,), name="pinning queues", daemon=True)
        try:
            _thread.start()
        except RuntimeError:
            _thread = None
            raise


def retire(lane: Lane) -> None:
    """Nobody can submit to the lane any more."""
    lane.retire()
    news.put(lane)


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


def _look_after(news: SimpleQueue[Lane]) -> None:
    busy: set[Lane] = set()
    pause = SHORTEST
    while True:
        with suppress(Empty):
            busy.add(news.get(timeout=pause if busy else None))
            while True:
                busy.add(news.get_nowait())
        before = len(busy)
        busy = {lane for lane in busy if not _is_finished(lane)}
        pause = SHORTEST if len(busy) != before else min(2 * pause, LONGEST)


def _is_finished(lane: Lane) -> bool:
    over = lane.closed or lane.poll() or (lane.lost and lane.retired)
    if over and lane.retired and not lane.closed:
        with suppress(Exception):  # nobody is there to hear
            lane.close()
    return over and lane.unwatch()


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
    global _lanes, news, _thread
    abandon((list(_lanes), news))
    _lanes, news, _thread = Living(), SimpleQueue(), None


at_exit(Part.QUEUES, _wait_for_all)
in_child(Part.QUEUES, _after_fork_in_child)

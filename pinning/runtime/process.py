# SPDX-License-Identifier: Apache-2.0
"""What waits for a better moment, and what a fork and the end of the program do: one place for the whole package.

later: a destructor runs wherever the garbage collector strikes, with any lock held. What may block it leaves to one
daemon thread, the reaper.

fork: the child's memory, queues and locks are the parent's. Each part begins anew, those below first.

exit: each part ends, those above first. What was left to the reaper is dropped: it goes with the process.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import IntEnum
from itertools import count
from queue import SimpleQueue
from typing import Generic, TypeVar
from weakref import ref

from pinning.errors import PinningError

T = TypeVar("T")


class Part(IntEnum):
    """The parts of the package that a fork and the exit concern, each above those that it stands on."""

    MAPS = 0
    IDLE = 1
    LOCKS = 2
    MEMORY = 3
    COPIES = 4
    QUEUES = 5
    POOLS = 6
    ARRAYS = 7
    ARENAS = 8


class Living(Generic[T]):
    """A set that keeps nothing alive. Any thread, and any destructor, may change it while others go through it."""

    def __init__(self) -> None:
        self._refs: set[ref[T]] = set()

    def add(self, thing: T) -> None:
        self._refs.add(ref(thing, self._refs.discard))

    def __iter__(self) -> Iterator[T]:
        return iter([thing for each in list(self._refs) if (thing := each()) is not None])


def start_once(unstarted: list[None], run: Callable[..., object], *arguments: object) -> None:
    """Start a thread where `unstarted` has its one item, which is taken out. Each change is one step in C.

    Where there is no thread to be had the item is put back, and the next call tries again.
    """
    with suppress(IndexError):
        unstarted.pop()
        try:
            _thread.start_new_thread(run, arguments)
        except RuntimeError:
            unstarted.append(None)


class _Reaper:
    """Each change is one step in C, so that neither another thread nor Ctrl-C comes between."""

    def __init__(self) -> None:
        self._serials = count()
        self._forgotten: list[object] = []
        self.begin()

    def begin(self) -> None:
        self._process = os.getpid()
        self._left: dict[int, tuple[Callable[..., object], tuple[object, ...]]] = {}
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._unstarted = [None]  # who pops it starts the thread
        self.ended = False

    def begin_anew(self) -> None:
        """In a fork's child, where the parent's must not be destroyed."""
        self._forgotten += self._left, self._bell
        self.begin()

    def later(self, function: Callable[..., object], *arguments: object) -> None:
        """Have a function called soon by another thread, which holds no lock; never waits, and no destructor must.

        It may be called twice, where Ctrl-C has ended `catch_up`. A PinningError that it raises is dropped. Nothing is
        called in a child after fork, nor once the program exits.
        """
        if self.ended or self._process != os.getpid():  # a child that has not begun anew yet destroys its parent's
            return
        self._left[next(self._serials)] = function, arguments
        self._bell.put(None)
        start_once(self._unstarted, self._reap, self._bell)

    def catch_up(self) -> None:
        """Call here and now what was left for later. The caller holds no lock."""
        for serial, (function, arguments) in list(self._left.items()):
            if self.ended or serial not in self._left:  # somebody else was quicker
                continue
            try:
                function(*arguments)
            except PinningError:
                pass  # nobody is there to hear
            except Exception:
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), None)))
            self._left.pop(serial, None)

    def _reap(self, bell: SimpleQueue[None]) -> None:
        while not self.ended:
            bell.get()
            with suppress(BaseException):  # such as SystemExit in somebody's destructor
                self.catch_up()


_reaper = _Reaper()
later = _reaper.later
catch_up = _reaper.catch_up

_in_child: list[tuple[Part, Callable[[], object]]] = []
_at_exit: list[tuple[Part, Callable[[], object]]] = []


def in_child(part: Part, function: Callable[[], object]) -> None:
    """Have a function called in the child of each fork, after those of the parts below."""
    _in_child.append((part, function))
    _in_child.sort(key=lambda each: each[0])


def at_exit(part: Part, function: Callable[[], object]) -> None:
    """Have a function called when the program exits, after those of the parts above."""
    _at_exit.append((part, function))
    _at_exit.sort(key=lambda each: -each[0])


def _after_fork_in_child() -> None:
    _reaper.begin_anew()
    for _, function in _in_child:
        try:
            function()
        except Exception:  # the others must begin anew all the same
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), None)))


def _exit() -> None:
    _reaper.ended = True
    for _, function in _at_exit:
        with suppress(Exception):  # the others still want ending, and nobody is left to hear
            function()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_exit)

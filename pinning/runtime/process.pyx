# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""What waits for a better moment, and what a fork and the end of the program do: one place for the whole package.

defer: a destructor runs wherever the garbage collector strikes, with any lock held. What may block it leaves to a daemon
thread.

look_after: what ends or changes by itself, such as the work of a device, is asked by a daemon thread.

fork: the child's memory, queues and locks are the parent's. Each subsystem begins anew, those below first.

exit: each subsystem ends, those above first. What was deferred is dropped: it goes with the process. Threads that are only
beginning are waited for.

Each change is made by C code that the GIL guards, so that neither another thread nor Ctrl-C comes between.
"""

import _thread
import atexit
import os
import sys
import threading
from collections import deque
from contextlib import suppress
from enum import IntEnum
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import ref

from pinning.errors import PinningError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    pthread_t pthread_self()
    int pthread_setname_np(pthread_t thread, const char* name)

T = TypeVar("T")

SHORTEST: float = 0.005  # seconds, before what is looked after is called
LONGEST: float = 0.1
BEGIN_SECONDS = 5.0  # at most, for a thread to begin


class Subsystem(IntEnum):
    """The parts of the package that a fork and the exit concern, each above those that it stands on."""

    MAPS = 0
    CACHE = 1
    LOCKS = 2
    MEMORY = 3
    COPIES = 4
    QUEUES = 5
    ARENAS = 6
    FILES = 7


class WeakRegistry(Generic[T]):
    """A set that keeps nothing alive. Any thread, and any destructor, may change it while others go through it."""

    def __init__(self) -> None:
        self._refs = set()

    def add(self, thing: T) -> None:
        self._refs.add(ref(thing, self._refs.discard))

    def __iter__(self) -> Iterator[T]:
        return iter([thing for each in list(self._refs) if (thing := each()) is not None])


cdef class Inbox:
    """What other threads leave for one that waits for it. Any destructor may put something in.

    `queue.SimpleQueue` is not used: up to Python 3.12 its `get` with a timeout can wait for ever if the thread gets a signal.
    """

    cdef object things  # a deque
    cdef object idle  # a lock, for which the thread waits; released when there is something

    def __cinit__(self):
        self.things, self.idle = deque(), _thread.allocate_lock()
        self.idle.acquire()

    def put(self, thing: object) -> None:
        """Never waits."""
        self.things.append(thing)
        if self.idle.locked():
            self.idle.release()

    def take(self, double timeout: float = -1.0) -> list[Any]:
        """All that is there, the oldest first. Waits for something, at most so many seconds unless -1; it may be nothing."""
        cdef list taken = []
        self.idle.acquire(True, timeout)
        while self.things:
            taken.append(self.things.popleft())
        return taken


cdef class Service:
    """A daemon thread, started when it is needed first, that calls what it is given as long as that asks for it."""

    cdef bytes name  # as the system shows it: of 15 letters at most
    cdef Inbox calls  # that are new
    cdef dict due  # by function and arguments: when, and after which pause again. Of a thread that has ended it stays
    cdef unsigned generation
    cdef bint started
    cdef bint ended

    def __cinit__(self, bytes name):
        self.name = name
        self.begin()

    cdef begin(self):
        self.calls, self.due = Inbox(), {}
        self.generation = generation()
        self.started = self.ended = False

    cdef begin_anew(self):
        """In a child of fork, once."""
        if self.generation != generation():
            forgotten.append((self.calls, self.due))
            self.begin()

    cdef call(self, function, tuple arguments, double pause):
        self.calls.put((function, arguments, pause))
        if not self.started:
            self.started = True
            try:
                start_thread(self._run)
            except Exception:  # no thread can be started: the next call tries again
                self.started = False

    def _run(self):
        pthread_setname_np(pthread_self(), self.name)
        while not self.ended:
            with suppress(BaseException):  # such as SystemExit in a destructor of the user's
                self.gather()
                self.make_calls()

    cdef gather(self):
        """Wait for what is new, or until the soonest is due."""
        cdef dict due = self.due
        timeout = max(min([at for at, _ in due.values()]) - monotonic(), 0.0) if due else -1
        for function, arguments, pause in self.calls.take(timeout):
            due[function, arguments] = monotonic() + pause, min(2 * pause, LONGEST)

    cdef make_calls(self):
        cdef dict due = self.due
        now = monotonic()
        for call, (at, pause) in list(due.items()):
            if self.ended or at > now + pause / 8:  # what is due so soon is called with the others
                continue
            del due[call]
            function, arguments = call
            try:
                if function(*arguments):
                    due[call] = monotonic() + pause, min(2 * pause, LONGEST)
            except Exception:
                report()


cdef unsigned beginning = 0  # threads


def start_thread(function: Callable[..., object], *arguments: object) -> int:
    """Have a function called by a new daemon thread; what `_thread.start_new_thread` returns or raises.

    The exit waits until it has begun, since Python 3.11 crashes where it ends meanwhile.
    """
    global beginning
    beginning += 1
    try:
        thread = _thread.start_new_thread(_begin_thread, (function, arguments))
    except BaseException:
        beginning -= 1
        raise
    if looks.ended:
        await_beginning()
    return thread


def _begin_thread(function, arguments):
    global beginning
    beginning -= 1
    function(*arguments)


cdef await_beginning():
    until = monotonic() + BEGIN_SECONDS
    while beginning and monotonic() < until:
        sleep(0.001)


cdef list forgotten = []  # of the parent process, which must not be destroyed here
cdef dict deferred = {}  # calls, by serial number
cdef unsigned long serials = 0
# A vendor may let a deferred call wait for all its work. What is looked after does not wait for that.
cdef Service defers = Service(b"pinning defer")
cdef Service looks = Service(b"pinning service")
cdef list fork_handlers = []
cdef list exit_handlers = []


def look_after(function: Callable[..., object], *arguments: object, double pause=SHORTEST) -> None:
    """Have a function called by another thread after a pause in seconds, and again as long as it returns true.

    Never waits, and the function must not for long. Each pause is twice the last, up to `LONGEST`. Nothing is called once
    the program exits, nor in a child of fork what its parent looked after.
    """
    looks.begin_anew()  # unless the handler of the fork has
    if not looks.ended:
        looks.call(function, arguments, pause)


def defer(function: Callable[..., object], *arguments: object) -> None:
    """Have a function called soon by another thread, which holds no lock; never waits, and no destructor must.

    It may be called twice, where Ctrl-C has ended `run_deferred`. A PinningError that it raises is dropped. Nothing is
    called in a child after fork, nor once the program exits.
    """
    global serials
    if defers.ended or defers.generation != generation():  # a child that has not begun anew yet destroys its parent's
        return
    serials += 1
    deferred[serials] = function, arguments
    defers.call(run_deferred, (), 0.0)


def run_deferred() -> None:
    """Call here and now what was deferred. The caller holds no lock."""
    for serial, (function, arguments) in list(deferred.items()):
        if defers.ended or serial not in deferred:  # another thread was quicker
            continue
        try:
            function(*arguments)
        except PinningError:
            pass  # the caller of `defer` is gone
        except Exception:
            report()
        deferred.pop(serial, None)


cdef report():
    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), None)))


def at_fork(subsystem: Subsystem, function: Callable[[], object]) -> None:
    """Have a function called in the child of each fork, after those of the subsystems below."""
    fork_handlers.append((subsystem, function))
    fork_handlers.sort(key=lambda handler: handler[0])


def at_exit(subsystem: Subsystem, function: Callable[[], object]) -> None:
    """Have a function called when the program exits, after those of the subsystems above."""
    exit_handlers.append((subsystem, function))
    exit_handlers.sort(key=lambda handler: -handler[0])


def _after_fork_in_child():
    global beginning, deferred
    beginning = 0
    forgotten.append(deferred)
    deferred = {}
    defers.begin_anew()
    looks.begin_anew()
    for _, function in fork_handlers:
        try:
            function()
        except Exception:  # the others must begin anew all the same
            report()


def _exit():
    defers.ended = looks.ended = True
    for _, function in exit_handlers:
        with suppress(Exception):  # the others still want ending
            function()
    await_beginning()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_exit)

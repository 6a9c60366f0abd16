# SPDX-License-Identifier: Apache-2.0
"""Deferred calls, periodic checks, and what happens at fork and exit, for the whole package.

defer: the garbage collector may run a destructor anywhere, with any lock held. Whatever may block is left to a daemon
thread.

look_after: a daemon thread polls what ends or changes by itself, such as the work of a device.

fork: memory, queues and locks belong to the parent. libpinning has restarted its own parts in the child by now. Those of
Python follow in the order in which their modules are imported: what a module needs comes before it.

exit: they are ended in the reverse of this order, as by `atexit`. Deferred calls are discarded: the end of the process
frees everything. Threads that are just starting are waited for. What is looked after from then on is kept, but never
looked at.

Each change is made by C code that the GIL guards, so neither another thread nor Ctrl-C can come between.
"""

import _thread
import atexit
import os
import sys
import threading
from collections import deque
from contextlib import suppress
from functools import partial
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

SHORTEST: float = 0.005  # seconds: the first pause of `look_after`, and the longest
LONGEST: float = 0.1
BEGIN_SECONDS = 5.0  # at most, for a thread to start


class WeakRegistry(Generic[T]):
    """A set of weak references. Any thread or destructor may change it while others iterate over it."""

    def __init__(self) -> None:
        self._refs = set()

    def add(self, thing: T) -> None:
        self._refs.add(ref(thing, self._refs.discard))

    def copy(self) -> list[T]:
        return [thing for each in list(self._refs) if (thing := each()) is not None]

    def clear(self) -> None:
        self._refs.clear()

    def __iter__(self) -> Iterator[T]:
        return iter(self.copy())


cdef class Inbox:
    """Items for one thread, which waits for them. Any other thread, and any destructor, may add some.

    Not `queue.SimpleQueue`: up to Python 3.12 its `get` with a timeout can wait forever if the thread gets a signal.
    """

    cdef object things  # a deque
    cdef object idle  # a lock, for which the thread waits; released when there are items

    def __cinit__(self):
        self.things, self.idle = deque(), _thread.allocate_lock()
        self.idle.acquire()

    def put(self, thing: object) -> None:
        """Add an item. Never waits."""
        self.things.append(thing)
        if self.idle.locked():
            self.idle.release()

    def take(self, double timeout: float = -1.0) -> list[Any]:
        """Return all items, oldest first. Waits up to `timeout` seconds for one (-1: no limit); may be empty."""
        cdef list taken = []
        self.idle.acquire(True, timeout)
        while self.things:
            taken.append(self.things.popleft())
        return taken


cdef class Service:
    """A daemon thread, started when first needed, that calls each of its functions as long as it returns true."""

    cdef bytes name  # of the thread, in the system: at most 15 characters
    cdef Inbox calls  # new ones
    cdef dict due  # by function and arguments: time and next pause. Kept after the thread has ended
    cdef unsigned made_in
    cdef bint started
    cdef bint ended

    def __cinit__(self, bytes name):
        self.name = name
        self.begin()

    cdef begin(self):
        self.calls, self.due = Inbox(), {}
        self.made_in = generation()
        self.started = self.ended = False

    cdef restart(self):
        """Restart in a forked child; does nothing the second time."""
        if is_parents(self.made_in):
            forgotten.append((self.calls, self.due))
            self.begin()

    cdef call(self, function, tuple arguments, double pause):
        self.calls.put((function, arguments, pause))
        if not (self.started or self.ended):
            self.started = True
            try:
                start_thread(self._run)
            except Exception:  # no thread can be started: the next call tries again
                self.started = False

    def _run(self):
        pthread_setname_np(pthread_self(), self.name)
        cdef dict due = self.due
        while not self.ended and self.due is due:  # or else a function has forked, and this is the child's thread
            with suppress(BaseException):  # such as SystemExit in a user's destructor
                self.gather()
                self.make_calls()

    cdef gather(self):
        """Wait for new calls, or until the next one is due."""
        cdef dict due = self.due
        timeout = max(min([at for at, _ in due.values()]) - monotonic(), 0.0) if due else -1
        for function, arguments, pause in self.calls.take(timeout):
            due[function, arguments] = monotonic() + pause, min(2 * pause, LONGEST)

    cdef make_calls(self):
        cdef dict due = self.due
        now = monotonic()
        for call, (at, pause) in list(due.items()):
            if self.ended or self.due is not due or at > now + pause / 8:  # one that is due soon is made with the others
                continue
            del due[call]
            function, arguments = call
            try:
                if function(*arguments):
                    due[call] = monotonic() + pause, min(2 * pause, LONGEST)
            except Exception:
                report()


cdef unsigned beginning = 0  # threads that are starting


def start_thread(function: Callable[..., object], *arguments: object) -> int:
    """Call a function in a new daemon thread. Returns what `_thread.start_new_thread` does.

    Raises PinningError if no thread can be started.
    The exit waits until the thread has started, because Python 3.11 may crash if it ends before that.
    """
    global beginning
    beginning += 1
    try:
        thread = _thread.start_new_thread(_begin_thread, (function, arguments))
    except RuntimeError as error:
        beginning -= 1
        raise PinningError(f"{error}: raise `ulimit -u`, `ulimit -v` or pids.max of the control group") from None
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


cdef list forgotten = []  # objects that must not be destroyed in this process
cdef dict deferred = {}  # calls, by serial number
cdef unsigned long serials = 0
# In the vendor, a deferred call may have to wait for all work to finish. Periodic checks must not wait for that.
cdef Service defers = Service(b"pinning defer")
cdef Service looks = Service(b"pinning service")
cdef list before_fork = []
cdef list fork_handlers = []
cdef list exit_handlers = []


def look_after(function: Callable[..., object], *arguments: object, double pause=SHORTEST) -> None:
    """Call a function in another thread after `pause` seconds, and again as long as it returns true.

    Never waits; the function must be short. Each pause is twice the previous one, up to `LONGEST`. Nothing is called
    once the program exits, but the arguments are kept until its process ends, because a vendor may still use them. A
    forked child makes none of its parent's calls.
    """
    looks.restart()  # unless the fork handler has done so
    looks.call(function, arguments, pause)


cpdef object keep_for_ever(object thing):  # type: (object) -> None
    """Keep what belongs to the parent of a fork, or what a vendor may still use when the program exits.

    In C, because the end of the interpreter clears the variables of modules.
    """
    forgotten.append(thing)


def defer(function: Callable[..., object], *arguments: object) -> None:
    """Call a function soon in another thread, which holds no lock. Never waits, as is required of destructors.

    It may be called twice if Ctrl-C interrupts `run_deferred`. A PinningError that it raises is dropped. Nothing is
    called once the program exits, and a forked child makes none of its parent's calls.
    """
    global serials
    if defers.ended or is_parents(defers.made_in):  # a child, not restarted yet, destroys its parent's objects
        return
    serials += 1
    deferred[serials] = function, arguments
    defers.call(run_deferred, (), 0.0)


def run_deferred() -> None:
    """Make the deferred calls now, in this thread. The caller must hold no lock."""
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


def at_fork(function: Callable[[], object], before: Callable[[], object] | None = None) -> None:
    """Have a function called in each forked child, after those registered before.

    `before` is called in the parent, and must hold nothing when it returns: handlers of others follow, which may wait for
    threads.
    """
    fork_handlers.append(function)
    if before is not None:
        before_fork.append(before)


def emptied_at_fork(things: T) -> T:
    """Have a dict or a WeakRegistry emptied in each forked child. What it held is the parent's, and never destroyed."""
    at_fork(partial(_leave_to_parent, things))
    return things


def _leave_to_parent(things):
    forgotten.append(things.copy())
    things.clear()


def at_exit(function: Callable[[], object]) -> None:
    """Have a function called when the program exits, before those registered before."""
    exit_handlers.insert(0, function)


def exits() -> bool:
    """Whether the program exits, and what `at_exit` has registered was called, or is about to be."""
    return looks.ended


def _before_fork():
    for function in before_fork:
        function()


def _after_fork_in_child():
    global beginning, deferred
    beginning = 0
    forgotten.append(deferred)
    deferred = {}
    defers.restart()
    looks.restart()
    for function in fork_handlers:
        try:
            function()
        except Exception:  # the others must be restarted anyway
            report()


def _exit():
    defers.ended = looks.ended = True
    for function in exit_handlers:
        with suppress(Exception):  # the others must still be ended
            function()
    await_beginning()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
atexit.register(_exit)

# SPDX-License-Identifier: Apache-2.0
"""A device that only keeps records: of its calls, and of what is locked as a result."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeVar, cast

from pinning.errors import AlreadyPinnedError
from pinning.plugin import AutomaticLocking, LockLimit, PinnedInfo

T = TypeVar("T")
R = TypeVar("R")

LOCKED_OFFSET = 1 << 44
FOREIGN_OFFSET = 2 << 44
WAIT = 60  # seconds after which a test that waits has failed


class Call(NamedTuple):
    method: str
    ptr: int
    size: int = 0
    read_only: bool | None = None
    coherent: bool = True


class Gate:
    """Stops a vendor call until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.error: BaseException | None = None

    def open(self, error: BaseException | None = None) -> None:
        """Let the call continue, or fail with `error`."""
        self.error = error
        self.opened.set()


class FakeDevice(AutomaticLocking):
    """Only records its locks, at device pointers that lie `LOCKED_OFFSET` above the host's.

    Attributes
    ----------
    calls : list of Call
        All vendor calls, including those that failed.
    locked, foreign : dict of int to int
        Sizes by base address: what is locked, and what other code has pinned (at `FOREIGN_OFFSET`).
    tells_foreign : bool
        Whether `is_pinned_ptr` knows what other code has pinned.
    wrong : list of str
        Calls that the rules of `pinning.plugin.Device` forbid.
    """

    def __init__(self, name: str = "fake:0", largest_lock: int = sys.maxsize) -> None:
        self.name = name
        self.largest_lock = largest_lock
        self.limit: LockLimit | None = None
        self.calls: list[Call] = []
        self.locked: dict[int, int] = {}
        self.foreign: dict[int, int] = {}
        self.tells_foreign = True
        self.wrong: list[str] = []
        self._failures: dict[int, BaseException] = {}
        self._gates: list[tuple[Call, Gate]] = []

    def fail(self, error: BaseException, calls_before: int = 0) -> None:
        """Let the next call fail, or the one after `calls_before` others."""
        self._failures[len(self.calls) + calls_before] = error

    def fail_no_more(self) -> None:
        """Cancel the failures still to come."""
        self._failures.clear()

    def failures_left(self) -> list[BaseException]:
        """The errors still to come."""
        return list(self._failures.values())

    @contextmanager
    def stopping(self, method: str, ptr: int) -> Iterator[Gate]:
        """Stop the next call of this method at `ptr` at the gate, which opens at the end of the block."""
        gate = Gate()
        self._gates.append((Call(method, ptr), gate))
        try:
            yield gate
        finally:
            gate.opened.set()

    def count(self, method: str) -> int:
        """How often a method was called."""
        return sum(call.method == method for call in self.calls)

    def lock_limit(self) -> LockLimit | None:
        return self.limit

    def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int:
        return self._lock(Call("data_lock", ptr, size, read_only))

    def _lock(self, call: Call) -> int:
        ptr, size = call.ptr, call.size
        self._attend(call)
        if any(_meet(ptr, size, base, length) for base, length in self.foreign.items()):
            raise AlreadyPinnedError("fakeRegister", 712, "FAKE_ALREADY_REGISTERED")
        if size < 1 or size > self.largest_lock:
            self.wrong.append(f"lock of {size} bytes")
        if any(_meet(ptr, size, base, length) for base, length in list(self.locked.items())):
            self.wrong.append(f"lock of {ptr:#x}, {size}, some of which is locked")
        self.locked[ptr] = size
        return ptr + LOCKED_OFFSET

    def data_unlock(self, ptr: int) -> None:
        self._attend(Call("data_unlock", ptr))
        if self.locked.pop(ptr, None) is None:
            self.wrong.append(f"unlock of {ptr:#x}, which is not locked")

    def is_pinned_ptr(self, ptr: int) -> PinnedInfo | None:
        self._attend(Call("is_pinned_ptr", ptr))
        foreign = self.foreign if self.tells_foreign else {}
        for ranges, offset in ((self.locked, LOCKED_OFFSET), (foreign, FOREIGN_OFFSET)):
            for base, size in list(ranges.items()):
                if base <= ptr < base + size:
                    return PinnedInfo(base, size, base + offset)
        return None

    def _attend(self, call: Call) -> None:
        number = len(self.calls)
        self.calls.append(call)
        for entry in self._gates:
            waiting_for, gate = entry
            if (call.method, call.ptr) == (waiting_for.method, waiting_for.ptr) and not gate.reached.is_set():
                gate.reached.set()
                assert gate.opened.wait(WAIT), "nobody has opened the gate"
                if gate.error is not None:
                    raise gate.error
        if number in self._failures:
            raise self._failures.pop(number)  # kept in no variable: error and frame would keep each other alive


class CoarseFakeDevice(FakeDevice):
    """The same with a choice of coherence.

    Attributes
    ----------
    coherence : frozenset of bool
        The kinds that the device offers.
    coarse : set of int
        Base addresses of what was locked coarse-grained.
    """

    def __init__(self, *coherence: bool, name: str = "fake:0", largest_lock: int = sys.maxsize) -> None:
        super().__init__(name, largest_lock)
        self.coherence = frozenset(coherence)
        self.coarse: set[int] = set()

    def data_lock(self, ptr: int, size: int, read_only: bool | None, coherent: bool = True) -> int:
        # Three arguments ask for the coherent kind: it may be the only one, or the device promises none (empty set).
        if self.coherence and coherent not in self.coherence:
            self.wrong.append(f"lock of {ptr:#x} with coherent={coherent}")
        device_ptr = self._lock(Call("data_lock", ptr, size, read_only, coherent))
        if coherent:
            self.coarse.discard(ptr)
        else:
            self.coarse.add(ptr)
        return device_ptr


class Background(threading.Thread):
    """Runs a function on its own thread, and keeps what it returns or raises."""

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._result: object = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error

    def result(self) -> object:
        """Wait for the function; return its result, or raise its error."""
        self.join(WAIT)
        assert not self.is_alive(), "the thread does not come back"
        if self._error is not None:
            raise self._error
        return self._result


def in_threads(function: Callable[[T], R], arguments: Iterable[T]) -> list[R]:
    """Call `function` with all arguments at once, each on its own thread; return results, or raise the first error."""
    threads = [Background(partial(function, each)) for each in arguments]
    return [cast(R, thread.result()) for thread in threads]


def _meet(ptr: int, size: int, base: int, length: int) -> bool:
    return ptr < base + length and base < ptr + size

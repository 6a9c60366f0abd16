# SPDX-License-Identifier: Apache-2.0
"""The driver fails while a queue is created, used, queried and closed; see test_faults.py."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from pinning import MemoryKind, PinningError
from pinning.conformance.allocations import DATA, Allocations
from pinning.conformance.faults import Faults, each_failure, eventually
from pinning.conformance.holding import Buffer, host_bytes
from pinning.plugin import MemoryDevice, VendorEvent, VendorQueue

HOST, DEVICE = MemoryKind.HOST, MemoryKind.DEVICE


class Work:
    """A queue, and the memory and events for its work."""

    def __init__(self, queue: VendorQueue, memory: Allocations) -> None:
        self._memory = memory
        self.queue: VendorQueue = queue
        self.source: int = memory(HOST, DATA)
        self.there: int = memory(DEVICE)
        self.word: int = memory(HOST, bytes(4))
        self.pageable: Buffer = Buffer(DATA[:8])
        self.events: list[VendorEvent] = [queue.record()]  # kept, so that no event can be reused
        self.called: list[int] = []
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.called.append)
        self.function: int = ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def restart(self) -> None:
        self.queue.fill(self.there, b"\0", 16)
        self.queue.synchronize()
        self.events.append(self.queue.record())
        ctypes.memset(self.word, 0, 4)
        self.called.clear()

    def done(self) -> bool:
        """Whether any effect of the work is visible."""
        return bool(self.called) or any(self._memory.read(self.there, 16)) or any(host_bytes(self.word, 4))

    def goes_on(self) -> bool:
        """Whether new work is done."""
        self.queue.copy(self.there, self.source + 64, 16)
        self.queue.synchronize()
        return self._memory.read(self.there, 16) == DATA[64:80] and self.queue.done()


SUBMISSIONS: dict[str, Callable[[Work], object]] = {
    "copy": lambda work: work.queue.copy(work.there, work.source, 8),
    "copy_2d": lambda work: work.queue.copy_2d(work.there, 8, work.source, 8, 4, 2),
    "pageable": lambda work: work.queue.copy(work.there, work.pageable.ptr, 8),
    "fill": lambda work: work.queue.fill(work.there, DATA[4:8], 2),
    "call": lambda work: work.queue.call(work.function, 7),
    "write_value": lambda work: work.queue.write_value(work.word, 5),
    "wait_value": lambda work: work.queue.wait_value(work.word, 0),
    "record": lambda work: work.events.append(work.queue.record()),
    "wait": lambda work: work.queue.wait(work.events[0]),
}


@pytest.mark.parametrize("what", SUBMISSIONS)
def test_each_call_of_a_submission_fails(faults: Faults, queue: VendorQueue, memory: Allocations, what: str) -> None:
    """Refused work is not done, the next wait raises the error of work that failed later, and new work is done."""
    if what.endswith("_value") and not queue.waits_for_values:
        pytest.skip("its queues do not wait for values")
    work, submitted = Work(queue, memory), False

    def act() -> None:
        nonlocal submitted
        submitted = False
        SUBMISSIONS[what](work)
        submitted = True
        queue.synchronize()

    work.restart()
    act()
    work.restart()
    for call, error in each_failure(faults, act):
        if submitted:
            assert error is not None or work.done() or what in ("wait_value", "record", "wait"), call
            queue.synchronize()
        else:
            queue.synchronize()
            assert not work.done(), f"{call} failed, and the work was done"
        assert work.goes_on()
        work.restart()


def test_each_call_of_making_and_closing_a_queue_fails(faults: Faults, memories: MemoryDevice) -> None:
    memories.make_queue().close()
    before, made = faults.held(), list[VendorQueue]()
    for _, error in each_failure(faults, lambda: made.append(memories.make_queue())):
        assert len(made) == (not error)
        while made:
            made.pop().close()
        assert eventually(lambda: faults.held() == before)
    (queue,) = made
    queue.record()
    for _, error in each_failure(faults, lambda: made.pop().close(), lambda: made.append(memories.make_queue())):
        if error:
            made.append(queue)
            queue.synchronize()  # still open
        (queue,) = made
    made.pop().close()
    assert eventually(lambda: faults.held() == before)


@pytest.mark.parametrize("what", ["done", "wait", "synchronize", "queue done", "seconds since", "adopt"])
def test_each_call_of_a_question_fails(faults: Faults, memories: MemoryDevice, queue: VendorQueue, what: str) -> None:
    event = queue.record()
    queue.synchronize()
    acts: dict[str, Callable[[], object]] = {
        "done": event.done,
        "wait": event.wait,
        "synchronize": queue.synchronize,
        "queue done": queue.done,
        "seconds since": lambda: event.seconds_since(event),
        "adopt": lambda: memories.adopt_queue(queue.handle),
    }
    if what == "adopt":
        try:
            acts[what]()
        except PinningError as error:
            pytest.skip(f"{memories.name} adopts no queue: {error}")
    for _ in each_failure(faults, acts[what]):
        assert event.done() and eventually(queue.done)  # the queue may briefly hold a call of the driver's own

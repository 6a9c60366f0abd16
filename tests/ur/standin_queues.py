# SPDX-License-Identifier: Apache-2.0
"""Queues and events: order, what the loader is asked, failures, and what is left at the end.

A stand-in checks the ABI and the sequence of calls, not a real adapter's semantics.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from failing import DEVICE_LOST, each_failure
from usm import another_context, others_queue

from pinning.conformance.holding import Buffer, HeldQueue, host_bytes
from pinning.errors import PinningError, PluginUnavailableError, VendorError
from pinning.plugin import MemoryKind
from pinning.plugin.native import NativeEvent, NativeQueue
from pinning_ur import UrDevice, plugin
from queue_work import eventually
from standins.libur import live
from standins.standin import StandIn

HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED
FIRST, SECOND, OPENCL = (plugin.device(index) for index in range(3))
FREE = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p).value or 0  # of null, which does nothing

DATA = bytes(range(256)) * 4
KEPT: list[object] = []


def queues() -> int:
    """How many there are, but for the one that the device keeps for its own copies."""
    return live()["streams"] - 1


@pytest.fixture(scope="module", autouse=True)
def a_queue_for_copies() -> None:
    ptr, buffer = FIRST.allocate(1), Buffer(b"x")
    FIRST.copy(ptr, buffer.ptr, 1)
    FIRST.free(ptr)


@pytest.fixture
def queue(standin: StandIn) -> Iterator[NativeQueue]:
    queue = FIRST.make_queue()
    yield queue
    queue.close()


class Allocations:
    """Memory that goes at the end of a test."""

    def __init__(self) -> None:
        self._made: list[tuple[int, MemoryKind]] = []

    def __call__(self, kind: MemoryKind, data: bytes = bytes(len(DATA))) -> int:
        ptr = FIRST.allocate(len(data), kind)
        self._made.append((ptr, kind))
        buffer = Buffer(data)
        FIRST.copy(ptr, buffer.ptr, len(data))
        return ptr

    def free(self) -> None:
        for ptr, kind in self._made:
            FIRST.free(ptr, kind)


@pytest.fixture
def memory(standin: StandIn) -> Iterator[Allocations]:
    memory = Allocations()
    yield memory
    standin.configure()
    memory.free()


# ---- work ----


@pytest.mark.parametrize("there", [DEVICE, SHARED, HOST], ids=lambda kind: kind.value)
def test_bytes_go_there_and_come_back(queue: NativeQueue, memory: Allocations, there: MemoryKind) -> None:
    source, target, middle = memory(HOST, DATA), memory(HOST), memory(there)
    queue.copy(middle + 1, source + 1, 1000)
    queue.copy(target + 1, middle + 1, 1000)
    queue.synchronize()
    assert host_bytes(target, len(DATA)) == b"\0" + DATA[1:1001] + bytes(23)


def test_pageable_memory_is_copied(queue: NativeQueue, memory: Allocations) -> None:
    source, target, there = Buffer(DATA), Buffer(bytes(len(DATA))), memory(DEVICE)
    queue.copy(there, source.ptr, len(DATA))
    queue.copy(target.ptr, there, len(DATA))
    queue.synchronize()
    assert target.bytes_ == DATA


def test_rows(queue: NativeQueue, memory: Allocations) -> None:
    source, target, there = memory(HOST, DATA), memory(HOST), memory(DEVICE)
    queue.copy_2d(there, 16, source, 64, 10, 5)
    queue.copy_2d(target, 100, there, 16, 10, 5)
    queue.synchronize()
    expected = bytearray(len(DATA))
    for row in range(5):
        expected[100 * row : 100 * row + 10] = DATA[64 * row : 64 * row + 10]
    assert host_bytes(target, len(DATA)) == expected


@pytest.mark.parametrize("value", [b"\x07", b"\x01\xfe", b"\x01\x02\x03\x7c", b"\x01\x02\x03\xfc"])
def test_fills(queue: NativeQueue, memory: Allocations, value: bytes) -> None:
    target, there = memory(HOST), memory(DEVICE)
    queue.fill(there, value, 100)
    queue.copy(target, there, 100 * len(value))
    queue.synchronize()
    assert host_bytes(target, 100 * len(value) + 1) == value * 100 + b"\0"


def test_functions_are_called_in_their_turn_and_work_waits_for_them(queue: NativeQueue, memory: Allocations) -> None:
    source, target = memory(DEVICE, DATA), memory(HOST)
    queue.copy(target, source, 10)
    with HeldQueue(queue) as held:
        queue.copy(target + 10, source + 10, 10)
        assert held.begun.wait(60)
        assert host_bytes(target, 20) == DATA[:10] + bytes(10)
        assert not queue.done()
        held.release()
        queue.synchronize()
    assert host_bytes(target, 20) == DATA[:20]
    assert queue.done()


def test_functions_are_called_without_the_gil(queue: NativeQueue) -> None:
    libc = ctypes.CDLL(None)
    lock = ctypes.create_string_buffer(64)  # a pthread_mutex_t, all zero: unlocked
    libc.pthread_mutex_lock(lock)
    queue.call(ctypes.cast(libc.pthread_mutex_lock, ctypes.c_void_p).value or 0, ctypes.addressof(lock))
    event = queue.record()
    assert not event.done()
    libc.pthread_mutex_unlock(lock)
    event.wait()


@pytest.mark.parametrize("device", [FIRST, OPENCL], ids=["not this driver", "an older adapter"])
def test_a_device_that_calls_no_functions_says_so(standin: StandIn, device: UrDevice) -> None:
    standin.configure("no_host_task")
    queue = device.make_queue()
    standin.configure("no_host_task")
    with pytest.raises(PinningError, match=rf"queues of {device.name} cannot call functions.*in a thread of your own"):
        queue.call(FREE, 0)
    assert standin.calls() == []


def test_no_queue_waits_for_values(standin: StandIn, queue: NativeQueue) -> None:
    assert not queue.waits_for_values
    standin.configure()
    for act in (lambda: queue.wait_value(8, 1), lambda: queue.write_value(8, 1)):
        with pytest.raises(PinningError, match=r"queues of ur:0 cannot wait for values.*use events"):
            act()
    assert standin.calls() == []


# ---- events ----


def test_an_event_is_reached_when_all_before_it_is_done(queue: NativeQueue) -> None:
    before = queue.record()
    with HeldQueue(queue) as held:
        after = queue.record()
        before.wait()
        assert before.done()
        assert not after.done()
        held.release()
        after.wait()
    assert after.done()
    assert 0 < after.seconds_since(before) < 60
    assert before.seconds_since(before) == 0


def test_the_time_of_what_is_not_reached_cannot_be_told(queue: NativeQueue) -> None:
    before = queue.record()
    with HeldQueue(queue):
        after = queue.record()
        with pytest.raises(VendorError, match="PROFILING_INFO_NOT_AVAILABLE"):
            after.seconds_since(before)


@pytest.mark.parametrize("gpu", [FIRST, SECOND], ids=lambda gpu: gpu.name)
def test_a_queue_waits_for_an_event_of_another(queue: NativeQueue, memory: Allocations, gpu: UrDevice) -> None:
    source, target, other = memory(DEVICE, DATA), memory(HOST), gpu.make_queue()
    with HeldQueue(other) as held:
        queue.wait(other.record())
        queue.copy(target, source, 10)
        assert held.begun.wait(60)
        assert not queue.done()
        assert host_bytes(target, 10) == bytes(10)
    queue.synchronize()
    assert host_bytes(target, 10) == DATA[:10]
    other.close()


def test_python_runs_on_while_a_thread_waits(queue: NativeQueue) -> None:
    with HeldQueue(queue) as held:
        waits: list[Callable[[], object]] = [queue.record().wait, queue.synchronize, FIRST.synchronize]
        threads = [threading.Thread(target=wait) for wait in waits]
        for thread in threads:
            thread.start()
        assert all(thread.is_alive() for thread in threads)
        held.release()
        for thread in threads:
            thread.join()


def submit_all(queue: NativeQueue, ptr: int, there: int) -> None:
    """Every kind of work."""
    queue.copy(there, ptr, 8)
    queue.copy_2d(there, 8, ptr, 8, 4, 2)
    queue.fill(there, b"\1", 8)
    queue.call(FREE, 0)
    event = queue.record()
    queue.wait(event)
    event.wait()
    assert event.done()
    event.seconds_since(event)
    queue.synchronize()
    assert queue.done()


# ---- adopted and closed ----


def test_an_adopted_stream_stays(standin: StandIn) -> None:
    owner = FIRST.make_queue()
    adopted = FIRST.adopt_queue(owner.handle)
    assert adopted.handle == owner.handle
    with HeldQueue(adopted):
        assert not owner.done()
    adopted.close()
    assert queues() == 1
    owner.synchronize()
    owner.close()


def test_a_closed_queue_says_so_and_the_runtime_is_not_asked(standin: StandIn, memory: Allocations) -> None:
    ptr, there, queue = memory(HOST), memory(DEVICE), FIRST.make_queue()
    event = queue.record()
    queue.close()
    queue.close()
    standin.configure()
    for act in (
        lambda: queue.copy(there, ptr, 8),
        lambda: queue.copy_2d(there, 8, ptr, 8, 4, 2),
        lambda: queue.fill(there, b"\1", 8),
        lambda: queue.call(FREE, 0),
        lambda: queue.wait(event),
        queue.done,
        queue.synchronize,
        queue.record,
    ):
        with pytest.raises(PinningError, match="this queue of ur:0 is closed"):
            act()
    FIRST.synchronize()  # which leaves it out
    assert standin.calls() == []


def test_a_queue_of_another_kind_is_not_adopted(standin: StandIn) -> None:
    with another_context(FIRST) as another:
        for flags, context, device, match in (
            (0, FIRST.context, SECOND, "is not one of ur:0: adopt it on its own device"),
            (1, FIRST.context, FIRST, "out of order"),
            (0, another, FIRST, "in another context than the memory"),
        ):
            with (
                others_queue(device, context, flags) as handle,
                pytest.raises(PinningError, match=match),
            ):
                FIRST.adopt_queue(handle)
    assert queues() == 0


def test_a_queue_that_is_dropped_is_given_back(standin: StandIn) -> None:
    queue = FIRST.make_queue()
    queue.record()
    del queue
    gc.collect()
    assert (queues(), live()["events"]) == (0, 0)


def test_a_queue_that_is_dropped_at_work_blocks_nobody(standin: StandIn) -> None:
    libc = ctypes.CDLL(None)
    lock = ctypes.create_string_buffer(64)  # a pthread_mutex_t, all zero: unlocked
    KEPT.append(lock)  # the thread that does the work may use it longer than this test lasts
    libc.pthread_mutex_lock(lock)
    queue = FIRST.make_queue()
    queue.call(ctypes.cast(libc.pthread_mutex_lock, ctypes.c_void_p).value or 0, ctypes.addressof(lock))
    del queue
    gc.collect()
    libc.pthread_mutex_unlock(lock)  # which nobody could, had the collection waited for the work
    assert eventually(lambda: queues() == 0)

    def taken() -> bool:
        if libc.pthread_mutex_trylock(lock):
            return True
        libc.pthread_mutex_unlock(lock)
        return False

    assert eventually(taken)  # the work is still done


def test_a_queue_is_closed_while_others_ask_about_it(standin: StandIn) -> None:
    for _ in range(20):
        queue = FIRST.make_queue()
        told: list[str] = []

        def ask(queue: NativeQueue = queue, told: list[str] = told) -> None:
            try:
                while True:
                    queue.done()
                    queue.synchronize()
            except PinningError as error:
                told.append(str(error))

        asking = [threading.Thread(target=ask) for _ in range(3)]
        for thread in asking:
            thread.start()
        queue.close()
        for thread in asking:
            thread.join(60)
        assert len(told) == 3
        assert all("this queue of ur:0 is closed" in each for each in told)


# ---- failures ----


@pytest.mark.parametrize("what", ["copy", "copy_2d", "fill", "call", "record", "wait"])
def test_each_call_of_a_submission_fails_and_nothing_is_submitted(
    standin: StandIn, memory: Allocations, what: str
) -> None:
    source, target, other = memory(HOST, DATA), memory(HOST), FIRST.make_queue()
    called: list[int] = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(called.append)
    event, kept = other.record(), list[NativeEvent]()
    acts: dict[str, Callable[[NativeQueue], object]] = {
        "copy": lambda queue: queue.copy(target, source, 8),
        "copy_2d": lambda queue: queue.copy_2d(target, 8, source, 8, 8, 1),
        "fill": lambda queue: queue.fill(target, DATA[4:8], 2),
        "call": lambda queue: queue.call(ctypes.cast(function, ctypes.c_void_p).value or 0, 7),
        "record": lambda queue: kept.append(queue.record()),
        "wait": lambda queue: queue.wait(event),
    }
    queue = FIRST.make_queue()
    failures = set()
    for failing, outcome in each_failure(standin, lambda: acts[what](queue)):
        queue.synchronize()
        if outcome:
            failures.add(failing)
            assert (outcome.call, outcome.code, outcome.name) == (failing, DEVICE_LOST, "UR_RESULT_ERROR_DEVICE_LOST")
            assert host_bytes(target, 8) == bytes(8)
            assert not called
        ctypes.memset(target, 0, 8)
        called.clear()
    queue.synchronize()
    assert len(failures) == 1
    assert what in ("record", "wait") or called or host_bytes(target, 8) != bytes(8)
    queue.close()
    other.close()


def test_each_call_of_making_and_closing_fails(standin: StandIn) -> None:
    made_here: list[NativeQueue] = []
    failures = each_failure(standin, lambda: made_here.append(FIRST.make_queue()))
    assert [failing for failing, outcome in failures if outcome] == ["urDeviceGetInfo", "urQueueCreate"]
    assert queues() == 1
    (queue,) = made_here
    for failing, outcome in each_failure(standin, queue.close):
        assert failing == "urQueueRelease"
        assert outcome
        queue.synchronize()  # still open
    assert queues() == 0


@pytest.mark.parametrize("what", ["done", "wait", "synchronize", "queue done", "elapsed", "adopt"])
def test_each_call_of_a_question_fails(standin: StandIn, queue: NativeQueue, what: str) -> None:
    event = queue.record()
    queue.synchronize()
    acts: dict[str, Callable[[], object]] = {
        "done": event.done,
        "wait": event.wait,
        "synchronize": queue.synchronize,
        "queue done": queue.done,
        "elapsed": lambda: event.seconds_since(event),
        "adopt": lambda: FIRST.adopt_queue(queue.handle),
    }
    failed = list(each_failure(standin, acts[what]))
    assert failed
    assert all(outcome and (outcome.call, outcome.code) == (name, DEVICE_LOST) for name, outcome in failed)


@pytest.mark.parametrize("lost", ["work:1:20", "urEnqueueUSMMemcpy:2:20", "urEnqueueEventsWait:1:20"])
def test_a_lost_gpu_ends_all_waits_and_leaves_nothing(standin: StandIn, memory: Allocations, lost: str) -> None:
    source, there, queue = memory(HOST, DATA), memory(DEVICE), FIRST.make_queue()
    event: Any = queue.record()
    queue.synchronize()
    code = int(lost.split(":")[2])
    standin.configure(f"lost={lost}")

    def is_lost(act: Callable[[], object]) -> None:
        with pytest.raises(VendorError) as raised:
            act()
        assert raised.value.code == code

    def work() -> None:
        queue.copy(there, source, 10)
        queue.copy(there, source, 10)
        queue.record().wait()

    is_lost(work)
    for act in (
        queue.done,
        queue.synchronize,
        queue.record,
        event.done,
        event.wait,
        lambda: queue.copy(there, source, 10),
        lambda: queue.wait(event),
        FIRST.make_queue,
        FIRST.synchronize,
        lambda: FIRST.free(there),
        queue.close,
    ):
        is_lost(act)
    standin.configure()  # as if it came back, so that the end can be seen
    queue.close()
    event = None
    gc.collect()
    assert (queues(), live()["events"]) == (0, 0)


# ---- the life of a process ----


def test_a_forks_queues_do_nothing_and_say_so(standin: StandIn, queue: NativeQueue, memory: Allocations) -> None:
    source, there, event = memory(HOST, DATA), memory(DEVICE), queue.record()
    event.wait()
    attempts: list[Callable[[], object]] = [
        lambda: queue.copy(there, source, 8),
        lambda: queue.fill(there, b"\1", 8),
        queue.record,
        queue.done,
        queue.synchronize,
        queue.close,
        event.done,
        event.wait,
        lambda: event.seconds_since(event),
    ]
    standin.configure()
    child = os.fork()
    if child == 0:
        refused = 0
        for attempt in attempts:
            try:
                attempt()
            except PluginUnavailableError as error:
                refused += "fork" in str(error)
        del event, attempts, attempt
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == len(attempts)
    assert standin.calls() == []
    submit_all(queue, source, there)


@pytest.mark.parametrize("end", ["", "queue.synchronize(); queue.close()"])
def test_a_process_ends_with_queues_and_events_open(standin: StandIn, end: str) -> None:
    program = f"""
from pinning_ur import plugin
queue = plugin.device(0).make_queue()
events = [queue.record() for _ in range(3)]
cycle = [queue, queue.record()]
cycle.append(cycle)
{end}
"""
    child = subprocess.run([sys.executable, "-P", "-c", program], text=True, capture_output=True, timeout=300)
    assert (child.stderr, child.returncode) == ("", 0)

# SPDX-License-Identifier: Apache-2.0
"""Queues and events: work in order, host functions, waits for words in memory, and what is left at the end."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pinning import MemoryKind, PinningError, device
from pinning.conformance.allocations import DATA, FREE, LIBC, Allocations
from pinning.conformance.faults import Faults, eventually
from pinning.conformance.holding import Buffer, HeldQueue, host_bytes
from pinning.conformance.processes import refusals
from pinning.plugin import Device, MemoryDevice, VendorQueue
from pinning.plugin.native import NativeDevice

HOST, DEVICE = MemoryKind.HOST, MemoryKind.DEVICE


def refusal_to_call(queue: VendorQueue) -> str:
    """Why the queue calls no host functions; empty if it does."""
    try:
        queue.call(FREE, 0)
    except PinningError as error:
        return str(error)
    return ""


@pytest.fixture
def holds(queue: VendorQueue) -> type[HeldQueue]:
    """Holds queues; skips the test if they call no host functions."""
    if refusal := refusal_to_call(queue):
        pytest.skip(refusal)
    return HeldQueue


@pytest.fixture
def values(queue: VendorQueue) -> VendorQueue:
    """A queue that waits for values; skips the test if none does."""
    if not queue.waits_for_values:
        pytest.skip("its queues do not wait for values")
    return queue


@pytest.fixture(params=["its device", "another device"])
def other(request: pytest.FixtureRequest, memories: MemoryDevice, others: list[Device]) -> Iterator[VendorQueue]:
    """A second queue, of the same device or of another."""
    device: object = memories
    if request.param != "its device":
        if not others:
            pytest.skip(f"{memories.name} is the only device of its plugin")
        device = others[0]
    assert isinstance(device, MemoryDevice)
    queue = device.make_queue()
    yield queue
    queue.close()


# ---- work ----


@pytest.mark.parametrize("there", MemoryKind, ids=lambda kind: kind.value)
def test_bytes_go_there_and_come_back(queue: VendorQueue, memory: Allocations, there: MemoryKind) -> None:
    source, target, middle = memory(HOST, DATA), memory(HOST), memory(there)
    queue.copy(middle + 1, source + 1, 1000)
    queue.copy(target + 1, middle + 1, 1000)
    queue.synchronize()
    assert host_bytes(target, len(DATA)) == b"\0" + DATA[1:1001] + bytes(23)


@pytest.mark.parametrize("size", [1000, 100_000])
def test_pageable_memory_is_copied(queue: VendorQueue, memory: Allocations, size: int) -> None:
    data = (DATA * 100)[:size]
    source, target, there = Buffer(data), Buffer(bytes(size)), memory(DEVICE, bytes(size))
    queue.copy(there, source.ptr, size)
    queue.copy(target.ptr, there, size)
    queue.synchronize()
    assert target.bytes_ == data


def test_rows(queue: VendorQueue, memory: Allocations) -> None:
    source, target, there = memory(HOST, DATA), memory(HOST), memory(DEVICE)
    queue.copy_2d(there, 16, source, 64, 10, 5)
    queue.copy_2d(target, 100, there, 16, 10, 5)
    queue.synchronize()
    expected = bytearray(len(DATA))
    for row in range(5):
        expected[100 * row : 100 * row + 10] = DATA[64 * row : 64 * row + 10]
    assert host_bytes(target, len(DATA)) == expected


@pytest.mark.parametrize("value", [b"\x07", b"\x01\xfe", b"\x01\x02\x03\x7c", b"\x01\x02\x03\xfc"])
def test_fills(queue: VendorQueue, memory: Allocations, value: bytes) -> None:
    target, there = memory(HOST), memory(DEVICE)
    queue.fill(there, value, 100)
    queue.copy(target, there, 100 * len(value))
    queue.synchronize()
    assert host_bytes(target, 100 * len(value) + 1) == value * 100 + b"\0"


def test_functions_are_called_in_their_turn_and_work_waits_for_them(
    queue: VendorQueue, memory: Allocations, holds: type[HeldQueue]
) -> None:
    source, target = memory(DEVICE, DATA), memory(HOST)
    queue.copy(target, source, 10)
    with holds(queue) as held:
        queue.copy(target + 10, source + 10, 10)
        assert held.begun.wait(60)
        assert host_bytes(target, 20) == DATA[:10] + bytes(10)
        assert not queue.done()
        held.release()
        queue.synchronize()
    assert host_bytes(target, 20) == DATA[:20]
    assert queue.done()


def test_what_is_submitted_is_read_and_written_in_its_turn(
    queue: VendorQueue, memory: Allocations, holds: type[HeldQueue]
) -> None:
    source, there, target = memory(HOST, DATA), memory(DEVICE), memory(HOST)
    with holds(queue):
        queue.copy(there, source, len(DATA))
        queue.copy(target, there, len(DATA))
        ctypes.memset(source, 1, len(DATA))  # before the held queue reads it
    queue.synchronize()
    assert host_bytes(target, len(DATA)) == b"\1" * len(DATA)


def test_functions_are_called_without_the_gil(queue: VendorQueue, holds: type[HeldQueue]) -> None:
    mutex = ctypes.create_string_buffer(64)  # a pthread_mutex_t, all zero: unlocked
    LIBC.pthread_mutex_lock(mutex)
    queue.call(ctypes.cast(LIBC.pthread_mutex_lock, ctypes.c_void_p).value or 0, ctypes.addressof(mutex))
    event = queue.record()
    assert not event.done()
    LIBC.pthread_mutex_unlock(mutex)
    event.wait()


# ---- values ----


@pytest.mark.parametrize("start", [0, 2**32 - 2], ids=["zero", "wrapping"])
def test_a_queue_waits_for_a_word_of_the_host_and_writes_one(
    values: VendorQueue, memory: Allocations, start: int
) -> None:
    source, target, word, answer = memory(DEVICE, DATA), memory(HOST), memory(HOST, bytes(4)), memory(HOST, bytes(4))
    here = ctypes.c_uint32.from_address(word)
    here.value = start
    if start:
        try:
            values.wait_value(word, start)  # which the word has already
        except PinningError as error:
            pytest.skip(str(error))
    values.wait_value(word, (start + 3) % 2**32)
    values.copy(target, source, 10)
    values.write_value(answer, 77)
    for step in (1, 2):
        here.value = (start + step) % 2**32
        assert not values.done()
    here.value = (start + 5) % 2**32
    values.synchronize()
    assert host_bytes(target, 10) == DATA[:10]
    assert ctypes.c_uint32.from_address(answer).value == 77


def test_a_queue_that_waits_for_no_values_says_so(queue: VendorQueue, memory: Allocations) -> None:
    if queue.waits_for_values:
        pytest.skip("its queues wait for values")
    word = memory(HOST, bytes(4))
    acts: list[Callable[[], object]] = [lambda: queue.wait_value(word, 1), lambda: queue.write_value(word, 1)]
    for act in acts:
        with pytest.raises(PinningError, match="wait for values"):
            act()
    queue.synchronize()
    assert host_bytes(word, 4) == bytes(4)


# ---- events ----


def test_an_event_is_reached_when_all_before_it_is_done(queue: VendorQueue, holds: type[HeldQueue]) -> None:
    before = queue.record()
    with holds(queue) as held:
        after = queue.record()
        before.wait()
        assert before.done()
        assert not after.done()
        held.release()
        after.wait()
    assert after.done()
    assert 0 < after.seconds_since(before) < 600
    assert before.seconds_since(before) == 0
    time.sleep(0.01)
    later = queue.record()  # the queue is idle, so this one is reached at once, and not when the last work was
    later.wait()
    assert 0 < later.seconds_since(after) < 600


def test_the_time_of_what_is_not_reached_cannot_be_told(queue: VendorQueue, holds: type[HeldQueue]) -> None:
    before = queue.record()
    with holds(queue):
        after = queue.record()
        with pytest.raises(PinningError):
            after.seconds_since(before)


def test_a_queue_waits_for_an_event_of_another(
    queue: VendorQueue, other: VendorQueue, memory: Allocations, holds: type[HeldQueue]
) -> None:
    source, target = memory(DEVICE, DATA), memory(HOST)
    with holds(other) as held:
        queue.wait(other.record())
        queue.copy(target, source, 10)
        assert held.begun.wait(60)
        assert not queue.done()
        assert host_bytes(target, 10) == bytes(10)
    queue.synchronize()
    assert host_bytes(target, 10) == DATA[:10]


def test_an_event_that_is_let_go_is_waited_for_all_the_same(
    memories: MemoryDevice, queue: VendorQueue, memory: Allocations, holds: type[HeldQueue]
) -> None:
    """The reuse of an event by the device does not affect a wait for the point that it first marked."""
    source, target, other, third = memory(DEVICE, DATA), memory(HOST), memories.make_queue(), memories.make_queue()
    with holds(queue) as held, holds(other) as other_held:
        other.wait(queue.record())
        third.wait(other.record())
        queue.record()
        third.copy(target, source, 10)
        other_held.release()
        assert not third.done()
        held.release()
        third.synchronize()
    assert host_bytes(target, 10) == DATA[:10]
    other.close()
    third.close()


def test_python_runs_on_while_a_thread_waits(
    memories: MemoryDevice, queue: VendorQueue, holds: type[HeldQueue]
) -> None:
    with holds(queue) as held:
        waits: list[Callable[[], object]] = [queue.record().wait, queue.synchronize, memories.synchronize]
        threads = [threading.Thread(target=wait) for wait in waits]
        for thread in threads:
            thread.start()
        assert all(thread.is_alive() for thread in threads)
        held.release()
        for thread in threads:
            thread.join()


# ---- adopted, closed, dropped ----


def test_an_adopted_queue_stays(memories: MemoryDevice, queue: VendorQueue, holds: type[HeldQueue]) -> None:
    try:
        adopted = memories.adopt_queue(queue.handle)
    except PinningError as error:
        pytest.skip(f"{memories.name} adopts no queue: {error}")
    assert adopted.handle == queue.handle
    with holds(adopted):
        assert not queue.done()
    adopted.close()
    queue.record().wait()


def test_what_is_submitted_is_still_done_after_the_close(
    memories: MemoryDevice, memory: Allocations, holds: type[HeldQueue]
) -> None:
    source, target, queue = memory(DEVICE, DATA), memory(HOST), memories.make_queue()
    with holds(queue) as held:
        queue.copy(target, source, 10)
        event = queue.record()
        closing = threading.Thread(target=queue.close)  # it may wait for the work
        closing.start()
        assert held.begun.wait(60)
        held.release()
        closing.join()
        event.wait()
    assert host_bytes(target, 10) == DATA[:10]


def test_a_closed_queue_says_so_and_the_device_goes_on(memories: MemoryDevice, memory: Allocations) -> None:
    ptr, there, queue = memory(HOST), memory(DEVICE), memories.make_queue()
    event = queue.record()
    acts: list[Callable[[], object]] = [
        lambda: queue.copy(there, ptr, 8),
        lambda: queue.copy_2d(there, 8, ptr, 8, 4, 2),
        lambda: queue.fill(there, b"\1", 8),
        lambda: queue.wait(event),
        queue.done,
        queue.synchronize,
        queue.record,
    ]
    if not refusal_to_call(queue):
        acts.append(lambda: queue.call(FREE, 0))
    if queue.waits_for_values:
        acts += [lambda: queue.write_value(ptr, 5), lambda: queue.wait_value(ptr, 5)]
    queue.close()
    queue.close()
    for act in acts:
        with pytest.raises(PinningError, match="closed"):
            act()
    memories.synchronize()  # leaves out the closed queue
    assert memory.read(there, 8) == bytes(8)


def test_a_queue_is_closed_while_others_ask(memories: MemoryDevice) -> None:
    for _ in range(20):
        queue, begun = memories.make_queue(), threading.Barrier(5)

        def ask(act: Callable[[], object], begun: threading.Barrier = begun) -> str:
            begun.wait(60)
            try:
                while True:
                    act()
            except PinningError as error:
                return str(error)

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask, act) for act in (queue.done, queue.synchronize) * 2]
            begun.wait(60)
            queue.close()
            assert all("closed" in each.result() for each in asking)


@pytest.mark.parametrize("last", range(3))
def test_a_device_waits_for_all_its_queues(memories: MemoryDevice, holds: type[HeldQueue], last: int) -> None:
    queues = [memories.make_queue() for _ in range(3)]
    with holds(queues[last]) as held, ThreadPoolExecutor(1) as elsewhere:
        assert held.begun.wait(60)
        waiting = elsewhere.submit(memories.synchronize)
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        held.release()
        waiting.result(60)
        assert all(queue.done() for queue in queues)
    for queue in queues:
        queue.close()


def test_a_queue_that_is_dropped_is_given_back(memories: MemoryDevice, driver_faults: Faults | None) -> None:
    before = driver_faults and driver_faults.held()
    queue = memories.make_queue()
    queue.record()
    del queue
    gc.collect()
    assert driver_faults is None or eventually(lambda: driver_faults.held() == before)


def test_many_threads(memories: MemoryDevice, memory: Allocations) -> None:
    source, there = memory(HOST, DATA), memory(DEVICE)

    def work(index: int) -> None:
        queue = memories.make_queue()
        for _ in range(30):
            queue.copy(there + 64 * index, source, 64)
            event = queue.record()
            queue.wait(event)
            event.wait()
        queue.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert memory.read(there, 512) == DATA[:64] * 8


# ---- the life of a process ----


def test_a_forks_queues_do_nothing_and_say_so(
    memories: MemoryDevice, queue: VendorQueue, memory: Allocations, driver_faults: Faults | None
) -> None:
    source, there, event = memory(HOST, DATA), memory(DEVICE), queue.record()
    event.wait()
    attempts: list[Callable[[], object]] = [
        lambda: queue.copy(there, source, 8),
        lambda: queue.fill(there, b"\1", 8),
        lambda: queue.wait(event),
        queue.record,
        queue.done,
        queue.synchronize,
    ]
    if not refusal_to_call(queue):
        attempts.append(lambda: queue.call(FREE, 0))
    queue.synchronize()
    with_events = [event.done, event.wait, lambda: event.seconds_since(event), queue.close]
    if driver_faults:
        driver_faults.begin()
    assert refusals(attempts) == len(attempts)
    refused = refusals(with_events)
    assert refused in (0, len(with_events)), "some events work in a fork"
    if refused and driver_faults:  # a thread of the parent may finish its work only now
        assert [call for call in driver_faults.calls() if call not in driver_faults.forgiven] == []
    queue.copy(there, source, 8)
    queue.synchronize()
    assert memory.read(there, 8) == DATA[:8]


PROGRAM = """
import sys, pinning
device = pinning.device(sys.argv[1])
queue = device.make_queue()
events = [queue.record() for _ in range(3)]
cycle = [queue, queue.record()]
cycle.append(cycle)
dropped = device.make_queue()
dropped.record()
del dropped
"""


@pytest.mark.parametrize("end", ["", "queue.synchronize(); queue.close()"], ids=["open", "closed"])
def test_a_process_ends_with_queues_and_events(memories: MemoryDevice, end: str) -> None:
    command = [sys.executable, "-P", "-W", "ignore:the host is the default", "-c", PROGRAM + end, memories.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_event_of_another_vendor_is_refused(memories: MemoryDevice, queue: VendorQueue) -> None:
    if not isinstance(memories, NativeDevice):
        pytest.skip(f"{memories.name} is no device of native code")
    other: Any = device("host")
    host = other.make_queue()
    foreign: Any = object() if memories.name.startswith("host") else host.record()
    try:
        for call in (queue.wait, queue.record().seconds_since):
            with pytest.raises(PinningError, match=r"is of another vendor.*; wait for the event itself") as caught:
                call(foreign)
            assert caught.type is PinningError
    finally:
        host.close()

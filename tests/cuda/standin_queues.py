# SPDX-License-Identifier: Apache-2.0
"""Queues and events: order, what the driver is asked, contexts, failures, and what is left at the end.

A stand-in checks the ABI and the sequence of calls, not a real driver's semantics.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cuda.bindings import driver as cuda
from failures import UNKNOWN, each_failure

from holding import Buffer, Held, host_bytes
from mapped_memory import PAGE, Memory
from pinning.errors import PinningError, PluginUnavailableError, VendorError
from pinning.plugin import MemoryKind
from pinning.plugin.native import NativeQueue
from pinning_cuda import plugin
from standins.libcuda import left, live
from standins.standin import StandIn

HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED
GPU = plugin.device(0)
OTHER = plugin.device(1)

DATA = bytes(range(256)) * 4
ZEROS = bytes(len(DATA))

UNHEARD = ("cuCtxGetCurrent", "cuCtxPopCurrent")  # the context is pushed then; and popped for us


@pytest.fixture
def queue(standin: StandIn) -> Iterator[NativeQueue]:
    queue = GPU.make_queue()
    yield queue
    queue.close()


class Allocations:
    """Memory that goes at the end of a test."""

    def __init__(self) -> None:
        self._made: list[tuple[int, MemoryKind]] = []

    def __call__(self, kind: MemoryKind, size: int = len(DATA)) -> int:
        ptr = GPU.allocate(size, kind)
        self._made.append((ptr, kind))
        if kind is not DEVICE:
            ctypes.memset(ptr, 0, size)
        return ptr

    def free(self) -> None:
        for ptr, kind in self._made:
            GPU.free(ptr, kind)


@pytest.fixture
def memory(standin: StandIn) -> Iterator[Allocations]:
    memory = Allocations()
    yield memory
    standin.configure()
    memory.free()


def host(memory: Allocations, data: bytes) -> int:
    """HOST memory with these bytes."""
    ptr = memory(HOST, len(data))
    ctypes.memmove(ptr, data, len(data))
    return ptr


def device(memory: Allocations, data: bytes) -> int:
    """DEVICE memory with these bytes."""
    ptr, buffer = memory(DEVICE, len(data)), Buffer(data)
    GPU.copy(ptr, buffer.ptr, len(data))
    return ptr


# ---- work ----


@pytest.mark.parametrize("there", [DEVICE, SHARED, HOST], ids=lambda kind: kind.value)
def test_bytes_go_there_and_come_back(queue: NativeQueue, memory: Allocations, there: MemoryKind) -> None:
    source, target, middle = host(memory, DATA), memory(HOST), memory(there)
    queue.copy(middle + 1, source + 1, 1000)
    queue.copy(target + 1, middle + 1, 1000)
    queue.synchronize()
    assert host_bytes(target, len(DATA)) == b"\0" + DATA[1:1001] + bytes(23)


@pytest.mark.parametrize("size", [1000, 100_000])  # the driver reads a small pageable source before the call returns
def test_pageable_memory_is_copied(queue: NativeQueue, memory: Allocations, size: int) -> None:
    data = (DATA * 100)[:size]
    source, target, there = Buffer(data), Buffer(bytes(size)), memory(DEVICE, size)
    queue.copy(there, source.ptr, size)
    queue.copy(target.ptr, there, size)
    assert target.bytes_ == data


def test_rows(queue: NativeQueue, memory: Allocations) -> None:
    source, target, there = host(memory, DATA), memory(HOST), memory(DEVICE)
    queue.copy_2d(there, 16, source, 64, 10, 5)
    queue.copy_2d(target, 100, there, 16, 10, 5)
    queue.synchronize()
    expected = bytearray(len(DATA))
    for row in range(5):
        expected[100 * row : 100 * row + 10] = DATA[64 * row : 64 * row + 10]
    assert host_bytes(target, len(DATA)) == expected


@pytest.mark.parametrize("value", [b"\x07", b"\x01\xfe", b"\x01\x02\x03\xfc"])
def test_fills(queue: NativeQueue, memory: Allocations, value: bytes) -> None:
    target, there = memory(HOST), memory(DEVICE)
    queue.fill(there, value, 100)
    queue.copy(target, there, 100 * len(value))
    queue.synchronize()
    assert host_bytes(target, 100 * len(value) + 1) == value * 100 + b"\0"


def test_a_copy_across_the_border_of_a_lock_is_refused_as_the_driver_does(
    queue: NativeQueue, memory: Allocations
) -> None:
    pages, there = Memory(2), memory(DEVICE, 2 * PAGE)
    GPU.data_lock(pages.ptr, PAGE, False)
    with pytest.raises(VendorError) as raised:
        queue.copy(there, pages.ptr, 2 * PAGE)
    assert (raised.value.call, raised.value.code, raised.value.name) == ("cuMemcpyAsync", 1, "CUDA_ERROR_INVALID_VALUE")
    assert queue.done()
    GPU.data_unlock(pages.ptr)


def test_functions_are_called_in_their_turn_and_work_waits_for_them(queue: NativeQueue, memory: Allocations) -> None:
    source, target = device(memory, DATA), memory(HOST)
    queue.copy(target, source, 10)
    with Held(queue) as held:
        queue.copy(target + 10, source + 10, 10)
        assert held.begun.wait(60)
        assert host_bytes(target, 20) == DATA[:10] + bytes(10)
        assert not queue.done()
        held.release()
        queue.synchronize()
    assert host_bytes(target, 20) == DATA[:20]
    assert queue.done()


def test_memory_that_is_used_again_too_early_shows(queue: NativeQueue, memory: Allocations) -> None:
    source, there, target = host(memory, DATA), memory(DEVICE), memory(HOST)
    with Held(queue):
        queue.copy(there, source, len(DATA))
        queue.copy(target, there, len(DATA))
        ctypes.memset(source, 1, len(DATA))
    queue.synchronize()
    assert host_bytes(target, len(DATA)) == b"\1" * len(DATA)


def test_a_copy_within_the_host_waits_as_the_drivers_does(queue: NativeQueue, memory: Allocations) -> None:
    source, target = host(memory, DATA), memory(HOST)
    with Held(queue) as held:
        thread = threading.Thread(target=queue.copy, args=(target, source, 10))
        thread.start()
        assert held.begun.wait(60)
        assert thread.is_alive()
        held.release()
        thread.join()
        assert host_bytes(target, 10) == DATA[:10]


def test_functions_are_called_without_the_gil(queue: NativeQueue) -> None:
    libc = ctypes.CDLL(None)
    lock = ctypes.create_string_buffer(64)  # a pthread_mutex_t, all zero: unlocked
    address = ctypes.addressof(lock)
    libc.pthread_mutex_lock(lock)
    queue.call(ctypes.cast(libc.pthread_mutex_lock, ctypes.c_void_p).value or 0, address)
    event = queue.record()
    assert not event.done()
    libc.pthread_mutex_unlock(lock)
    event.wait()


def test_a_word_is_written_and_another_waited_for(standin: StandIn, queue: NativeQueue, memory: Allocations) -> None:
    source, target, words = device(memory, DATA), memory(HOST), memory(HOST, 8)
    here = (ctypes.c_uint32 * 2).from_address(words)
    standin.configure()
    queue.write_then_wait(words, 7, words + 4, 9)
    queue.copy(target, source, 10)
    while here[0] != 7:
        pass
    assert not queue.done()
    assert host_bytes(target, 10) == bytes(10)
    here[1] = 10
    queue.synchronize()
    assert host_bytes(target, 10) == DATA[:10]
    assert len(standin.calls("cuStreamBatchMemOp")) == 1


@pytest.mark.parametrize("start", [0, 2**32 - 2], ids=["zero", "wrapping"])
def test_a_queue_waits_for_a_word_of_the_host_and_writes_one(
    queue: NativeQueue, memory: Allocations, start: int
) -> None:
    source, target, word, answer = device(memory, DATA), memory(HOST), memory(HOST, 4), memory(HOST, 4)
    here = ctypes.c_uint32.from_address(word)
    here.value = start
    assert queue.waits_for_values
    queue.wait_value(word, (start + 3) % 2**32)
    queue.copy(target, source, 10)
    queue.write_value(answer, 77)
    for step in (1, 2):
        here.value = (start + step) % 2**32
        assert not queue.done()
    here.value = (start + 5) % 2**32
    queue.synchronize()
    assert host_bytes(target, 10) == DATA[:10]
    assert ctypes.c_uint32.from_address(answer).value == 77


# ---- events ----


def test_an_event_is_reached_when_all_before_it_is_done(queue: NativeQueue) -> None:
    before = queue.record()
    with Held(queue) as held:
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
    with Held(queue):
        after = queue.record()
        with pytest.raises(VendorError, match="cuEventElapsedTime failed: CUDA_ERROR_NOT_READY"):
            after.seconds_since(before)


@pytest.mark.parametrize("gpu", [GPU, OTHER], ids=lambda gpu: gpu.name)
def test_a_queue_waits_for_an_event_of_another(queue: NativeQueue, memory: Allocations, gpu: object) -> None:
    source, target = device(memory, DATA), memory(HOST)
    other = plugin.device(1 if gpu is OTHER else 0).make_queue()
    with Held(other) as held:
        queue.wait(other.record())
        queue.copy(target, source, 10)
        assert held.begun.wait(60)
        assert not queue.done()
        assert host_bytes(target, 10) == bytes(10)
    queue.synchronize()
    assert host_bytes(target, 10) == DATA[:10]
    other.close()


def test_python_runs_on_while_a_thread_waits(queue: NativeQueue) -> None:
    with Held(queue) as held:
        waits: list[Callable[[], object]] = [queue.record().wait, queue.synchronize, GPU.synchronize]
        threads = [threading.Thread(target=wait) for wait in waits]
        for thread in threads:
            thread.start()
        assert all(thread.is_alive() for thread in threads)
        held.release()
        for thread in threads:
            thread.join()


def test_events_are_recorded_again(standin: StandIn, queue: NativeQueue) -> None:
    kept = [queue.record() for _ in range(5)]
    standin.configure()
    del kept[1:]
    for _ in range(4):
        kept.append(queue.record())
    assert standin.calls("cuEventCreate") == []
    assert len({call.split()[1] for call in standin.calls("cuEventRecord")}) == 4


def test_few_spare_events_are_kept(standin: StandIn, queue: NativeQueue) -> None:
    events = [queue.record() for _ in range(200)]
    assert live()["events"] >= 200
    standin.configure()
    del events
    assert standin.calls() == [], "whatever ends may end anywhere, and so calls nothing that may wait"
    for _ in range(200):
        queue.record()
    assert live()["events"] <= 66


def test_an_event_that_cannot_be_destroyed_is_kept(standin: StandIn, queue: NativeQueue) -> None:
    events = [queue.record() for _ in range(100)]
    del events
    before = live()["events"]
    standin.configure("fail=cuEventDestroy:1:999")
    queue.record()
    assert live()["events"] == before
    queue.record()
    assert live()["events"] == before - 1


def test_an_event_recorded_again_does_not_mislead_who_waits_for_its_first_point(
    standin: StandIn, queue: NativeQueue, memory: Allocations
) -> None:
    source, target, other, third = device(memory, DATA), memory(HOST), GPU.make_queue(), GPU.make_queue()
    with Held(queue) as held, Held(other) as other_held:
        other.wait(queue.record())  # and the event is free to be recorded again
        third.wait(other.record())
        queue.record()
        third.copy(target, source, 10)
        other_held.release()
        assert not third.done()
        held.release()
        third.synchronize()
        assert queue.done()
    assert host_bytes(target, 10) == DATA[:10]
    other.close()
    third.close()


# ---- contexts ----


def submit_all(queue: NativeQueue, ptr: int, there: int) -> None:
    """Every kind of work."""
    queue.copy(there, ptr, 8)
    queue.copy_2d(there, 8, ptr, 8, 4, 2)
    queue.fill(there, b"\1", 8)
    queue.call(ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p).value or 0, 0)
    queue.write_value(ptr, 5)
    queue.wait_value(ptr, 5)
    event = queue.record()
    queue.wait(event)
    event.wait()
    assert event.done()
    event.seconds_since(event)
    queue.synchronize()
    assert queue.done()


def test_a_stream_of_our_own_needs_no_context(standin: StandIn, queue: NativeQueue, memory: Allocations) -> None:
    ptr, there = memory(HOST), memory(DEVICE)
    spare = [queue.record(), queue.record()]
    del spare
    standin.configure()
    threads = [threading.Thread(target=submit_all, args=(queue, ptr, there))]
    for thread in threads:
        thread.start()
        thread.join()
    assert [call for call in standin.calls() if "Ctx" in call] == []


def test_a_driver_that_wants_the_context_of_the_stream_gets_it(
    standin: StandIn, queue: NativeQueue, memory: Allocations
) -> None:
    ptr, there = memory(HOST), memory(DEVICE)
    standin.configure("streams_want_context")
    submit_all(queue, ptr, there)
    assert len(standin.calls("cuMemcpyAsync")) == 2  # refused, and repeated
    standin.configure("streams_want_context")
    submit_all(queue, ptr, there)
    assert len(standin.calls("cuMemcpyAsync")) == 1  # once is enough
    assert int(cuda.cuCtxGetCurrent()[1]) == 0


@pytest.mark.parametrize("handle", [None, 0, 1, 2], ids=["own", "0", "1", "2"])
@pytest.mark.parametrize("settings", ["", "streams_want_context"])
def test_another_librarys_context_is_left_current(
    standin: StandIn, memory: Allocations, handle: int | None, settings: str
) -> None:
    ptr, there = memory(HOST), memory(DEVICE)
    (_, theirs) = cuda.cuDevicePrimaryCtxRetain(3)
    cuda.cuCtxPushCurrent(theirs)
    queue = GPU.make_queue() if handle is None else GPU.adopt_queue(handle)
    standin.configure(settings)
    submit_all(queue, ptr, there)
    with pytest.raises(VendorError):
        queue.fill(there + 1, b"\1\1", 8)
    queue.close()
    assert int(cuda.cuCtxGetCurrent()[1]) == int(theirs)
    cuda.cuCtxPopCurrent()
    cuda.cuDevicePrimaryCtxRelease(3)


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_a_default_stream_is_that_of_its_gpu_whichever_context_is_current(standin: StandIn, handle: int) -> None:
    ours, theirs = GPU.adopt_queue(handle), OTHER.adopt_queue(handle)
    assert ours.handle == handle
    (_, context) = cuda.cuDevicePrimaryCtxRetain(1)
    cuda.cuCtxPushCurrent(context)
    with Held(ours) as held:
        assert held.begun.wait(60)
        assert theirs.done()
        assert not ours.done()
    cuda.cuCtxPopCurrent()
    cuda.cuDevicePrimaryCtxRelease(1)
    ours.synchronize()


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_a_default_stream_whose_context_is_current_needs_no_other(
    standin: StandIn, memory: Allocations, handle: int
) -> None:
    ptr, there, queue = memory(HOST), memory(DEVICE), GPU.adopt_queue(handle)
    spare = [queue.record(), queue.record()]
    del spare
    (_, context) = cuda.cuDevicePrimaryCtxRetain(0)
    cuda.cuCtxPushCurrent(context)
    standin.configure()
    submit_all(queue, ptr, there)
    assert standin.calls("cuCtxPushCurrent") == []
    standin.configure("fail=cuCtxGetCurrent:1:999")
    queue.copy(there, ptr, 8)
    assert len(standin.calls("cuCtxPushCurrent")) == 1
    cuda.cuCtxPopCurrent()
    cuda.cuDevicePrimaryCtxRelease(0)


# ---- adopted and closed ----


def test_an_adopted_stream_stays(standin: StandIn) -> None:
    owner = GPU.make_queue()
    adopted = GPU.adopt_queue(owner.handle)
    assert adopted.handle == owner.handle
    with Held(adopted):
        assert not owner.done()
    adopted.record()
    adopted.close()
    assert left() == {"streams": 1, "allocations": 0}
    owner.synchronize()
    owner.close()


def test_a_stream_of_another_gpu_is_not_adopted(standin: StandIn) -> None:
    owner = OTHER.make_queue()
    with pytest.raises(PinningError, match=f"stream {owner.handle:#x} is on cuda:1, not on cuda:0"):
        GPU.adopt_queue(owner.handle)
    assert int(cuda.cuCtxGetCurrent()[1]) == 0
    owner.close()


def test_what_is_submitted_is_still_done_after_the_close(standin: StandIn, memory: Allocations) -> None:
    source, target, queue = device(memory, DATA), memory(HOST), GPU.make_queue()
    with Held(queue) as held:
        queue.copy(target, source, 10)
        event = queue.record()
        queue.close()
        assert live()["streams"] == 0
        assert not event.done()
        held.release()
        event.wait()
    assert host_bytes(target, 10) == DATA[:10]


def test_a_closed_queue_says_so_and_the_driver_is_not_asked(standin: StandIn, memory: Allocations) -> None:
    ptr, there, queue = memory(HOST), memory(DEVICE), GPU.make_queue()
    event = queue.record()
    queue.close()
    queue.close()
    standin.configure()
    for act in (
        lambda: queue.copy(there, ptr, 8),
        lambda: queue.copy_2d(there, 8, ptr, 8, 4, 2),
        lambda: queue.fill(there, b"\1", 8),
        lambda: queue.call(1, 0),
        lambda: queue.write_value(ptr, 5),
        lambda: queue.wait_value(ptr, 5),
        lambda: queue.write_then_wait(ptr, 5, ptr, 5),
        lambda: queue.wait(event),
        lambda: queue.done(),
        lambda: queue.synchronize(),
        lambda: queue.record(),
    ):
        with pytest.raises(PinningError, match="this CUDA queue is closed"):
            act()
    assert {call.split()[0] for call in standin.calls()} <= {
        *("cuEventCreate", "cuEventDestroy", "cuCtxPushCurrent", "cuCtxPopCurrent")
    }


def test_a_queue_is_closed_while_others_ask(standin: StandIn) -> None:
    # The stand-in ends the process, as the driver does, when it is asked about a stream that is gone.
    for _ in range(30):
        queue, begun = GPU.make_queue(), threading.Barrier(5)

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
            assert all("this CUDA queue is closed" in each.result() for each in asking)


def test_a_queue_that_is_dropped_is_given_back(standin: StandIn) -> None:
    queue = GPU.make_queue()
    queue.record()
    del queue
    gc.collect()
    assert left() == {"streams": 0, "allocations": 0}


# ---- failures ----


@pytest.mark.parametrize("what", ["copy", "copy_2d", "fill", "call", "write_value", "wait_value", "record", "wait"])
def test_each_call_of_a_submission_fails_and_nothing_is_submitted(
    standin: StandIn, memory: Allocations, what: str
) -> None:
    source, target, word, other = host(memory, DATA), memory(HOST), memory(HOST, 4), GPU.make_queue()
    queues: list[NativeQueue] = []
    called: list[int] = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(called.append)
    event = other.record()
    acts: dict[str, Callable[[NativeQueue], object]] = {
        "copy": lambda queue: queue.copy(target, source, 8),
        "copy_2d": lambda queue: queue.copy_2d(target, 8, source, 8, 8, 1),
        "fill": lambda queue: queue.fill(target, DATA[4:8], 2),
        "call": lambda queue: queue.call(ctypes.cast(function, ctypes.c_void_p).value or 0, 7),
        "write_value": lambda queue: queue.write_value(target, 5),
        "wait_value": lambda queue: queue.wait_value(word, 5),
        "record": lambda queue: queue.record(),
        "wait": lambda queue: queue.wait(event),
    }

    def act() -> None:
        queues.append(GPU.make_queue())
        acts[what](queues[-1])

    failures = []
    for call, outcome in each_failure(standin, act):
        if outcome:
            failures.append(call)
            assert (outcome.call, outcome.code, outcome.name) == (call, UNKNOWN, "CUDA_ERROR_UNKNOWN")
        elif what == "wait_value":
            ctypes.c_uint32.from_address(word).value = 5
        for queue in queues:
            if outcome:
                assert queue.done()
            queue.synchronize()
            queue.close()
        assert outcome or what not in ("copy", "copy_2d") or host_bytes(target, 8) == DATA[:8]
        assert not outcome or host_bytes(target, 8) == bytes(8)
        assert not outcome or not called
        ctypes.memset(target, 0, 8)
        called.clear()
        queues.clear()
        ctypes.c_uint32.from_address(word).value = 0
        assert live()["streams"] == 1
    assert any(call.startswith(("cuMem", "cuStreamW", "cuLaunch", "cuEventRecord")) for call in failures), failures
    ctypes.c_uint32.from_address(word).value = 5
    queues[0].synchronize()
    queues[0].close()
    acts.clear()
    other.close()


def test_each_call_of_making_and_closing_fails(standin: StandIn) -> None:
    queues: list[NativeQueue] = []
    failed = {}
    for call, outcome in each_failure(standin, lambda: queues.append(GPU.make_queue())):
        failed[call] = outcome and outcome.call
        assert live()["streams"] == len(queues) == (0 if outcome else 1)
        queues.clear()
    assert failed == {
        "cuCtxGetCurrent": None,  # the context is pushed then
        "cuCtxPushCurrent": "cuCtxPushCurrent",
        "cuStreamCreate": "cuStreamCreate",
        "cuCtxPopCurrent": None,
    }

    (queue,) = queues
    queue.record()
    failed = {}
    for call, outcome in each_failure(standin, queue.close):
        failed[call] = outcome and outcome.call
        if outcome:  # still open
            queue.copy(1, 1, 0)
            assert live()["streams"] == 1
    assert failed == {"cuStreamDestroy": "cuStreamDestroy"}
    del queue
    queues.clear()
    assert left() == {"streams": 0, "allocations": 0}


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
        "adopt": lambda: GPU.adopt_queue(queue.handle),
    }
    failed = 0
    for call, outcome in each_failure(standin, acts[what]):
        failed += outcome is not None
        assert (outcome and (outcome.call, outcome.code)) == (None if call in UNHEARD else (call, UNKNOWN))
    assert failed


@pytest.mark.parametrize("lost", ["work:1:700", "cuMemcpyAsync:2:719", "cuEventRecord:1:719"])
def test_a_lost_gpu_ends_all_waits_and_leaves_nothing(standin: StandIn, memory: Allocations, lost: str) -> None:
    source, there, queue = host(memory, DATA), memory(DEVICE), GPU.make_queue()
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
        GPU.make_queue,
        GPU.synchronize,
        lambda: GPU.free(there),
        queue.close,
    ):
        is_lost(act)
    standin.configure()  # as if it came back, so that the end can be seen
    queue.close()
    assert live()["streams"] == 0


def test_a_gpu_that_is_lost_while_a_thread_waits(standin: StandIn, queue: NativeQueue) -> None:
    seen: list[VendorError] = []

    def wait() -> None:
        try:
            event.wait()
        except VendorError as error:
            seen.append(error)

    other = GPU.make_queue()
    with Held(queue):
        event = queue.record()
        thread = threading.Thread(target=wait)
        thread.start()
        while not standin.calls("cuEventSynchronize"):
            pass
        standin.configure("lost=cuStreamQuery:1:700")
        with pytest.raises(VendorError):
            other.done()
        thread.join()
    assert [(error.call, error.code) for error in seen] == [("cuEventSynchronize", 700)]
    standin.configure()
    other.close()


# ---- the life of a process ----


def test_a_forks_queues_do_nothing_and_say_so(standin: StandIn, queue: NativeQueue, memory: Allocations) -> None:
    source, there, event = host(memory, DATA), memory(DEVICE), queue.record()
    event.wait()
    default = GPU.adopt_queue(0)
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
        lambda: default.copy(there, source, 8),
        default.record,
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


@pytest.mark.parametrize("end", ["", "queue.close()", "import os; os.kill(os.getpid(), 9)"])
def test_a_process_ends_with_queues_and_events_open(standin: StandIn, end: str) -> None:
    program = f"""
import threading
from pinning_cuda import plugin
queue = plugin.device(0).make_queue()
events = [queue.record() for _ in range(3)]
cycle = [queue, queue.record()]
cycle.append(cycle)
word = plugin.device(0).allocate(4, __import__("pinning.plugin").plugin.MemoryKind.HOST)
queue.wait_value(word, 5)  # never
plugin.device(1).adopt_queue(0).record()
{end}
"""
    child = subprocess.run([sys.executable, "-P", "-c", program], text=True, capture_output=True, timeout=300)
    assert child.stderr == ""
    assert child.returncode == (-9 if "kill" in end else 0)


def test_many_threads(standin: StandIn, memory: Allocations) -> None:
    source, there = host(memory, DATA), memory(DEVICE, 8 * 64)

    def work(index: int) -> None:
        queue = GPU.make_queue()
        for _ in range(50):
            queue.copy(there + 64 * index, source, 64)
            event = queue.record()
            queue.wait(event)
            event.wait()
        queue.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert live()["streams"] == 0

# SPDX-License-Identifier: Apache-2.0
"""Queues and events: order, what the runtime is asked, the current device, failures, and what is left at the end.

A stand-in checks the ABI and the sequence of calls, not a real runtime's semantics.
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
from failing import UNKNOWN, each_failure

from hip import hip
from holding import Buffer, Held, host_bytes
from mapped_memory import PAGE, Memory
from pinning.errors import PinningError, PluginUnavailableError, VendorError
from pinning.plugin import MemoryKind
from pinning.plugin.native import NativeEvent, NativeQueue
from pinning_hip import HipDevice, plugin
from standins.libhip import left, live
from standins.standin import StandIn

HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED
GPU = plugin.device(0)
OTHER = plugin.device(1)
FREE = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p).value or 0  # of null, which does nothing

DATA = bytes(range(256)) * 4
NOTHING = {"streams": 0, "allocations": 0}


@pytest.fixture
def queue(standin: StandIn) -> Iterator[NativeQueue]:
    queue = GPU.make_queue()
    yield queue
    queue.close()


class Allocations:
    """Memory that goes at the end of a test."""

    def __init__(self) -> None:
        self._made: list[tuple[int, MemoryKind]] = []

    def __call__(self, kind: MemoryKind, data: bytes = bytes(len(DATA))) -> int:
        ptr = GPU.allocate(len(data), kind)
        self._made.append((ptr, kind))
        buffer = Buffer(data)
        GPU.copy(ptr, buffer.ptr, len(data))
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


def test_a_copy_past_the_end_of_a_lock_is_refused_as_the_runtime_does(queue: NativeQueue, memory: Allocations) -> None:
    pages, there = Memory(2), memory(DEVICE, bytes(2 * PAGE))
    GPU.data_lock(pages.ptr, PAGE, False)
    with pytest.raises(VendorError) as raised:
        queue.copy(there, pages.ptr, 2 * PAGE)
    assert (raised.value.call, raised.value.code, raised.value.name) == ("hipMemcpyAsync", 1, "hipErrorInvalidValue")
    assert queue.done()
    GPU.data_unlock(pages.ptr)


def test_functions_are_called_in_their_turn_and_work_waits_for_them(queue: NativeQueue, memory: Allocations) -> None:
    source, target = memory(DEVICE, DATA), memory(HOST)
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


def test_functions_are_called_without_the_gil(queue: NativeQueue) -> None:
    libc = ctypes.CDLL(None)
    lock = ctypes.create_string_buffer(64)  # a pthread_mutex_t, all zero: unlocked
    libc.pthread_mutex_lock(lock)
    queue.call(ctypes.cast(libc.pthread_mutex_lock, ctypes.c_void_p).value or 0, ctypes.addressof(lock))
    event = queue.record()
    assert not event.done()
    libc.pthread_mutex_unlock(lock)
    event.wait()


# ---- values ----


def test_a_queue_waits_for_a_word_of_the_host_and_writes_one(queue: NativeQueue, memory: Allocations) -> None:
    source, target = memory(DEVICE, DATA), memory(HOST)
    word, answer = memory(HOST, bytes(4)), memory(HOST, bytes(4))
    here = ctypes.c_uint32.from_address(word)
    assert queue.waits_for_values
    queue.wait_value(word, 3)
    queue.copy(target, source, 10)
    queue.write_value(answer, 77)
    for step in (1, 2):
        here.value = step
        assert not queue.done()
    here.value = 5
    queue.synchronize()
    assert host_bytes(target, 10) == DATA[:10]
    assert ctypes.c_uint32.from_address(answer).value == 77


def test_the_scale_of_values_ends_where_it_would_wrap(
    standin: StandIn, queue: NativeQueue, memory: Allocations
) -> None:
    word = memory(HOST, bytes(4))
    ctypes.c_uint32.from_address(word).value = 2**31 - 1
    queue.wait_value(word, 2**31 - 1)
    queue.synchronize()
    standin.configure()
    with pytest.raises(PinningError, match=r"hip:0 cannot wait until a word has reached 2147483648.*do not wrap"):
        queue.wait_value(word, 2**31)
    assert standin.calls() == []


@pytest.mark.parametrize(
    ("index", "lacking"), [(4, "no_wait_value"), (5, "signal_memory_only"), (6, "fail=hipStreamWaitValue32:1:801")]
)
def test_a_gpu_that_cannot_wait_for_values_says_so(
    standin: StandIn, memory: Allocations, index: int, lacking: str
) -> None:
    word = memory(HOST, bytes(4))
    standin.configure(lacking)
    queue = plugin.device(index).make_queue()  # the first one of this GPU
    assert not queue.waits_for_values
    assert live()["streams"] == 1
    for act in (lambda: queue.wait_value(word, 1), lambda: queue.write_value(word, 1)):
        with pytest.raises(PinningError, match=rf"queues of hip:{index} cannot wait for values.*use events"):
            act()
    queue.fill(word, b"\1", 4)
    queue.synchronize()
    assert host_bytes(word, 4) == b"\1" * 4


def test_whether_a_gpu_waits_for_values_is_found_out_once(standin: StandIn) -> None:
    gpu = plugin.device(2)
    queues = [gpu.make_queue(), gpu.make_queue(), gpu.adopt_queue(0)]
    assert all(queue.waits_for_values for queue in queues)
    assert len(standin.calls("hipStreamWaitValue32")) == 1


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
        with pytest.raises(VendorError, match="hipEventElapsedTime failed: hipErrorNotReady"):
            after.seconds_since(before)


@pytest.mark.parametrize("gpu", [GPU, OTHER], ids=lambda gpu: gpu.name)
def test_a_queue_waits_for_an_event_of_another(queue: NativeQueue, memory: Allocations, gpu: HipDevice) -> None:
    source, target, other = memory(DEVICE, DATA), memory(HOST), gpu.make_queue()
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
    assert standin.calls("hipEventCreateWithFlags") == []
    assert len({call.split()[1] for call in standin.calls("hipEventRecord")}) == 4


# ---- the current device ----


def submit_all(queue: NativeQueue, ptr: int, there: int) -> None:
    """Every kind of work."""
    queue.copy(there, ptr, 8)
    queue.copy_2d(there, 8, ptr, 8, 4, 2)
    queue.fill(there, b"\1", 8)
    queue.call(FREE, 0)
    queue.write_value(ptr, 5)
    queue.wait_value(ptr, 5)
    event = queue.record()
    queue.wait(event)
    event.wait()
    assert event.done()
    event.seconds_since(event)
    queue.synchronize()
    assert queue.done()


@pytest.mark.parametrize("handle", [None, 0, 2], ids=["own", "0", "2"])
def test_the_current_device_of_the_thread_is_left(standin: StandIn, memory: Allocations, handle: int | None) -> None:
    ptr, there = memory(HOST), memory(DEVICE)
    hip.hipSetDevice(3)
    queue = GPU.make_queue() if handle is None else GPU.adopt_queue(handle)
    submit_all(queue, ptr, there)
    assert hip.hipGetDevice()[1] == 3
    with pytest.raises(VendorError):
        queue.fill(there + 1, b"\1\1", 8)
    queue.close()
    assert hip.hipGetDevice()[1] == 3
    hip.hipSetDevice(0)


@pytest.mark.parametrize("handle", [0, 2])
def test_a_default_stream_is_that_of_its_gpu_whichever_is_current(standin: StandIn, handle: int) -> None:
    ours, theirs = GPU.adopt_queue(handle), OTHER.adopt_queue(handle)
    assert ours.handle == handle
    hip.hipSetDevice(1)
    with Held(ours) as held:
        assert held.begun.wait(60)
        theirs.synchronize()
        assert not ours.done()
    hip.hipSetDevice(0)
    ours.synchronize()


# ---- adopted and closed ----


def test_an_adopted_stream_stays(standin: StandIn) -> None:
    owner = GPU.make_queue()
    adopted = GPU.adopt_queue(owner.handle)
    assert adopted.handle == owner.handle
    with Held(adopted):
        assert not owner.done()
    adopted.close()
    assert left() == {"streams": 1, "allocations": 0}
    owner.synchronize()
    owner.close()


def test_a_stream_of_another_gpu_is_not_adopted(standin: StandIn) -> None:
    owner = OTHER.make_queue()
    with pytest.raises(PinningError, match=f"stream {owner.handle:#x} is not on hip:0"):
        GPU.adopt_queue(owner.handle)
    with pytest.raises(VendorError, match="hipErrorContextIsDestroyed"):
        GPU.adopt_queue(owner.handle + 1)
    owner.close()


def test_a_closed_queue_says_so_and_the_runtime_is_not_asked(standin: StandIn, memory: Allocations) -> None:
    ptr, there, queue = memory(HOST), memory(DEVICE), GPU.make_queue()
    event = queue.record()
    queue.close()
    queue.close()
    standin.configure()
    for act in (
        lambda: queue.copy(there, ptr, 8),
        lambda: queue.copy_2d(there, 8, ptr, 8, 4, 2),
        lambda: queue.fill(there, b"\1", 8),
        lambda: queue.call(FREE, 0),
        lambda: queue.write_value(ptr, 5),
        lambda: queue.wait_value(ptr, 5),
        lambda: queue.wait(event),
        queue.done,
        queue.synchronize,
        queue.record,
    ):
        with pytest.raises(PinningError, match="this HIP queue is closed"):
            act()
    assert {call.split()[0] for call in standin.calls()} <= {
        *("hipEventCreateWithFlags", "hipEventDestroy", "hipGetDevice")
    }


def test_a_queue_that_is_dropped_is_given_back(standin: StandIn) -> None:
    queue = GPU.make_queue()
    queue.record()
    del queue
    gc.collect()
    assert left() == NOTHING


# ---- failures ----


@pytest.mark.parametrize("what", ["copy", "copy_2d", "fill", "call", "write_value", "wait_value", "record", "wait"])
def test_each_call_of_a_submission_fails_and_nothing_is_submitted(
    standin: StandIn, memory: Allocations, what: str
) -> None:
    source, target, word, other = memory(HOST, DATA), memory(HOST), memory(HOST, bytes(4)), GPU.make_queue()
    called: list[int] = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(called.append)
    event, kept = other.record(), list[NativeEvent]()
    acts: dict[str, Callable[[NativeQueue], object]] = {
        "copy": lambda queue: queue.copy(target, source, 8),
        "copy_2d": lambda queue: queue.copy_2d(target, 8, source, 8, 8, 1),
        "fill": lambda queue: queue.fill(target, DATA[4:8], 2),
        "call": lambda queue: queue.call(ctypes.cast(function, ctypes.c_void_p).value or 0, 7),
        "write_value": lambda queue: queue.write_value(target, 5),
        "wait_value": lambda queue: queue.wait_value(word, 0),
        "record": lambda queue: kept.append(queue.record()),
        "wait": lambda queue: queue.wait(event),
    }
    queue = GPU.make_queue()
    failures = set()
    for call, outcome in each_failure(standin, lambda: acts[what](queue)):
        queue.synchronize()
        kept.append(queue.record())  # so that there is never a spare one
        if outcome:
            failures.add(call)
            assert (outcome.call, outcome.code, outcome.name) == (call, UNKNOWN, "hipErrorUnknown")
            assert host_bytes(target, 8) == bytes(8)
            assert not called
        ctypes.memset(target, 0, 8)
        called.clear()
    queue.synchronize()
    assert any(call.startswith(("hipMem", "hipStreamW", "hipLaunch", "hipEventRecord")) for call in failures), failures
    assert what in ("wait_value", "record", "wait") or called or host_bytes(target, 8) != bytes(8)
    queue.close()
    other.close()


def test_each_call_of_making_a_queue_fails(standin: StandIn) -> None:
    queues: list[NativeQueue] = []
    failed = set()
    for call, outcome in each_failure(standin, lambda: queues.append(GPU.make_queue())):
        failed.add((call, bool(outcome)))
        assert live()["streams"] == len(queues) == (0 if outcome else 1)
        queues.clear()
    assert failed >= {("hipGetDevice", True), ("hipSetDevice", True), ("hipStreamCreateWithFlags", True)}


def test_each_call_of_finding_out_about_values_fails(standin: StandIn) -> None:
    gpu = plugin.device(3)
    for call in (
        *("hipDeviceGetAttribute", "hipHostMalloc", "hipStreamCreateWithFlags", "hipStreamWaitValue32"),
        *("hipStreamWriteValue32", "hipStreamSynchronize", "hipStreamDestroy"),
    ):
        standin.configure(f"fail={call}:1:{UNKNOWN}")
        with pytest.raises(VendorError) as raised:
            gpu.make_queue()
        assert (raised.value.call, raised.value.code) == (call, UNKNOWN)
        assert left() == NOTHING
    assert gpu.make_queue().waits_for_values  # nothing was concluded from that


def test_each_call_of_closing_fails(standin: StandIn) -> None:
    queue = GPU.make_queue()
    queue.record()
    failed = {}
    for call, outcome in each_failure(standin, queue.close):
        failed[call] = bool(outcome)
        if outcome:  # still open
            queue.synchronize()
            assert live()["streams"] == 1
    assert failed["hipStreamDestroy"]
    del queue
    gc.collect()
    assert left() == NOTHING


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
        failed += bool(outcome)
        assert not outcome or (outcome.call, outcome.code) == (call, UNKNOWN)
        # Nothing can be done about these.
        assert outcome or call in ("hipSetDevice", "hipEventDestroy", "hipGetLastError")
    assert failed


@pytest.mark.parametrize("lost", ["work:1:700", "hipMemcpyAsync:2:719", "hipEventRecord:1:719"])
def test_a_lost_gpu_ends_all_waits_and_leaves_nothing(standin: StandIn, memory: Allocations, lost: str) -> None:
    source, there, queue = memory(HOST, DATA), memory(DEVICE), GPU.make_queue()
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
from pinning_hip import plugin
queue = plugin.device(0).make_queue()
events = [queue.record() for _ in range(3)]
cycle = [queue, queue.record()]
cycle.append(cycle)
plugin.device(1).adopt_queue(0).record()
{end}
"""
    child = subprocess.run([sys.executable, "-P", "-c", program], text=True, capture_output=True, timeout=300)
    assert (child.stderr, child.returncode) == ("", 0)

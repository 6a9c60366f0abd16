# SPDX-License-Identifier: Apache-2.0
"""Queues and events: order, calls to the runtime, failures, and what is left at the end.

The stand-in ends the process if a signal is reused too early, and, as the header says, never begins a copy that waits
for a failed one.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_device import Background
from mapped_memory import PAGE, Memory
from own_process import run
from pinning.conformance.allocations import DATA, Allocations
from pinning.conformance.faults import eventually
from pinning.conformance.holding import Buffer, HeldQueue, host_bytes
from pinning.errors import PinningError, VendorError
from pinning.plugin import MemoryKind
from pinning.plugin.native import NativeQueue
from pinning_hsa import plugin
from standins.libhsa import FAULTS, live
from standins.standin import StandIn

HOST, DEVICE = MemoryKind.HOST, MemoryKind.DEVICE
GPU = plugin.device(0)
FAILURE, _ = FAULTS.failure
FATAL = 0x1026  # HSA_STATUS_ERROR_FATAL
COPY, RECTANGLE, ANY_COPY = "hsa_amd_memory_async_copy", "hsa_amd_memory_async_copy_rect", "hsa_memory_copy"


# ---- work ----


@pytest.mark.parametrize("configuration", ["", "svm"], ids=["userptr", "svm"])
def test_locked_memory_is_copied_by_either_of_its_addresses(
    standin: StandIn, queue: NativeQueue, memory: Allocations, configuration: str
) -> None:
    standin.configure(configuration)
    pages, there = Memory(1), memory(DEVICE)
    ctypes.memmove(pages.ptr, DATA, len(DATA))
    device_ptr = GPU.data_lock(pages.ptr, PAGE, False)
    queue.copy(there, pages.ptr, 100)
    queue.copy(device_ptr + 2000, there, 100)
    queue.fill(device_ptr + 2100, b"\7", 100)
    queue.synchronize()
    assert host_bytes(pages.ptr + 2000, 200) == DATA[:100] + b"\7" * 100
    assert len(standin.calls(COPY)) == 2
    GPU.data_unlock(pages.ptr)


def test_the_copies_of_a_queue_wait_for_one_another_in_the_engines(
    standin: StandIn, queue: NativeQueue, memory: Allocations
) -> None:
    source, target, there = memory(HOST, DATA), memory(HOST), memory(DEVICE)
    standin.configure("slow_copy")
    for at in range(0, 1000, 100):
        queue.copy(there + at, source + at, 100)
        queue.copy(target + at, there + at, 100)
    assert [call.split()[-1] for call in standin.calls(COPY)] == ["0", *["1"] * 19]  # how many signals each waits for
    assert not queue.done()
    standin.configure()
    queue.synchronize()
    assert host_bytes(target, 1000) == DATA[:1000]


def test_pageable_memory_is_copied_by_the_runtime_and_nobody_waits(
    standin: StandIn, queue: NativeQueue, memory: Allocations
) -> None:
    source, target, there = Buffer(DATA), Buffer(bytes(len(DATA))), memory(DEVICE)
    standin.configure()
    with HeldQueue(queue):
        queue.copy(there, source.ptr, len(DATA))
        queue.copy(target.ptr, there, len(DATA))
        assert standin.calls(ANY_COPY) == []
    queue.synchronize()
    assert target.bytes_ == DATA
    assert len(standin.calls(ANY_COPY)) == 2
    assert standin.calls(COPY) == []


def test_memory_of_which_a_part_is_locked_is_copied_by_the_runtime(
    standin: StandIn, queue: NativeQueue, memory: Allocations
) -> None:
    pages, there = Memory(2), memory(DEVICE, bytes(2 * PAGE))
    GPU.data_lock(pages.ptr, PAGE, False)
    standin.configure()
    queue.copy(there, pages.ptr, 2 * PAGE)
    queue.synchronize()
    assert len(standin.calls(ANY_COPY)) == 1
    GPU.data_unlock(pages.ptr)


@pytest.mark.parametrize(
    ("pitches", "offset", "settings", "rectangles", "copies"),
    [
        ((64, 16), 0, "", 1, 0),
        ((64, 16), 0, "no_rect", 1, 5),  # engines without the command
        ((64, 18), 0, "", 0, 5),
        ((62, 16), 0, "", 0, 5),
        ((64, 16), 1, "", 0, 5),
    ],
)
def test_rows(
    standin: StandIn,
    queue: NativeQueue,
    memory: Allocations,
    pitches: tuple[int, int],
    offset: int,
    settings: str,
    rectangles: int,
    copies: int,
) -> None:
    source, target, there = memory(HOST, DATA), memory(HOST), memory(DEVICE)
    here, over = pitches
    standin.configure(settings)
    queue.copy_2d(there, over, source + offset, here, 10, 5)
    assert (len(standin.calls(RECTANGLE)), len(standin.calls(COPY))) == (rectangles, copies)
    queue.copy_2d(target, 100, there, over, 10, 5)
    queue.synchronize()
    expected = bytearray(len(DATA))
    for row in range(5):
        expected[100 * row : 100 * row + 10] = DATA[offset + here * row : offset + here * row + 10]
    assert host_bytes(target, len(DATA)) == expected


def test_nothing_is_copied(standin: StandIn, queue: NativeQueue, memory: Allocations) -> None:
    there = memory(DEVICE)
    standin.configure()
    queue.copy(there, there, 0)
    queue.copy_2d(there, 8, there, 8, 0, 5)
    queue.copy_2d(there, 8, there, 8, 5, 0)
    queue.synchronize()
    assert standin.calls() == []


VALUES = st.one_of(*(st.binary(min_size=size, max_size=size) for size in (1, 2, 4)))


@settings(max_examples=60, deadline=None)
@given(start=st.integers(0, 9), value=VALUES, count=st.integers(1, 30), kind=st.sampled_from([DEVICE, HOST]))
def test_fills(start: int, value: bytes, count: int, kind: MemoryKind) -> None:
    ptr, queue = GPU.allocate(len(DATA), kind), GPU.make_queue()
    source = Buffer(DATA)
    GPU.copy(ptr, source.ptr, len(DATA))
    queue.fill(ptr + start, value, count)
    queue.synchronize()
    queue.close()
    end = start + len(value) * count
    assert Allocations(GPU).read(ptr, len(DATA)) == DATA[:start] + value * count + DATA[end:]
    GPU.free(ptr, kind)


def test_a_large_fill_is_the_gpus(standin: StandIn, queue: NativeQueue, memory: Allocations) -> None:
    there = memory(DEVICE)
    standin.configure()
    queue.fill(there + 2, b"\x01\x02", 100)
    queue.synchronize()
    assert [call.split()[2:] for call in standin.calls("hsa_amd_memory_fill")] == [["0x2010201", "49"]]
    assert memory.read(there, 204) == bytes(2) + b"\1\2" * 100 + bytes(2)


def test_a_queue_that_is_held_holds_no_engine(standin: StandIn, queue: NativeQueue, memory: Allocations) -> None:
    source, there = memory(HOST, DATA), memory(DEVICE)
    standin.configure()
    with HeldQueue(queue) as held:
        queue.copy(there, source, 10)
        assert held.begun.wait(60)
        assert standin.calls(COPY) == []  # an engine that waited for it would not do the work of other queues
    queue.synchronize()
    assert len(standin.calls(COPY)) == 1


# ---- events ----


def calls_but_waits(standin: StandIn) -> list[str]:
    """The calls except waits: the queue's thread may start a wait for a copy that has already been seen to end."""
    return [call for call in standin.calls() if not call.startswith("hsa_signal_wait")]


def test_events_cost_the_runtime_nothing(standin: StandIn, queue: NativeQueue, memory: Allocations) -> None:
    source, there = memory(HOST, DATA), memory(DEVICE)
    queue.copy(there, source, 10)
    queue.synchronize()
    standin.configure()
    events = [queue.record() for _ in range(100)]
    for event in events:
        queue.wait(event)
        assert event.done()
    assert calls_but_waits(standin) == []


def test_signals_are_used_again_once_nothing_waits_for_them(
    standin: StandIn, queue: NativeQueue, memory: Allocations
) -> None:
    source, there = memory(HOST, DATA), memory(DEVICE)
    standin.configure()
    for _ in range(200):
        queue.copy(there, source, 10)
        queue.record().wait()
    assert len(standin.calls("hsa_signal_create")) < 200  # how many depends on the queue's thread
    events = []
    for _ in range(100):
        queue.copy(there, source, 10)
        events.append(queue.record())
    queue.synchronize()
    assert live()["signals"] >= 100
    del events
    end = time.monotonic() + 30
    while live()["signals"] > 70 and time.monotonic() < end:  # when done, the queue's thread keeps few spare signals
        queue.copy(there, source, 10)
        queue.synchronize()
    assert live()["signals"] <= 70


def test_a_signal_is_not_used_again_while_an_engine_waits_for_it(
    standin: StandIn, queue: NativeQueue, memory: Allocations
) -> None:
    source, there = memory(HOST, DATA), memory(DEVICE)
    standin.configure("slow_copy;slow_poll")
    queue.copy(there, source, 10)
    first = queue.record()
    queue.copy(there + 10, source + 10, 10)
    standin.configure("slow_poll")
    first.wait()
    del first
    time.sleep(0.05)  # long enough for the queue's thread to see it, not for the engine to look again
    for at in (20, 30):
        queue.copy(there + at, source + at, 10)
    queue.synchronize()
    assert memory.read(there, 40) == DATA[:40]


# ---- closed, adopted ----


def test_a_queue_of_hsas_own_is_not_adopted(standin: StandIn) -> None:
    with pytest.raises(PinningError, match=r"hsa:0 cannot adopt the queue 0xabc.*pinning.Queue.*plugin hip"):
        GPU.adopt_queue(0xABC)
    assert standin.calls() == []


def test_a_queue_that_is_dropped_ends_when_its_work_does(standin: StandIn, memory: Allocations) -> None:
    source, there, queue = memory(HOST, DATA), memory(DEVICE), GPU.make_queue()
    standin.configure("slow_copy")
    queue.copy(there, source, 10)
    del queue
    gc.collect()
    assert live()["signals"] == 1
    standin.configure()
    GPU.synchronize()
    assert memory.read(there, 10) == DATA[:10]


# ---- failures ----


FILL, ASK, MAKE = "hsa_amd_memory_fill", "hsa_amd_pointer_info", "hsa_signal_create"
CALLS = {
    "copy": [ASK, MAKE, COPY],
    "copy_2d": [ASK, MAKE, COPY],
    "pageable": [ASK, MAKE, ANY_COPY],
    "fill": [ASK, MAKE, FILL, ANY_COPY],
    "call": [MAKE],
    "write_value": [MAKE],
}


@pytest.mark.parametrize("held", [False, True], ids=["idle", "held"])
@pytest.mark.parametrize(("what", "call"), [(what, call) for what, calls in CALLS.items() for call in calls])
def test_each_call_of_work_fails_and_the_queue_goes_on(
    standin: StandIn, memory: Allocations, what: str, call: str, held: bool
) -> None:
    source, there, target, queue = memory(HOST, DATA), memory(DEVICE), memory(HOST), GPU.make_queue()
    called: list[int] = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(called.append)
    pageable = Buffer(bytes(8))
    acts: dict[str, Callable[[], object]] = {
        "copy": lambda: queue.copy(there, source, 8),
        "copy_2d": lambda: queue.copy_2d(there, 8, source, 8, 2, 4),
        "pageable": lambda: queue.copy(there, pageable.ptr, 8),
        "fill": lambda: queue.fill(there + 1, DATA[4:8], 2),
        "call": lambda: queue.call(ctypes.cast(function, ctypes.c_void_p).value or 0, 7),
        "write_value": lambda: queue.write_value(there, 5),
    }

    def act() -> None:
        standin.configure(f"no_rect;fail={call}:1:{FAILURE}")
        acts[what]()
        queue.record().wait()

    with HeldQueue(queue) if held else contextlib.nullcontext() as holding:
        if holding:
            threading.Timer(0.05, holding.release).start()  # `act` waits
        with pytest.raises(VendorError) as raised:
            act()
    assert (raised.value.call, raised.value.code) == (call, FAILURE)
    assert not called
    queue.copy(there, source, 8)
    queue.copy(target, there, 8)
    queue.synchronize()
    assert host_bytes(target, 8) == DATA[:8]
    queue.close()


def test_rows_of_which_one_is_refused(standin: StandIn, queue: NativeQueue, memory: Allocations) -> None:
    source, there = memory(HOST, DATA), memory(DEVICE)
    standin.configure(f"no_rect;fail={COPY}:3:{FAILURE}")
    with pytest.raises(VendorError, match="HSA_STATUS_ERROR_OUT_OF_RESOURCES"):
        queue.copy_2d(there, 8, source, 8, 8, 5)
    queue.synchronize()  # the rows before it are complete
    assert memory.read(there, 40) == DATA[:16] + bytes(24)


def test_a_copy_that_fails_under_way_reaches_its_event_and_the_queue_goes_on(
    standin: StandIn, queue: NativeQueue, memory: Allocations
) -> None:
    source, there, target = memory(HOST, DATA), memory(DEVICE), memory(HOST)
    standin.configure("slow_copy;failing_copy")
    queue.copy(there, source, 10)
    queue.copy(there, source, 10)
    failing = queue.record()
    standin.configure("slow_copy")
    queue.copy(there, source, 10)  # waits for a copy that fails
    queue.copy(target, there, 10)
    working = queue.record()
    standin.configure()
    for _ in range(2):
        with pytest.raises(VendorError, match="signal is negative"):
            failing.wait()
        with pytest.raises(VendorError, match="signal is negative"):
            failing.done()
    working.wait()
    queue.synchronize()
    assert host_bytes(target, 10) == DATA[:10]


def test_a_queue_tells_what_has_failed_once(standin: StandIn, queue: NativeQueue, memory: Allocations) -> None:
    source, there = memory(HOST, DATA), memory(DEVICE)
    standin.configure("failing_copy")
    queue.copy(there, source, 10)
    with pytest.raises(VendorError, match="signal is negative"):
        queue.synchronize()
    assert queue.done()
    queue.synchronize()


def test_what_fails_after_the_queue_was_polled_is_told_too(
    standin: StandIn, queue: NativeQueue, memory: Allocations
) -> None:
    source, there = memory(HOST, DATA), memory(DEVICE)
    standin.configure("failing_copy")
    with HeldQueue(queue) as held:
        queue.copy(there, source, 10)
        assert not queue.done()
        held.release()
        with pytest.raises(VendorError, match="signal is negative"):
            queue.synchronize()
    assert queue.done()


def test_failed_work_is_released_without_the_garbage_collector(standin: StandIn, memory: Allocations) -> None:
    source, there = memory(HOST, DATA), memory(DEVICE)
    standin.configure(f"failing_copy;fail={FILL}:1:{FAILURE}")

    def work(queue: NativeQueue) -> None:
        for act in (lambda: queue.copy(there, source, 10), lambda: queue.fill(there, b"\1", 8)):
            act()
            with contextlib.suppress(VendorError):
                queue.synchronize()
        queue.close()

    gc.disable()
    try:
        work(GPU.make_queue())
        assert eventually(lambda: live()["signals"] == 0)
    finally:
        gc.enable()


def test_a_lost_runtime_ends_all_waits_and_leaves_nothing(standin: StandIn, memory: Allocations) -> None:
    source, there, queue = memory(HOST, DATA), memory(DEVICE), GPU.make_queue()
    standin.configure(f"slow_copy;lost=hsa_amd_memory_fill:1:{FATAL}")
    queue.copy(there, source, 10)
    copied = queue.record()
    other = GPU.make_queue()
    other.fill(there, b"\1\1\1\1", 4)
    with pytest.raises(VendorError, match="HSA_STATUS_ERROR_FATAL"):
        other.synchronize()
    with pytest.raises(VendorError):
        copied.wait()
    for act in (
        lambda: queue.copy(there, source, 10),
        lambda: queue.fill(there, b"\1", 10),
        lambda: GPU.allocate(10),
        lambda: GPU.free(there),
    ):
        with pytest.raises(VendorError, match="HSA_STATUS_ERROR_FATAL"):
            act()
    queue.close()
    other.close()
    standin.configure()  # as if the runtime came back, so that the cleanup can be checked


def test_there_is_no_thread_to_be_had(standin: StandIn) -> None:
    program = """
import resource
from pathlib import Path
from pinning.errors import VendorError
from pinning_hsa import plugin
gpu = plugin.device(0)
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), resource.RLIM_INFINITY))
try:
    queues = [gpu.make_queue() for _ in range(1000)]  # there may be stacks to use again
except VendorError as error:
    print(error)
"""
    assert re.search(r"pthread_create failed: EAGAIN.*close queues", run(program))


# ---- the life of a process ----


def test_ctrl_c_during_a_submission_leaves_work_that_is_followed(
    standin: StandIn, queue: NativeQueue, memory: Allocations
) -> None:
    source, there = memory(HOST, DATA), memory(DEVICE)
    standin.configure(f"slow_copy;delay={COPY}:300")

    def interrupt() -> None:
        standin.wait_for(COPY)
        os.kill(os.getpid(), 2)

    interrupting = Background(interrupt)
    with pytest.raises(KeyboardInterrupt):
        queue.copy(there, source, 10)
    interrupting.result()
    assert not queue.done()
    standin.configure()
    queue.synchronize()
    assert memory.read(there, 10) == DATA[:10]

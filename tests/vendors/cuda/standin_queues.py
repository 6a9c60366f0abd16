# SPDX-License-Identifier: Apache-2.0
"""Queues and events: order, calls to the driver, contexts, failures, and what is left at the end."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial

import pytest
from cuda.bindings import driver as cuda

from fake_device import Background
from pinning.conformance.allocations import DATA, Allocations
from pinning.conformance.holding import HeldQueue, host_bytes
from pinning.conformance.processes import refusals
from pinning.errors import PinningError, VendorError
from pinning.plugin import MemoryKind
from pinning.plugin.native import NativeQueue
from pinning_cuda import plugin
from standins.libcuda import live
from standins.standin import StandIn
from standins.work import submit_all

HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED
GPU = plugin.device(0)
OTHER = plugin.device(1)


@pytest.fixture
def queue(standin: StandIn) -> Iterator[NativeQueue]:
    queue = GPU.make_queue()
    yield queue
    queue.close()


# ---- work ----


def test_a_copy_within_the_host_waits_as_the_drivers_does(queue: NativeQueue, memory: Allocations) -> None:
    source, target = memory(HOST, DATA), memory(HOST)
    with HeldQueue(queue) as held:
        thread = Background(lambda: queue.copy(target, source, 10))
        assert held.begun.wait(60)
        assert thread.is_alive()
        held.release()
        thread.result()
        assert host_bytes(target, 10) == DATA[:10]


def test_a_word_is_written_and_another_waited_for(standin: StandIn, queue: NativeQueue, memory: Allocations) -> None:
    source, target, words = memory(DEVICE, DATA), memory(HOST), memory(HOST, bytes(8))
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


# ---- events ----


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


# ---- contexts ----


def test_a_stream_of_our_own_needs_no_context(standin: StandIn, queue: NativeQueue, memory: Allocations) -> None:
    ptr, there = memory(HOST), memory(DEVICE)
    spare = [queue.record(), queue.record()]
    del spare
    standin.configure()
    Background(partial(submit_all, queue, ptr, there)).result()  # a thread that has no context
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


def test_a_stream_of_another_gpu_is_not_adopted(standin: StandIn) -> None:
    owner = OTHER.make_queue()
    with pytest.raises(PinningError, match=f"stream {owner.handle:#x} is on cuda:1, not on cuda:0"):
        GPU.adopt_queue(owner.handle)
    assert int(cuda.cuCtxGetCurrent()[1]) == 0
    owner.close()


# ---- failures ----


def test_a_gpu_that_is_lost_while_a_thread_waits(standin: StandIn, queue: NativeQueue) -> None:
    other = GPU.make_queue()
    with HeldQueue(queue) as held:
        assert held.begun.wait(60)  # a lost stream begins no more work
        event = queue.record()
        waiting = Background(event.wait)
        standin.wait_for("cuEventSynchronize")
        standin.configure("lost=cuStreamQuery:1:700")
        with pytest.raises(VendorError):
            other.done()
        with pytest.raises(VendorError) as seen:
            waiting.result()
    assert (seen.value.call, seen.value.code) == ("cuEventSynchronize", 700)
    standin.configure()
    other.close()


# ---- the life of a process ----


def test_a_fork_is_told_that_its_parents_default_stream_does_not_work(standin: StandIn, memory: Allocations) -> None:
    source, there, default = memory(HOST, DATA), memory(DEVICE), GPU.adopt_queue(0)
    standin.configure()
    assert refusals([lambda: default.copy(there, source, 8), default.record]) == 2
    assert standin.calls() == []

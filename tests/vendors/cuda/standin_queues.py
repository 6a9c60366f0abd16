# SPDX-License-Identifier: Apache-2.0
"""Queues and events: order, calls to the driver, contexts, failures, and what is left at the end."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial

import numpy
import pytest
from cuda.bindings import driver as cuda

import pinning
from fake_device import Background
from pinning.conformance.allocations import DATA, Allocations
from pinning.conformance.faults import eventually
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


class Stream:
    """A stream of another library."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


@pytest.mark.parametrize("which", ["objects", "numbers", "owner"])
def test_a_copy_reads_what_an_earlier_one_in_its_stream_writes(standin: StandIn, which: str) -> None:
    """Whatever names the stream, and though the queue over it, and the first copy's event, are dropped meanwhile."""
    size, go = 8 << 20, threading.Event()  # staged: the driver's own copy to pageable memory waits for its turn
    array, result = numpy.zeros(size, "u1"), numpy.zeros(4096, "u1")
    with (
        pinning.Queue(GPU) as owner,
        pinning.Queue(GPU) as plain,
        pinning.alloc(size, device=GPU) as there,
        pinning.alloc(4096, device=GPU) as back,
    ):
        pinning.fill(there, 7, queue=plain)
        made: dict[str, Callable[[], object]] = {
            "objects": lambda: Stream(owner.handle),
            "numbers": lambda: pinning.Queue.adopt(owner.handle, GPU),
            "owner": iter([owner, Stream(owner.handle)]).__next__,
        }
        owner.call(lambda: go.wait(60))
        pinning.copy_async(array, there, queue=made[which]())
        gc.collect()
        last = pinning.copy_async(back, array, 4096, queue=made[which]())
        go.set()
        last.wait()
        del last
        pinning.copy(result, back, queue=plain)
    assert (result == 7).all()


def test_a_stream_that_each_thread_has_is_not_mistaken_for_another_threads(standin: StandIn) -> None:
    go, used = threading.Event(), threading.Event()
    submitted: list[tuple[pinning.Queue, pinning.Event]] = []

    def submit() -> None:
        queue = pinning.Queue.adopt(Stream(2), GPU)
        submitted.append((queue, queue.call(lambda: go.wait(60))))
        used.wait(60)

    thread = Background(submit)
    assert eventually(lambda: submitted)
    ((queue, event),) = submitted
    assert not queue.done() and not event.done()
    with pytest.raises(PinningError, match="adopt it in the thread"):
        queue.call(print)
    waiting = Background(queue.synchronize)
    waiting.join(0.1)
    assert waiting.is_alive() and not event.done()
    go.set()
    waiting.result()
    assert event.done() and queue.done()
    used.set()
    thread.result()
    queue.close()


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

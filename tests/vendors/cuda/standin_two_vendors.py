# SPDX-License-Identifier: Apache-2.0
"""Queues of the host and of a GPU in one program: they wait for each other, and an error stops neither."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy
import pytest

import pinning
from fake_device import WAIT
from pinning import PinningError
from pinning.copies import costs
from pinning.queues import Queue, as_queue
from standins.libcuda import live
from standins.standin import StandIn

SIZE = 4 << 20
HOST, GPU = pinning.device("host:0"), pinning.device("cuda:0")


@pytest.fixture(params=["in_order", "out_of_order"])
def queues(standin: StandIn, request: pytest.FixtureRequest) -> Iterator[tuple[Queue, Queue]]:
    with Queue(HOST, request.param) as host, Queue(GPU, request.param) as gpu:
        yield host, gpu
    pinning.queues.default_queue(GPU).close()


def test_each_waits_for_the_other(queues: tuple[Queue, Queue]) -> None:
    host, gpu = queues
    values, back = numpy.arange(1000, dtype="u4"), numpy.zeros(1000, "u4")
    go = threading.Event()
    with pinning.alloc(4000, device=GPU) as there, pinning.locked(values, back, device=GPU):
        begun = host.call(lambda: go.wait(WAIT))
        set_to_7 = host.call(lambda: values.fill(7), [begun])
        copied = pinning.copy_async(there, values, queue=gpu, wait_for=[set_to_7])
        cleared = host.call(lambda: values.fill(9), [copied])
        returned = pinning.copy_async(back, there, queue=gpu, wait_for=[copied])
        both = host.call(lambda: None, [cleared, returned])
        assert not any(event.done() for event in (begun, copied, cleared, returned, both))
        go.set()
        both.wait()
        assert both._comes_after(begun)
    assert (values == 9).all()
    assert (back == 7).all()


def test_each_of_several_events_is_waited_for(queues: tuple[Queue, Queue]) -> None:
    host, gpu = queues
    goes = [threading.Event(), threading.Event()]
    with Queue(HOST) as other:
        first, second = host.call(lambda: goes[0].wait(WAIT)), other.call(lambda: goes[1].wait(WAIT))
        called = gpu.call(lambda: None, [first, second])
        try:
            goes[0].set()
            first.wait()
            time.sleep(0.05)  # time to call it, which must not be
            assert not called.done()
        finally:
            goes[1].set()
        called.wait()


def test_behind_a_wait_for_the_other_a_source_is_read_in_its_turn(queues: tuple[Queue, Queue]) -> None:
    host, gpu = queues
    values, back = numpy.zeros(SIZE, "u1"), numpy.zeros(SIZE, "u1")
    go = threading.Event()
    with pinning.alloc(SIZE, device=GPU) as there:
        host.call(lambda: go.wait(WAIT))
        set_to_7 = host.call(lambda: values.fill(7))
        gpu.wait_for(set_to_7)
        copied = pinning.copy_async(there, values, queue=gpu)
        assert copied.path == "staged"
        time.sleep(0.05)  # time to read it, which must not be
        go.set()
        copied.wait()
        pinning.copy(back, there, queue=gpu)
    assert (back == 7).all()


@pytest.mark.parametrize("locked", [True, False])
def test_memory_of_the_hosts_device_is_read_in_its_turn(
    queues: tuple[Queue, Queue], locked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, gpu = queues
    if not locked:
        monkeypatch.setattr(costs, "staging_bytes", 0)
    back = numpy.zeros(1000, "u1")
    go = threading.Event()
    with pinning.alloc(1000, device=HOST) as here, pinning.alloc(1000, device=GPU) as there:
        pinning.fill(here, 1)
        begun = host.call(lambda: go.wait(WAIT))
        filled = pinning.fill_async(here, 7, queue=host, wait_for=[begun])
        threading.Timer(0.05, go.set).start()
        copied = pinning.copy_async(there, here, queue=gpu, wait_for=[filled])
        copied.wait()
        assert copied.path == "staged"
        pinning.copy(back, there, queue=gpu)
    assert (back == 7).all()


def test_an_error_travels_and_both_go_on(queues: tuple[Queue, Queue]) -> None:
    host, gpu = queues
    failing = host.call(lambda: 1 / 0)
    there = gpu.call(lambda: None, [failing])
    back = host.call(lambda: None, [there])
    for event in (back, there, failing):
        with pytest.raises(ZeroDivisionError):
            event.wait()
    for queue in queues:
        queue.call(lambda: None).wait()
        queue.synchronize()


def test_a_stream_of_cuda_core(standin: StandIn) -> None:
    class Stream:  # with the interface of a cuda.core stream
        def __init__(self, handle: int) -> None:
            self.handle = handle

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, self.handle

    theirs = GPU.make_queue()  # type: ignore[attr-defined]
    stream, there, array = Stream(theirs.handle), pinning.alloc(1000, device=GPU), numpy.ones(1000, "u1")
    copied = pinning.copy_async(there, array, queue=stream)
    adopted = as_queue(stream, GPU)
    assert copied.queue is adopted
    assert copied.vendor_event is not None, "they may submit at any time"
    with Queue(HOST) as host:
        host.call(lambda: None, [copied]).wait()
    adopted.close()
    theirs.synchronize()
    there.free()
    theirs.close()
    with pytest.raises(PinningError):
        Queue.adopt(stream, HOST)
    del copied
    pinning.copies.trim_staging()  # also closes the helper queue that signalled the host
    assert live()["streams"] == 0

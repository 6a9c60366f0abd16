# SPDX-License-Identifier: Apache-2.0
"""What streams under capture record, and what they refuse: tests for the stand-in and for a real GPU.

Each module that imports these defines a fixture `queue`, a queue whose handle was read: others may capture its stream.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy
import pytest
from captures import MODES, CaptureLostError, Graph

import pinning
from fake_device import Background
from pinning.conformance.faults import eventually
from pinning.queues.graphs import graphs_alive

PAGE, SMALL, LARGE = 4096, 4096, 16 << 20


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def own_or_adopted(device: Any, which: str) -> Iterator[pinning.Queue]:
    with pinning.Queue(device) as own:
        own.handle  # noqa: B018  from here on others may submit to it
        if which == "own":
            yield own
            return
        with pinning.Queue.adopt(own.handle, device) as adopted:
            yield adopted


class Case:
    """Locked and pageable memory of the host, and memory of the device, each of `LARGE` bytes."""

    def __init__(self, queue: pinning.Queue, stack: ExitStack) -> None:
        self.queue = queue
        self.locked = numpy.ones(LARGE, numpy.uint8)
        self.lock = stack.enter_context(pinning.lock(self.locked, device=queue.device))
        self.pageable = numpy.ones(LARGE, numpy.uint8)
        self.memory = stack.enter_context(pinning.alloc(LARGE, device=queue.device))
        self.other = stack.enter_context(pinning.Queue(queue.device))

    def on_device(self, nbytes: int = SMALL, offset: int = 0) -> Any:
        back = numpy.zeros(nbytes, numpy.uint8)
        pinning.copy(back, self.memory.ptr + offset, nbytes, queue=self.other)
        return back

    def fill(self, value: int) -> None:
        self.locked[:] = self.pageable[:] = value


@pytest.fixture
def case(queue: pinning.Queue) -> Iterator[Case]:
    with ExitStack() as stack:
        yield Case(queue, stack)


def ended(thing: Graph) -> None:
    """Destroy the graph, and wait until everything that it kept, or could not keep, is released."""
    thing.close()
    assert eventually(lambda: not graphs_alive())


def test_a_copy_of_locked_memory_reads_it_at_each_launch(case: Case, mode: str) -> None:
    with Graph(case.queue.handle, mode) as graph:
        assert case.queue.is_capturing
        copy = pinning.copy_async(case.memory, case.locked, queue=case.queue)
    assert not case.queue.is_capturing
    assert (copy.path, "recorded into a graph" in repr(copy)) == ("direct", True)
    for value in (9, 5):
        case.fill(value)
        graph.launch()
        assert (case.on_device(LARGE) == value).all()
    ended(graph)


def test_a_copy_to_locked_memory_writes_it_at_each_launch(case: Case, mode: str) -> None:
    with Graph(case.queue.handle, mode) as graph:
        pinning.fill_async(case.memory, 3, queue=case.queue)
        pinning.copy_async(case.locked, case.memory, queue=case.queue)
    for _ in range(2):
        case.fill(0)
        graph.launch()
        assert (case.locked == 3).all()
    ended(graph)


@pytest.mark.parametrize("engine", ["auto", "copy"])
def test_a_batch_of_locked_parts_is_recorded(case: Case, mode: str, engine: Any) -> None:
    starts = numpy.array([0, 8192, 16384, 40960, LARGE - SMALL], numpy.uint64)
    ptr = numpy.uint64(case.locked.ctypes.data)
    with Graph(case.queue.handle, mode) as graph:
        pinning.copy_batch_async(
            numpy.uint64(case.memory.ptr) + starts, ptr + starts, SMALL, queue=case.queue, engine=engine
        )
    for value in (9, 5):
        case.fill(value)
        graph.launch()
        assert all((case.on_device(SMALL, int(start)) == value).all() for start in starts)
    ended(graph)


def test_rows_of_locked_memory_are_recorded(case: Case, mode: str) -> None:
    with Graph(case.queue.handle, mode) as graph:
        pinning.copy_2d_async(case.memory.ptr, 100, case.locked, 200, 100, 30, queue=case.queue)
    case.locked[:6000] = numpy.arange(6000) % 251
    graph.launch()
    rows = case.locked[:6000].reshape(30, 200)[:, :100]
    assert (case.on_device(3000).reshape(30, 100) == rows).all()
    ended(graph)


def test_a_stream_that_is_first_adopted_under_capture(case: Case, mode: str) -> None:
    device, release = case.queue.device, threading.Event()
    stream = device.make_queue()
    with Graph(stream.handle, mode) as graph:
        adopted = pinning.Queue.adopt(stream.handle, device)
        pinning.copy_async(case.memory, case.locked, queue=adopted)
    case.fill(9)
    graph.launch()
    assert (case.on_device() == 9).all()
    ended(graph)
    # It is the same stream after the capture: a copy reads what an earlier one in it writes.
    case.fill(1)
    with pinning.Queue.adopt(stream.handle, device) as again, pinning.alloc(SMALL, device=device) as memory:
        adopted.call(lambda: release.wait(10))
        pinning.copy_async(case.pageable, case.memory, queue=adopted)
        copy = pinning.copy_async(memory, case.pageable, SMALL, queue=again)
        release.set()
        copy.wait()
        pinning.copy(case.locked, memory, SMALL, queue=case.other)
    assert (case.locked[:SMALL] == 9).all()
    adopted.close()
    stream.close()


def test_a_copy_across_the_border_of_two_locks_is_recorded(case: Case, mode: str) -> None:
    buffer = numpy.ones(8 * PAGE, numpy.uint8)
    device = case.queue.device
    with pinning.lock(buffer[: 3 * PAGE], device=device), pinning.lock(buffer[3 * PAGE :], device=device):
        with Graph(case.queue.handle, mode) as graph:
            copy = pinning.copy_async(case.memory, buffer, buffer.nbytes, queue=case.queue)
        assert "2 parts" in copy.reason
        buffer[:] = 7
        graph.launch()
        assert (case.on_device(buffer.nbytes) == 7).all()
        ended(graph)


def refusals(case: Case) -> dict[str, Callable[[], object]]:
    queue, memory, pageable = case.queue, case.memory, case.pageable
    parts = [pageable[: LARGE // 4], pageable[LARGE // 2 : 3 * LARGE // 4]]
    starts = [memory.ptr, memory.ptr + LARGE // 2]
    return {
        "pageable, staged": lambda: pinning.copy_async(memory, pageable, queue=queue),
        "pageable, plain": lambda: pinning.copy_async(memory, pageable[:SMALL], SMALL, queue=queue),
        "to pageable": lambda: pinning.copy_async(pageable, memory, queue=queue),
        "to pageable, plain": lambda: pinning.copy_async(pageable[:SMALL], memory, SMALL, queue=queue),
        "a batch of pageable parts": lambda: pinning.copy_batch_async(starts, parts, LARGE // 4, queue=queue),
        "within the host": lambda: pinning.copy_async(case.locked, pageable, queue=queue),
        "rows": lambda: pinning.copy_2d_async(memory.ptr, 100, pageable, 200, 100, 30, queue=queue),
        "a function": lambda: queue.call(lambda: None),
        "work of a program": lambda: queue.submit(lambda vendor: vendor.fill(memory.ptr, b"\0", 1)),
        "an event": queue.record,
        "memory": lambda: queue.alloc(SMALL),
        "its end": queue.done,
        "to wait for its end": queue.synchronize,
        "to close it": queue.close,
    }


def test_all_else_is_refused_and_the_capture_goes_on(case: Case, mode: str) -> None:
    wrong = {}
    with Graph(case.queue.handle, mode) as graph:
        pinning.copy_async(case.memory, case.locked, queue=case.queue)
        for name, call in refusals(case).items():
            try:
                wrong[name] = call()
            except pinning.GraphCaptureError:
                continue
        pinning.fill_async(case.memory.ptr, 3, 1, queue=case.queue)
    assert wrong == {}
    case.fill(9)
    graph.launch()
    assert case.on_device(2).tolist() == [3, 9]
    ended(graph)


def test_wait_lists(case: Case, mode: str) -> None:
    over = pinning.fill_async(case.memory, 1, queue=case.other)
    over.wait()
    release = threading.Event()
    pending = case.other.call(release.wait)
    with Graph(case.queue.handle, mode) as graph:
        first = pinning.fill_async(case.memory, 2, queue=case.queue, wait_for=[over])
        pinning.fill_async(case.memory.ptr, 3, 1, queue=case.queue, wait_for=[first])
        with pytest.raises(pinning.GraphCaptureError, match="is not complete"):
            pinning.fill_async(case.memory, 4, queue=case.queue, wait_for=[pending])
    release.set()
    graph.launch()
    assert case.on_device(2).tolist() == [3, 2]
    for ask in (first.done, first.wait, lambda: pinning.fill_async(case.memory, 5, queue=case.other, wait_for=[first])):
        with pytest.raises(pinning.GraphCaptureError, match="recorded into a graph"):
            ask()
    ended(graph)


def test_memory_stays_locked_and_alive_as_long_as_its_graph(case: Case) -> None:
    buffer = numpy.ones(PAGE, numpy.uint8)
    address = buffer.ctypes.data, buffer.nbytes
    lock, other = pinning.lock(buffer, device=case.queue.device), pinning.alloc(PAGE, device=case.queue.device)
    with Graph(case.queue.handle, "thread_local") as graph:
        pinning.copy_async(case.memory, buffer, PAGE, queue=case.queue)
        pinning.copy_async(other, buffer, PAGE, queue=case.queue)
    lock.unlock()
    for memory in (case.memory, other):
        with pytest.raises(pinning.StillInUseError):
            memory.free()
    buffer[:] = 8
    del buffer, lock
    assert pinning.is_locked(address, device=case.queue.device)
    graph.launch()
    assert (case.on_device(PAGE) == 8).all()
    ended(graph)
    other.free()
    assert not pinning.is_locked(address, device=case.queue.device)


def test_a_program_can_keep_what_its_graph_uses(case: Case) -> None:
    buffer = numpy.ones(PAGE, numpy.uint8)
    lock = pinning.lock(buffer, device=case.queue.device)
    with case.queue.keep_recorded() as kept, Graph(case.queue.handle, "thread_local") as graph:
        pinning.copy_async(case.memory, buffer, PAGE, queue=case.queue)
    lock.unlock()
    assert not graphs_alive()
    assert pinning.is_locked(buffer, device=case.queue.device)
    buffer[:] = 8
    graph.launch()
    assert (case.on_device(PAGE) == 8).all()
    graph.close()
    kept.clear()
    assert not pinning.is_locked(buffer, device=case.queue.device)
    with pytest.raises(ZeroDivisionError), case.queue.keep_recorded():
        raise ZeroDivisionError
    lock = pinning.lock(buffer, device=case.queue.device)
    with Graph(case.queue.handle, "thread_local") as graph:
        pinning.copy_async(case.memory, buffer, PAGE, queue=case.queue)
    lock.unlock()
    assert pinning.is_locked(buffer, device=case.queue.device), "the graph keeps it, as outside such a block"
    ended(graph)
    assert not pinning.is_locked(buffer, device=case.queue.device)


def test_other_queues_and_threads_go_on_beside_a_capture(case: Case, mode: str) -> None:
    """They lock, allocate, stage and wait, in other threads and in the capturing one; the capture stays valid."""
    stop = threading.Event()
    rounds = [0, 0]

    pool = pinning.Pool(case.queue.device)

    def work(index: int) -> None:
        buffer = numpy.full(LARGE, index + 1, numpy.uint8)
        back = numpy.zeros_like(buffer)
        with pinning.Queue(case.queue.device) as queue:
            while not stop.is_set():
                other_work(queue, buffer, back)
                rounds[index] += 1

    def other_work(queue: pinning.Queue, buffer: Any, back: Any) -> None:
        memory, ready = queue.alloc(LARGE, pool=pool)
        pinning.copy_async(memory, buffer, queue=queue, wait_for=[ready])
        pinning.copy_async(back, memory, queue=queue).wait()
        queue.free(memory)
        assert (back == buffer).all()
        pinning.lock(numpy.ones(PAGE, numpy.uint8), device=queue.device).unlock()
        with pinning.alloc(PAGE, device=queue.device) as own:
            pinning.copy(own, buffer, PAGE, queue=queue)
        queue.synchronize()
        queue.record().wait()

    threads = [Background(partial(work, index)) for index in range(2)]
    try:
        for value in range(5):
            before = rounds.copy()
            with Graph(case.queue.handle, mode) as graph:
                pinning.copy_async(case.memory, case.locked, queue=case.queue)
                other_work(case.other, case.pageable, numpy.zeros_like(case.pageable))
                while all(each.is_alive() for each in threads) and any(map(int.__le__, rounds, before)):
                    time.sleep(0.001)
            case.fill(value)
            graph.launch()
            assert (case.on_device() == value).all()
            ended(graph)
    finally:
        stop.set()
        for thread in threads:
            thread.result()
        pool.close()


def test_a_capture_may_be_lost_by_its_own_program_alone(case: Case) -> None:
    import ctypes

    with pytest.raises(CaptureLostError), Graph(case.queue.handle, "relaxed"):
        ctypes.CDLL("libcuda.so.1").cuStreamQuery(ctypes.c_void_p(case.queue.handle))
        with pytest.raises(pinning.GraphCaptureError, match="it has failed"):
            pinning.fill_async(case.memory, 1, queue=case.queue)
    pinning.fill(case.memory, 2, queue=case.queue)
    assert (case.on_device() == 2).all()


def test_a_queue_out_of_order_records_nothing(queue: pinning.Queue, case: Case) -> None:
    with pinning.Queue(queue.device, "out_of_order") as several:
        with Graph(several.handle, "relaxed") as graph, pytest.raises(pinning.GraphCaptureError, match="out of order"):
            pinning.fill_async(case.memory, 1, queue=several)
        graph.close()


def test_what_is_pending_in_a_queue_is_let_go_after_a_capture(case: Case) -> None:
    """Its stream is not queried while under capture; afterwards the queue knows its progress."""
    release = threading.Event()
    started = case.queue.call(release.wait)
    copy = pinning.copy_async(case.memory, case.locked, queue=case.queue)
    with Graph(case.queue.handle, "global") as graph:
        pinning.fill_async(case.memory, 3, queue=case.queue)
        release.set()
        time.sleep(0.3)  # meanwhile the service thread polls the queue
        copy.wait()
        assert started.done()
    graph.launch()
    case.queue.synchronize()
    assert case.queue.done()
    ended(graph)

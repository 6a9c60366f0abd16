# SPDX-License-Identifier: Apache-2.0
"""Queues of <pinning/pinning.h>: copies in the order of their calls, on every path, as in queues of Python."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pytest

import c_api
import pinning
from c_copies import Copying, batch, check_order, check_stream, rows, two_blocks, whole
from locked_parts import PAGE, on_pages
from noise import noise
from pinning.conformance.holding import HeldQueue
from pinning.copies import CopyPath
from pinning.plugin.native import NativeQueue
from standins.cases import only
from standins.standin import StandIn

UNKNOWN = 999
BUSY = 32 << 20  # bytes that the queue copies first: what follows waits for that, unless it does not wait as it should


@pytest.fixture
def stream(queue: NativeQueue) -> int:
    """The vendor's handle of a queue."""
    if not queue.handle:
        pytest.skip("queues of this vendor have no handle, so there are none to adopt")
    return queue.handle


@pytest.fixture(params=["made", "adopted"])
def c_queue(request: pytest.FixtureRequest, standin: StandIn, gpu: Any) -> Iterator[c_api.Queue]:
    stream = request.getfixturevalue("stream") if request.param == "adopted" else None
    with c_api.Queue(gpu.name, stream) as made:
        yield made
    gc.collect()


@pytest.mark.parametrize("size", [192 << 10, 12 << 20])
@pytest.mark.parametrize("read", [whole, batch, rows])
@pytest.mark.parametrize("write", [whole, batch, rows])
def test_what_pending_work_writes_is_read_after_it(
    c_queue: c_api.Queue, gpu: Any, write: Copying, read: Copying, size: int
) -> None:
    check_order(c_queue, gpu, write, read, size, BUSY)


@pytest.mark.parametrize("locked", [True, False])
def test_copies_in_one_stream_know_of_each_other(stream: int, gpu: Any, locked: bool) -> None:
    """Also those that `pinning_copy_async` submits, without a queue of the interface."""
    check_stream(gpu, stream, 192 << 10, BUSY, locked)


@only("cuda", "hip")
@pytest.mark.parametrize("ask", [c_api.Event.done, c_api.Event.wait], ids=["done", "wait"])
def test_a_failure_that_the_vendor_tells_when_asked_is_the_events(
    standin: StandIn, c_queue: c_api.Queue, gpu: Any, ask: Callable[[c_api.Event], object]
) -> None:
    with two_blocks(gpu, 4 << 20) as busy:
        event = c_queue.copy(*busy, 4 << 20)
        standin.configure(f"fail=*:1:{UNKNOWN}")
        with pytest.raises(c_api.StatusError):
            ask(event)
        standin.configure()
        c_queue.synchronize()


@pytest.mark.parametrize(("size", "part"), [(192 << 10, 192 << 10), (12 << 20, 12 << 20), (12 << 20, 192 << 10)])
@pytest.mark.parametrize("waits", ["the copy", "the queue"])
@pytest.mark.parametrize("read", [whole, batch, rows])
def test_what_another_queue_writes_is_read_after_its_event(
    c_queue: c_api.Queue, gpu: Any, read: Copying, waits: str, size: int, part: int
) -> None:
    expected, host, back = noise(size), on_pages(size), numpy.zeros(size, numpy.uint8)
    with (
        two_blocks(gpu, BUSY) as busy,
        two_blocks(gpu, size) as (origin, there),
        c_api.Queue(gpu.name) as second,
    ):
        c_queue.copy(origin, expected.ctypes.data, size).wait()
        over = second.record()
        over.wait()
        second.copy_without_event(*busy, BUSY)
        written = second.copy(host.ctypes.data, origin, size)
        events = (written, over) if part == size else (over, written)
        if waits == "the queue":
            c_queue.wait_for(*events)
        read(c_queue, there, host.ctypes.data + size - part, part, events if waits == "the copy" else ())
        c_queue.synchronize()
        assert written.done()
        c_queue.copy(back.ctypes.data, there, part).wait()
        assert (back[:part] == expected[-part:]).all()


@pytest.mark.parametrize("of_a_queue", [True, False])
def test_what_the_program_itself_writes_in_its_stream_is_read_after_it(
    queue: NativeQueue, stream: int, gpu: Any, of_a_queue: bool
) -> None:
    """By work that the library knows nothing of."""
    size = 12 << 20
    expected, host, back = noise(size), on_pages(size), numpy.zeros(size, numpy.uint8)
    write = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: host.__setitem__(slice(None), expected))
    locks = c_api.Map(gpu.name)
    with two_blocks(gpu, size) as (there, _), c_api.Queue(gpu.name, stream) as adopted:
        with HeldQueue(queue):
            queue.call(ctypes.cast(write, ctypes.c_void_p).value or 0, 0)
            ends = there, host.ctypes.data, size
            copy = adopted.copy(*ends) if of_a_queue else locks.copy_async(*ends, stream)
        copy.wait()
        adopted.copy(back.ctypes.data, there, size).wait()
    assert (back == expected).all()


@only("cuda", "hip")
def test_each_thread_has_a_default_stream_of_its_own(standin: StandIn, gpu: Any) -> None:
    locks, host, of_each_thread = c_api.Map(gpu.name), noise(PAGE), 2

    def copy(dst: int) -> c_api.Copy:
        return locks.copy_async(dst, host.ctypes.data, PAGE, of_each_thread)

    with two_blocks(gpu, PAGE) as (there, other), pinning.lock(host, device=gpu), ThreadPoolExecutor(1) as elsewhere:
        with HeldQueue(gpu.adopt_queue(of_each_thread)):
            ours = copy(there)
            elsewhere.submit(lambda: copy(other).wait()).result(60)
            assert not ours.done()
        ours.wait()


@only("cuda", "hip")
def test_without_a_stream_a_copy_is_in_the_default_stream(standin: StandIn, gpu: Any) -> None:
    locks, host, default = c_api.Map(gpu.name), noise(PAGE), 0
    with two_blocks(gpu, BUSY) as busy, two_blocks(gpu, PAGE) as (there, _), pinning.lock(host, device=gpu):
        with HeldQueue(gpu.adopt_queue(default)):
            copy = locks.copy_async(there, host.ctypes.data, PAGE)
            locks.copy(*busy, BUSY)  # in a queue of its own; longer than the other would take there
            waits = not copy.done()
        copy.wait()
        assert waits


def test_an_event_outlives_its_queue(queue: NativeQueue, stream: int, gpu: Any) -> None:
    host = noise(PAGE)
    with two_blocks(gpu, PAGE) as (there, _), pinning.lock(host, device=gpu):
        adopted = c_api.Queue(gpu.name, stream)
        with HeldQueue(queue):
            event, unused = (adopted.copy(there, host.ctypes.data, PAGE) for _ in range(2))
            later = adopted.record()
            assert not event.done()
            assert not later.done()
            assert event.path == CopyPath.DIRECT
            with pytest.raises(c_api.StatusError, match="not of a copy"):
                _ = later.path
            del unused  # before it is reached
        adopted.destroy()
        event.wait()
        assert event.done()
        assert later.done()


def test_locks_are_held_until_the_copy_is_over(queue: NativeQueue, stream: int, gpu: Any) -> None:
    host, locks = noise(PAGE), c_api.Map(gpu.name)
    with two_blocks(gpu, PAGE) as (there, _), c_api.Queue(gpu.name, stream) as adopted:
        with HeldQueue(queue):
            locks.lock(host.ctypes.data, PAGE)
            event = adopted.copy(there, host.ctypes.data, PAGE)
            adopted.copy_without_event(there, host.ctypes.data, PAGE)
            locks.unlock(host.ctypes.data)
            assert locks.find(host.ctypes.data) is not None
        event.wait()
        assert locks.find(host.ctypes.data) is not None  # of the second
        adopted.synchronize()
        assert locks.find(host.ctypes.data) is None


def test_the_lock_of_a_copy_that_failed_is_released(
    queue: NativeQueue, stream: int, gpu: Any, standin: StandIn
) -> None:
    host, locks = noise(PAGE), c_api.Map(gpu.name)
    with two_blocks(gpu, PAGE) as (there, _):
        with HeldQueue(queue):
            locks.lock(host.ctypes.data, PAGE)
            copy = locks.copy_async(there, host.ctypes.data, PAGE, stream)
            locks.unlock(host.ctypes.data)
        standin.configure("fail=*:1:999")  # the question how far it is
        with pytest.raises(c_api.StatusError):
            copy.wait()
        standin.configure()
        assert locks.find(host.ctypes.data) is None


def test_hundreds_of_copies_keep_no_lock(c_queue: c_api.Queue, gpu: Any) -> None:
    host, locks = noise(PAGE), c_api.Map(gpu.name)
    with two_blocks(gpu, PAGE) as (there, _):
        locks.lock(host.ctypes.data, PAGE)
        for _ in range(300):
            c_queue.copy_without_event(there, host.ctypes.data, PAGE)
        c_queue.synchronize()
        locks.unlock(host.ctypes.data)
        assert locks.find(host.ctypes.data) is None


def test_events_of_another_vendor_are_refused(c_queue: c_api.Queue, gpu: Any) -> None:
    one, two = noise(PAGE), numpy.zeros(PAGE, numpy.uint8)
    with c_api.Queue("host:0") as host, two_blocks(gpu, PAGE) as (there, _):
        event = host.copy(two.ctypes.data, one.ctypes.data, PAGE)
        with pytest.raises(c_api.StatusError, match="another vendor") as refused:
            c_queue.copy(there, one.ctypes.data, PAGE, wait_for=(event,))
        assert refused.value.status == "PINNING_UNAVAILABLE"
        event.wait()
        assert (one == two).all()


@pytest.mark.parametrize("ordered", [True, False], ids=["in order", "out of order"])
@pytest.mark.parametrize("end", [c_api.Queue.destroy, c_api.Queue.synchronize, lambda queue: queue.record().wait()])
def test_the_end_of_a_queue_is_that_of_all_its_copies(
    gpu: Any, standin: StandIn, end: Callable[[c_api.Queue], object], ordered: bool
) -> None:
    """Also of the first, which takes longest, and which no other has to wait for in a queue out of order."""
    expected, hosts = noise(BUSY), [numpy.zeros(size, numpy.uint8) for size in (BUSY, 1 << 20, PAGE)]
    with two_blocks(gpu, BUSY) as (there, _), c_api.Queue(gpu.name, ordered=ordered) as queue:
        c_api.Map(gpu.name).copy(there, expected.ctypes.data, BUSY)
        for host in hosts:
            queue.copy_without_event(host.ctypes.data, there, host.size)
        end(queue)
        assert (hosts[0][-PAGE:] == expected[-PAGE:]).all()  # what arrives last
        assert all((host == expected[: host.size]).all() for host in hosts)


def test_after_an_error_a_queue_out_of_order_waits_for_its_other_copies(
    queue: NativeQueue, stream: int, gpu: Any, standin: StandIn
) -> None:
    expected, hosts = noise(BUSY), [on_pages(BUSY) for _ in range(2)]
    with two_blocks(gpu, BUSY) as (there, _), pinning.locked(*hosts, device=gpu), c_api.Queue(gpu.name, stream) as held:
        held.copy(there, expected.ctypes.data, BUSY).wait()
        with c_api.Queue(gpu.name, ordered=False) as several, HeldQueue(queue) as hold:
            later = held.record()
            for host in hosts:  # each in a stream of its own, because none of them begins yet
                several.copy(host.ctypes.data, there, BUSY, wait_for=(later,))
            standin.configure("fail=*:1:999")  # the question how far the first is
            threading.Timer(0.1, hold.release).start()
            with pytest.raises(c_api.StatusError):
                several.synchronize()
            standin.configure()
            assert (hosts[1] == expected).all()

# SPDX-License-Identifier: Apache-2.0
"""Queues: submitting, waiting, calling Python, keeping objects alive, adopted queues, threads."""

from __future__ import annotations

import gc
import itertools
import random
import sys
import threading
import time
import weakref
from contextlib import ExitStack, suppress
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest

import pinning
from fake_device import WAIT, Background, FakeDevice, in_threads
from fake_memory import FakeMemoryDevice, FakeQueue
from pinning import PinningError, VendorError
from pinning.conformance.faults import eventually
from pinning.queues import Event, Queue, as_queue, default_queue
from pinning.queues.lane import Lane
from pinning.queues.pending import uses
from queue_work import Thing, work

HOST = pinning.device("host:0")


# ---- order ----


def test_an_in_order_queue_runs_in_order_on_the_host() -> None:
    ran: list[int] = []
    with Queue(HOST) as queue:
        for number in range(100):
            queue.call(lambda number=number: ran.append(number))
        queue.synchronize()
        assert queue.done()
    assert ran == list(range(100))


def test_unrelated_work_overtakes_in_an_out_of_order_queue() -> None:
    go = threading.Event()
    with Queue(HOST, "out_of_order") as queue:
        first = queue.call(lambda: go.wait(WAIT))
        second = queue.call(lambda: None)
        third = queue.call(lambda: None, [first])
        second.wait()
        assert (first.done(), third.done()) == (False, False)
        go.set()
        third.wait()


def test_what_waits_for_one_event_runs_at_once() -> None:
    go, meet = threading.Event(), threading.Barrier(2)
    with Queue(HOST, "out_of_order") as queue:
        first = queue.call(lambda: go.wait(WAIT))
        both = [queue.call(lambda: meet.wait(WAIT), [first]) for _ in range(2)]
        go.set()
        for event in both:
            event.wait()


def test_out_of_order_work_comes_after_nothing_that_it_does_not_wait_for(device: FakeMemoryDevice) -> None:
    with Queue(device, "out_of_order") as queue:
        events = [queue.submit(work) for _ in range(20)]  # more than it has lanes
        last = queue.submit(work, [events[3]])
        assert [last._comes_after(event) for event in events] == [at == 3 for at in range(20)]
        device.let_go()


def test_a_poll_finds_what_is_over_in_each_stream(device: FakeMemoryDevice) -> None:
    with Queue(device, "out_of_order") as queue:
        things = [Thing() for _ in range(3)]
        gone = [weakref.ref(thing) for thing in things]
        for thing in things:
            queue.submit(work, (), (thing,))
        del thing
        things.clear()
        device.release(queue=device.queues[-1])
        assert not queue.poll()
        assert [each() is None for each in gone] == [False, False, True]
        device.let_go()


def test_a_wait_for_a_queue_waits_for_each_stream_although_one_fails(device: FakeMemoryDevice) -> None:
    with Queue(device, "out_of_order") as queue:
        for _ in range(2):
            queue.submit(work)
        device.fail_call(VendorError("fakeSynchronize", 1, "FAKE"))
        waiting = Background(queue.synchronize)
        waiting.join(0.1)
        assert waiting.is_alive()
        device.let_go()
        with pytest.raises(VendorError, match="fakeSynchronize"):
            waiting.result()
        assert queue.poll()


def test_a_wait_for_a_queue_raises_the_error_that_the_vendor_told_first(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue:
        queue.submit(work)
        device.fail_call(VendorError("fakeFirst", 1, "FAKE"))
        assert not queue.poll()
        device.fail_call(VendorError("fakeSecond", 2, "FAKE"))
        with pytest.raises(VendorError, match="fakeFirst"):
            queue.synchronize()
        device.let_go()
        queue.synchronize()


def test_queues_that_cannot_wait_for_values_go_on_in_the_order_of_the_events(
    device: FakeMemoryDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeQueue, "waits_for_values", False)
    gates = [threading.Event() for _ in range(3)]
    with ExitStack() as stack:
        queues = [stack.enter_context(Queue(device)) for _ in gates]
        others = [stack.enter_context(Queue(HOST)) for _ in gates]
        events = [
            queue.submit(work, [other.call(gate.wait)])
            for queue, other, gate in zip(queues, others, gates, strict=True)
        ]
        running = [Background(lambda each=each: device.release(queue=each)) for each in device.queues]
        time.sleep(0.1)  # in which all of them begin to wait
        for at in (1, 2, 0):
            assert not events[at].done()
            gates[at].set()
            assert eventually(events[at].done)
        for each in running:
            each.result()
        device.let_go()


def test_copies_between_queues_of_the_host() -> None:
    values, copy = np.arange(1 << 18), np.zeros(1 << 18, np.int64)
    here, there, size = values.ctypes.data, copy.ctypes.data, values.nbytes
    with Queue(HOST) as one, Queue(HOST) as other:
        copied = one.submit(lambda q: q.copy(there, here, size), (), (values, copy))
        filled = other.submit(lambda q: q.fill(here, b"\1\2\3\4", size // 4), [copied], (values,))
        filled.wait()
        assert filled.elapsed(copied) >= 0
    assert (copy == np.arange(1 << 18)).all()
    assert (values == 0x0403020104030201).all()


def test_host_rows_single_bytes_and_words() -> None:
    matrix, part, word = np.arange(100, dtype=np.uint8).reshape(10, 10), np.zeros((4, 3), np.uint8), np.zeros(1, "u4")
    with Queue(HOST) as queue:
        queue.submit(lambda q: q.copy_2d(part.ctypes.data, 3, matrix[2:, 5:].ctypes.data, 10, 3, 4))
        queue.submit(lambda q: q.fill(matrix.ctypes.data, b"\7", 7))
        queue.submit(lambda q: q.wait_value(word.ctypes.data, 2))
        last = queue.submit(lambda q: q.write_value(word.ctypes.data, 9))
        for value in (2**31 + 3, 1):  # both are before 2 on the wrapping scale
            word[0] = value
            assert not last.done()
        word[0] = 3
        last.wait()
    assert word[0] == 9
    assert part.tolist() == [[25, 26, 27], [35, 36, 37], [45, 46, 47], [55, 56, 57]]
    assert matrix[0].tolist() == [7] * 7 + [7, 8, 9]


# ---- functions ----


def test_a_function_that_raises_fails_its_event_and_the_queue_goes_on() -> None:
    with Queue(HOST) as queue:
        failing = queue.call(lambda: 1 / 0)
        after = queue.call(lambda: None)
        dependent = queue.call(lambda: None, [failing])
        with pytest.raises(ZeroDivisionError):
            failing.wait()
        after.wait()
        with pytest.raises(ZeroDivisionError):
            dependent.wait()


def test_refused_host_work_is_not_submitted_and_the_queue_continues() -> None:
    with Queue(HOST) as queue:
        with pytest.raises(TypeError):
            queue.submit(lambda vendor: vendor.copy(0, 0, "no size"))  # type: ignore[arg-type]
        queue.call(lambda: None).wait()
        queue.synchronize()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_error_that_nobody_waits_for_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: heard.append(unraisable.exc_type))
    with Queue(HOST) as queue:
        go = threading.Event()
        queue.call(lambda: go.wait(WAIT))
        queue.call(lambda: 1 / 0)
        go.set()
    assert heard == [ZeroDivisionError]


def test_what_is_no_function(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue, pytest.raises(TypeError, match="it must be a function"):
        queue.call(3)  # type: ignore[arg-type]


# ---- objects that are kept ----


@pytest.mark.parametrize("order", ["in_order", "out_of_order"])
def test_objects_are_kept_until_the_work_is_over_and_no_longer(device: FakeMemoryDevice, order: str) -> None:
    thing = Thing()
    gone = weakref.ref(thing)
    with Queue(device, order) as queue:  # type: ignore[arg-type]
        queue.submit(work, (), (thing,))
        assert len(uses(thing)) == 1
        del thing
        gc.collect()
        assert gone() is not None
        device.let_go()
        assert eventually(lambda: gone() is None), "on an idle queue too"


def test_a_busy_queue_lets_go_too(device: FakeMemoryDevice) -> None:
    gone = []
    with Queue(device) as queue:
        for _ in range(300):
            thing = Thing()
            gone.append(weakref.ref(thing))
            queue.submit(work, (), [thing])
        del thing
        assert device.events_made == 4, "marks, so that it can be told how far it is"
        device.release(steps=200)
        assert not device.queues[0].idle
        assert eventually(lambda: sum(each() is None for each in gone) > 100)
        assert sum(each() is None for each in gone) <= 200
        device.let_go()


def test_what_failed_work_may_have_submitted_is_kept(device: FakeMemoryDevice) -> None:
    thing = Thing()
    gone = weakref.ref(thing)

    def half(vendor: object) -> None:
        work(vendor)
        raise VendorError("fakeSecond", 1, "FAKE")

    with Queue(device) as queue:
        with pytest.raises(VendorError, match="fakeSecond"):
            queue.submit(half, (), (thing,))
        del thing
        gc.collect()
        assert not queue.poll()
        assert gone() is not None
        device.let_go()
        assert eventually(lambda: gone() is None)


def test_a_dropped_queue_is_given_back_after_its_work(device: FakeMemoryDevice) -> None:
    thing = Thing()
    gone = weakref.ref(thing)
    queue = Queue(device)
    queue.submit(work, (), (thing,))
    del queue, thing
    gc.collect()
    assert (gone() is None, device.queues_alive) == (False, 1)
    device.let_go()
    assert eventually(lambda: device.queues_alive == 0 and gone() is None)


def test_a_dropped_queue_makes_room_for_another(device: FakeMemoryDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    make = device.make_queue

    def limited() -> FakeQueue:
        if device.queues_alive == 3:
            raise VendorError("fakeQueueCreate", 2, "FAKE_TOO_MANY")
        return make()

    monkeypatch.setattr(device, "make_queue", limited)
    device.held = False
    queues = [Queue(device) for _ in range(3)]
    with pytest.raises(VendorError, match="FAKE_TOO_MANY"):
        Queue(device)
    for number in range(20):  # at once, whether or not the thread that gives queues back has had time for it
        while queues:
            queue = queues.pop()
            if number % 2:
                queue.submit(work).wait()
            del queue
        queues = [Queue(device) for _ in range(3)]


def test_bad_input(device: FakeMemoryDevice) -> None:
    with pytest.raises(PinningError, match="sideways"):
        Queue(device, "sideways")  # type: ignore[arg-type]
    with pytest.raises(PinningError, match="has no queues"):
        Queue(FakeDevice())
    with Queue(device) as queue:
        with pytest.raises(TypeError, match="takes a list of events"):
            queue.submit(work, [3])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="not a queue"):
            as_queue("stream", device)
        assert as_queue(queue) is queue


# ---- adopted and default queues, and several vendors ----


class Stream:
    def __init__(self, handle: int, version: int = 0) -> None:
        self.handle, self.version = handle, version

    def __cuda_stream__(self) -> tuple[int, int]:
        return self.version, self.handle


def test_adopted_queues_record_at_once_and_stay_open(device: FakeMemoryDevice) -> None:
    theirs = device.make_queue()
    stream = Stream(theirs.handle)
    queue = Queue.adopt(stream, device)
    assert Queue.adopt(stream, device) is queue
    event = queue.submit(work)
    assert [step.method for step in theirs.pending()] == ["mark", "record"]
    theirs.mark(lambda: None)
    device.release(steps=2)
    assert event.done()
    device.let_go()
    queue.close()
    assert not theirs.closed
    assert Queue.adopt(stream, device) is not queue
    with pytest.raises(VendorError, match="INVALID_HANDLE"):
        Queue.adopt(1, device)
    with pytest.raises(PinningError, match="version 1"):
        Queue.adopt(Stream(theirs.handle, 1), device)
    theirs.close()


def test_threads_that_adopt_a_stream_at_once_get_the_same_queue() -> None:
    class Slow(FakeMemoryDevice):
        def adopt_queue(self, handle: int) -> FakeQueue:
            together.wait(60)
            return super().adopt_queue(handle)

    together = threading.Barrier(3)
    device = Slow()
    theirs = device.make_queue()
    stream = Stream(theirs.handle)
    queues = in_threads(lambda each: Queue.adopt(each, device), [stream] * 3)
    assert queues[0] is queues[1] is queues[2] is Queue.adopt(stream, device)
    theirs.close()


def test_the_stream_of_each_thread_has_a_queue_of_its_own() -> None:
    device = FakeMemoryDevice("cuda:0")
    theirs = device.make_queue()
    theirs.handle = 2
    queue = Queue.adopt(Stream(2), device)
    assert Queue.adopt(Stream(2), device) is queue
    queues = [Background(partial(Queue.adopt, Stream(2), device)).result() for _ in range(5)]
    assert len({queue, *queues}) == 6, "also one that begins when another has ended"
    for each in queues:
        each.close()
    theirs.close()


def test_queues_over_one_stream_end_one_by_one(device: FakeMemoryDevice) -> None:
    theirs = device.make_queue()
    first, second, third = (Queue.adopt(theirs.handle, device) for _ in range(3))
    event = first.submit(work)
    closing = Background(first.close)
    assert eventually(lambda: first.closed)
    assert closing.is_alive(), "its work has not ended"
    device.let_go()
    closing.result()
    first.close()
    assert event.done() and not (second.closed or third.closed)
    second.submit(work).wait()
    second.close()
    third.submit(work).wait()
    third.close()
    with pytest.raises(PinningError, match="closed"):
        first.submit(work)
    assert device.queues_alive == 1
    theirs.close()


@pytest.mark.parametrize("hashable", [True, False])
def test_queues_of_a_vendor_may_compare_equal(device: FakeMemoryDevice, hashable: bool) -> None:
    class Equal(FakeQueue):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        __hash__ = (lambda self: 1) if hashable else None  # type: ignore[assignment]

        def fill(self, ptr: int, value: bytes, count: int) -> None:
            filling.append(self)
            super().fill(ptr, value, count)

    filling: list[Equal] = []
    theirs = device.make_queue()
    theirs.held = False
    vendors = [Equal(device, False, shared=theirs) for _ in range(2)]
    with pinning.alloc(100, device=device) as memory, ExitStack() as stack:
        for vendor in vendors:
            queue = stack.enter_context(Queue._over(device, Lane(vendor, True, True, device)))
            pinning.fill(memory, 1, queue=queue)
    assert [id(each) for each in filling] == [id(each) for each in vendors]
    theirs.close()


def test_an_adopted_stream_is_kept_until_its_work_is_over(device: FakeMemoryDevice) -> None:
    theirs = device.make_queue()
    stream = Stream(theirs.handle)
    there = weakref.ref(stream)
    queue = Queue.adopt(stream, device)
    queue.submit(work)
    del queue, stream
    gc.collect()
    assert there() is not None, "the vendor is still asked about its handle, which whoever made it gives back with it"
    device.let_go()
    assert eventually(lambda: there() is None)
    theirs.close()


def test_closing_a_queue_closes_adopted_queues(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue:
        adopted = Queue.adopt(Stream(queue.handle), device)
        assert adopted is not queue
        event = adopted.submit(work)
        device.let_go()
    assert adopted.closed
    assert event.done()
    assert adopted.poll(), "and the vendor is not asked about a handle that it has taken back"


@pytest.mark.parametrize("how", ["dropped", "closed", "refused"])
def test_a_stream_that_its_owner_has_ended_is_asked_no_more(device: FakeMemoryDevice, how: str) -> None:
    """A driver crashes if it is queried about a destroyed stream, and streams may be destroyed with work pending."""
    theirs = device.make_queue()
    queue = Queue.adopt(Stream(theirs.handle), device)
    thing = Thing()
    gone = weakref.ref(thing)

    def refused(vendor: FakeQueue) -> None:
        vendor.mark(lambda: None)
        raise ValueError("after its first call")

    with suppress(ValueError):
        queue.submit(refused if how == "refused" else work, keep=(thing,))
    theirs.close()
    del thing
    device.let_go()
    if how == "closed":
        queue.close()
    del queue
    assert eventually(lambda: gone() is None)
    device.check()


def test_an_adopted_queue_is_done_when_its_owners_work_is(device: FakeMemoryDevice) -> None:
    theirs = device.make_queue()
    queue = Queue.adopt(Stream(theirs.handle), device)
    event = queue.submit(work)
    theirs.mark(lambda: None)
    device.release(steps=2)
    assert event.done()
    assert not queue.done()
    device.let_go()
    assert queue.done()
    theirs.close()


def test_a_handle_given_away(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue:
        event = queue.submit(work)
        assert queue.handle == device.queues[0].handle
        assert event.vendor_event is not None, "made before others submit"
        assert queue.submit(work).vendor_event is not None
        device.let_go()


def test_what_is_pending_when_a_handle_is_given_away_is_not_kept_longer(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue:
        thing = Thing()
        gone = weakref.ref(thing)
        queue.submit(work, (), (thing,))
        del thing
        assert queue.handle
        device.let_go()
        assert queue.poll()
        assert eventually(lambda: gone() is None)


def test_a_queue_of_the_host_that_was_adopted() -> None:
    ran: list[int] = []
    theirs = HOST.make_queue()  # type: ignore[attr-defined]
    adopted = Queue.adopt(theirs.handle, HOST)
    adopted.call(lambda: ran.append(1))
    adopted.close()
    again = Queue.adopt(theirs.handle, HOST)
    again.call(lambda: ran.append(2)).wait()
    theirs.close()
    with pytest.raises(PinningError, match="closed"):
        again.call(lambda: None)
    assert ran == [1, 2]


def test_queues_of_two_vendors_wait_for_each_other() -> None:
    device = FakeMemoryDevice()
    ran: list[str] = []
    with Queue(HOST) as host, Queue(device) as theirs:
        first = theirs.submit(lambda vendor: vendor.mark(lambda: ran.append("theirs")))  # type: ignore[attr-defined]
        second = host.call(lambda: ran.append("host"), [first])
        third = theirs.submit(lambda vendor: vendor.mark(lambda: ran.append("theirs again")), [second])  # type: ignore[attr-defined]
        assert not second.done()
        releasing = Background(device.let_go)  # its queue waits at a gate meanwhile
        third.wait()
        releasing.result()
    assert ran == ["theirs", "host", "theirs again"]
    del first, second, third
    assert eventually(lambda: gc.collect() >= 0 and device.events_alive == 0), "the thread that waited has let go"
    device.check()


def test_a_helper_that_is_being_closed_is_replaced() -> None:
    device = FakeMemoryDevice()
    helping = threading.get_ident()
    idle, closing, go_on = threading.Event(), threading.Event(), threading.Event()
    closers: list[Background] = []

    def done() -> bool:
        if threading.get_ident() == helping and not idle.is_set():  # it is found idle, and is closed before it is used
            idle.set()
            closers.append(Background(pinning.copies.trim_staging))
            assert closing.wait(WAIT)
        return idle.is_set() and FakeQueue.done(helper)  # not to the service thread before that

    def synchronize() -> None:
        closing.set()
        assert go_on.wait(WAIT)
        FakeQueue.synchronize(helper)

    with Queue(HOST) as host, Queue(device) as theirs:
        first = theirs.submit(work)
        host.submit(None, [first])
        helper = device.queues[1]
        helper.done, helper.synchronize = done, synchronize  # type: ignore[method-assign]
        device.release()
        second = theirs.submit(work)
        try:
            third = host.submit(None, [second])
        finally:
            go_on.set()
            device.let_go()
        third.wait()
        closers[0].result()
        assert len(device.queues) == 3
    del first, second, third
    assert eventually(lambda: gc.collect() >= 0 and device.events_alive == 0)
    device.check()


def test_what_cannot_wait_for_another_vendor_is_not_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    device, ran = FakeMemoryDevice(), list[int]()
    with Queue(HOST) as host, Queue(device) as theirs:
        event = theirs.submit(work)
        monkeypatch.setattr(device, "make_queue", Mock(side_effect=VendorError("fakeQueue", 1, "FAKE")))
        with pytest.raises(VendorError, match="fakeQueue"):
            host.call(lambda: ran.append(1), [event])
        device.let_go()
        host.synchronize()
    assert ran == []


def test_a_queue_does_not_wait_for_another_vendor_that_is_lost() -> None:
    lost, device = FakeMemoryDevice("lost:0"), FakeMemoryDevice("fake:0")
    queue, waiting = Queue(lost), Queue(device)
    event = queue.submit(work)
    waits = waiting.submit(work, [event])
    lost.lose()

    def ended() -> bool:
        device.release()
        try:
            return waits.done()
        except VendorError:
            return True

    assert eventually(ended)
    device.let_go()
    waiting.close()
    waits = event = Event._over()  # drops the vendors' events
    gc.collect()
    device.check()


def test_threads_that_come_at_once_get_the_same_default_queue() -> None:
    class Slow(FakeMemoryDevice):
        def make_queue(self) -> FakeQueue:
            together.wait(60)
            return super().make_queue()

    together = threading.Barrier(3)
    device = Slow()
    queues = in_threads(default_queue, [device] * 3)
    assert queues[0] is queues[1] is queues[2] is default_queue(device)
    assert device.queues_alive == 1, "the others were given back"


def test_the_default_queue() -> None:
    queue = default_queue("host")
    assert default_queue(HOST) is queue
    assert as_queue(None, HOST) is queue
    assert queue.order == "in_order"
    queue.close()
    assert default_queue(HOST) is not queue


# ---- threads ----


def test_many_threads_submit_at_once() -> None:
    device = FakeMemoryDevice(held=False)
    queues = [Queue(device), Queue(device, "out_of_order"), Queue(device)]
    ran = [0] * 4

    def submit(number: int) -> None:
        event = Event()
        for turn in range(200):
            queue = queues[(turn + number) % 3]

            def count(number: int = number) -> None:
                ran[number] += 1

            event = queue.submit(lambda vendor, count=count: vendor.mark(count), [event], (Thing(),))
        event.wait()

    in_threads(submit, range(4))
    assert ran == [200] * 4
    for queue in queues:
        queue.close()
    device.check()


def test_an_object_that_submits_when_it_is_collected_during_a_submission(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue:

        class Last:
            def __del__(self) -> None:
                events.append(queue.submit(work))

        def drops(vendor: object) -> None:
            work(vendor)
            things.clear()
            work(vendor)

        events: list[Event] = []
        things = [Last()]
        outer = queue.submit(drops, (), (Thing(),))
        assert [step.method for step in device.queues[0].pending()] == ["mark", "mark", "record", "mark"]
        device.let_go()
        outer.wait()
        events.pop().wait()


@pytest.mark.parametrize("seed", range(3))
def test_threads_submit_at_once_and_everything_comes_after_what_it_waits_for(seed: int) -> None:
    """Each operation, when it runs, checks that all operations that it must come after have run, by its own model."""
    queues = [Queue(HOST), Queue(HOST, "out_of_order"), Queue(HOST)]
    known: list[tuple[int, Event]] = []  # of any thread
    ran: set[int] = set()
    early: list[int] = []
    numbers = itertools.count()

    def submit(draw: random.Random) -> None:
        last_of: dict[Queue, int] = {}  # in an in-order queue, work comes after all that this thread submitted there
        for _ in range(150):
            alive = list(known)
            queue, waits = draw.choice(queues), draw.sample(alive, min(len(alive), draw.randrange(4)))
            number, before = next(numbers), {each for each, _ in waits}
            if queue.order == "in_order" and queue in last_of:
                before.add(last_of[queue])

            def run(number: int = number, before: set[int] = before) -> None:
                if not before <= ran:
                    early.append(number)
                ran.add(number)

            known.append((number, queue.call(run, [event for _, event in waits])))
            last_of[queue] = number
            if draw.random() < 0.2:
                del known[: draw.randrange(len(alive) + 1)]

    in_threads(submit, [random.Random(100 * seed + thread) for thread in range(4)])
    for queue in queues:
        queue.close()
    assert early == []
    assert ran == set(range(600))


def test_a_queue_is_a_queue_already() -> None:
    with Queue(HOST) as queue:
        assert Queue.adopt(queue) is queue


def test_a_wait_for_all_work_does_not_wait_for_later_work() -> None:
    with Queue("host") as queue:
        for attempt in range(10):
            earlier, later = threading.Event(), threading.Event()
            queue.call(earlier.wait)
            waiting = Background(queue.synchronize)
            waiting.join(0.1 * (attempt + 1))  # it waits by then; if not, the next attempt gives it longer
            queue.call(later.wait)
            waiting.join(0.3)  # longer than it sleeps without looking for signals
            earlier.set()
            waiting.join(1)
            returned = not waiting.is_alive()
            later.set()
            waiting.result()
            if returned:
                return
    pytest.fail("it has waited for work that was submitted after its call")

# SPDX-License-Identifier: Apache-2.0
"""Events: when they are made, what they say, how they fail."""

from __future__ import annotations

import asyncio
import threading
import traceback
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fake_device import WAIT, Background
from fake_memory import FakeMemoryDevice, FakeQueue
from pinning import PinningError, VendorError
from pinning.queues import Event, Queue


def work(vendor: object) -> None:
    vendor.mark(lambda: None)  # type: ignore[attr-defined]


def test_events_that_nobody_needs_are_not_made(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue:
        for _ in range(50):
            queue.submit(work)
        queue.submit(None)
        device.release()
        queue.synchronize()
    assert device.events_made == 0


def test_a_vendor_event_stands_right_after_its_operation(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue:
        kept = queue.submit(work)
        assert device.events_made == 0, "nobody has asked yet"
        queue.submit(work)
        device.release(steps=2)
        assert device.queues[0].done_steps == ["mark", "record"]
        assert kept.done(), "although later work is held"
        device.let_go()


def test_events_at_one_place_share_what_the_vendor_has(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue:
        events = [queue.submit(work), queue.submit(None), queue.submit(None)]
        queue.submit(work)
        assert device.events_made == 1
        device.let_go()
        assert all(event.done() for event in events)
        assert device.events_made == 1


def test_waiting_in_the_same_queue_needs_no_event(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue:
        queue.submit(work, [queue.submit(work)])
        assert [step.method for step in device.queues[0].pending()] == ["mark", "record", "mark"]
        device.let_go()


def test_another_queue_waits_and_is_not_told_twice(device: FakeMemoryDevice) -> None:
    with Queue(device) as one, Queue(device) as other:
        first = one.submit(work)
        other.submit(work, [first])
        other.submit(work, [first])
        assert [step.method for step in device.queues[1].pending()] == ["wait", "mark", "mark"]
        device.release(queue=device.queues[1])
        assert device.queues[1].done_steps == []
        device.let_go()


def test_done_and_wait(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue:
        event = queue.submit(work)
        assert not event.done()
        waiter = Background(event.wait)
        device.let_go()
        waiter.result()
        assert event.done()
        assert event.error is None


@pytest.mark.parametrize("taken", [lambda event: event, lambda event: _finished(event)], ids=["task", "awaited"])
def test_await(device: FakeMemoryDevice, taken: Callable[[Event], Coroutine[Any, Any, None]]) -> None:
    unhandled: list[Any] = []

    async def wait(queue: Queue) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        event = queue.submit(work)
        waiter = asyncio.create_task(taken(event))
        for _ in range(10):
            await asyncio.sleep(0)
            assert not waiter.done(), "the loop goes on meanwhile"
        device.release()
        await waiter
        failed = Event._over(queue, MemoryError("too much"))
        with pytest.raises(MemoryError, match="too much"):
            await asyncio.create_task(taken(failed))
        cancelled = asyncio.create_task(taken(queue.submit(work)))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        device.let_go()
        await asyncio.sleep(0.02)  # longer than events are left alone

    with Queue(device) as queue:
        asyncio.run(wait(queue))
    assert unhandled == []


async def _finished(event: Event) -> None:
    await event


def test_an_event_made_by_itself_is_over() -> None:
    event = Event()
    assert event.done()
    event.wait()
    assert (event._position, event.queue) == (0, None)
    with pytest.raises(PinningError, match="has no time"):
        event.elapsed(event)


def test_an_event_that_failed_from_the_start(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue:
        event = Event._over(queue, MemoryError("too much"))
        assert event.queue is queue
        for ask in (event.done, event.wait):
            with pytest.raises(MemoryError, match="too much"):
                ask()
        after = queue.submit(work, [event])
        device.let_go()
        with pytest.raises(MemoryError, match="too much"):
            after.wait()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("ask", [Queue.poll, Queue.done, Queue.synchronize, None])
def test_work_that_is_submitted_during_a_question_is_not_over(
    device: FakeMemoryDevice, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Queue], object] | None, shared: bool
) -> None:
    with Queue(device) as queue:
        (vendor,) = device.queues
        if shared:
            queue._share()
        first, later = queue.submit(work), list[Event]()
        device.release()

        def asked(method: str) -> Callable[[], object]:
            answer = getattr(vendor, method)

            def submits_meanwhile() -> object:
                over = answer()
                if not later:
                    later.append(Background(lambda: queue.submit(work)).result())
                return over

            return submits_meanwhile

        with monkeypatch.context() as patched:
            for method in ("done", "synchronize"):
                patched.setattr(vendor, method, asked(method))
            ask(queue) if ask else first.done()
        later = later or [queue.submit(work)]  # it had an event to ask instead
        over = first.done(), later[0].done()
        device.let_go()
        later[0].wait()
    assert over == (True, False)


def test_any_failure_of_a_wait_list_is_the_events(device: FakeMemoryDevice) -> None:
    with Queue(device) as one, Queue(device) as other, Queue(device) as third:
        device.queues[1].fail_step()
        waits = [one.submit(work), other.submit(work)]
        after = [third.submit(work, waits), third.submit(work, waits[::-1])]
        device.let_go()
        for event in after:
            with pytest.raises(VendorError):
                event.wait()


def test_a_failure_reaches_those_that_wait_for_it_and_no_others(device: FakeMemoryDevice) -> None:
    with Queue(device) as one, Queue(device) as other:
        device.queues[0].fail_step()
        failing = one.submit(work)
        next_in_queue = one.submit(work)
        across = other.submit(work, [failing])
        further = other.submit(work, [across])
        unrelated = other.submit(work)
        device.let_go()
        for event in (further, across, failing):
            with pytest.raises(VendorError, match="FAKE_WORK_FAILED"):
                event.wait()
            assert isinstance(event.error, VendorError)
        next_in_queue.wait()
        unrelated.wait()


def test_the_error_is_not_lost_when_the_vendor_was_asked_by_others(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue:
        device.queues[0].fail_step()
        event = queue.submit(work)
        device.release()
        assert not queue.poll(), "the vendor tells an error, and no more"
        with pytest.raises(VendorError, match="FAKE_WORK_FAILED"):
            event.wait()
        device.queues[0].fail_step()
        queue.submit(work)
        device.release()
        queue.poll()
        with pytest.raises(VendorError, match="FAKE_WORK_FAILED"):
            queue.synchronize()
        queue.synchronize()


def test_time(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue:
        start = queue.record()
        for _ in range(5):
            queue.submit(work)
        end = queue.record()
        device.let_go()
        assert end.elapsed(start) == 6.0, "five and the record: one second a step"
        assert start.elapsed(end) == -6.0


def test_the_time_of_work_whose_events_are_made_when_it_is_asked_for(device: FakeMemoryDevice) -> None:
    device.let_go()
    with Queue(device) as queue, Queue(device) as other:
        start, end = queue.submit(work), other.submit(work)
        assert device.events_made == 0
        assert end.elapsed(start) == 1.0, "first the event from which time is measured"


def test_a_vendors_event_may_be_a_tuple(device: FakeMemoryDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pair(tuple[Any, ...]):
        def done(self) -> bool:
            return bool(self[0].done())

        def wait(self) -> None:
            self[0].wait()

        def seconds_since(self, earlier: Pair) -> float:
            return float(self[0].seconds_since(earlier[0]))

    record, wait = FakeQueue.record, FakeQueue.wait
    monkeypatch.setattr(FakeQueue, "record", lambda self: Pair((record(self), 1)))
    monkeypatch.setattr(FakeQueue, "wait", lambda self, event: wait(self, event[0]))
    with Queue(device) as queue, Queue(device) as other:
        first = queue.record()
        queue.submit(work)
        second = queue.record()
        other.wait_for(second)
        device.let_go()
        other.synchronize()
        assert second.elapsed(first) > 0
    del first, second


def test_the_time_of_a_record_is_that_of_its_call(device: FakeMemoryDevice) -> None:
    device.let_go()
    with Queue(device) as queue, Queue(device) as other:
        first = queue.record()
        for _ in range(5):
            other.submit(work)
        assert queue.record().elapsed(first) == 6.0, "though nothing came between in its own queue"


def test_a_record_comes_after_what_others_have_submitted() -> None:
    go, ran = threading.Event(), list[bool]()
    with Queue("host:0") as queue:
        others = Queue.adopt(queue.handle, "host:0")
        kept = queue.call(lambda: None)
        kept.wait()
        others.call(lambda: ran.append(go.wait(WAIT)))
        points = [queue.record(), queue.submit(None)]
        assert not any(point.done() for point in points)
        go.set()
        points[0].wait()
        assert ran == [True]
        assert kept.done()


def test_a_long_chain_is_no_burden(device: FakeMemoryDevice) -> None:
    with Queue(device) as one, Queue(device) as other:
        event = one.submit(work)
        for _ in range(5_000):
            event = other.submit(None, [one.submit(None, [event])])
        device.let_go()
        event.wait()
        del event


def test_many_events_that_are_over_at_once_are_no_burden() -> None:
    go = threading.Event()
    with Queue("host") as one, Queue("host") as other:
        first = one.call(lambda: go.wait(WAIT))
        events = [other.submit(None, [first]) for _ in range(20_000)]
        go.set()
        events[-1].wait()
        assert all(event.done() for event in events)


def test_an_event_outlives_its_queue(device: FakeMemoryDevice) -> None:
    queue = Queue(device)
    event = queue.submit(work)
    device.let_go()
    device.queues[0].fail_step()
    failing = queue.submit(work)
    with pytest.raises(VendorError, match="FAKE_WORK_FAILED"):
        queue.close()
    assert queue.closed
    assert event.done()
    with pytest.raises(VendorError, match="FAKE_WORK_FAILED"):
        failing.wait()


def test_events_that_are_only_waited_for_by_queues_do_not_pile_up(device: FakeMemoryDevice) -> None:
    made = []
    with Queue(device) as one, Queue(device) as other:
        last = one.submit(work)
        for number in range(1000):
            for queue in (other, one):
                last = queue.submit(work, [last])
                made.append(weakref.ref(last))
            if number > 10:  # the device is always a little behind
                device.release(steps=6)
        assert sum(each() is not None for each in made) < 400
        assert device.events_alive < 400
        device.let_go()
        last.wait()


def test_an_out_of_order_queue_needs_no_event_where_one_lane_does(device: FakeMemoryDevice) -> None:
    with Queue(device, "out_of_order") as queue:
        first = queue.submit(work)
        for _ in range(3):
            first = queue.submit(work, [first])
        assert len(device.queues) == 1, "behind what it waits for"
        assert "wait" not in [step.method for step in device.queues[0].pending()]
        device.let_go()


def test_times_of_two_vendors_are_not_compared(device: FakeMemoryDevice) -> None:
    device.let_go()
    with Queue(device) as theirs, Queue("host:0") as host:
        here, there = host.record(), theirs.record()
        with pytest.raises(PinningError, match="two vendors"):
            here.elapsed(there)
        assert host.record().elapsed(here) >= 0


def test_an_event_raises_the_same_each_time_and_its_traceback_does_not_grow(device: FakeMemoryDevice) -> None:
    def raised() -> BaseException:
        with pytest.raises(ZeroDivisionError) as caught:
            event.wait()
        return caught.value

    with Queue("host:0") as queue:
        event = queue.call(lambda: 1 / 0)
        lengths = [len(traceback.extract_tb(raised().__traceback__)) for _ in range(3)]
    assert len(set(lengths)) == 1


@pytest.mark.parametrize("own", [KeyError("own"), StopIteration("own")])
def test_an_operation_that_fails_after_another_has_its_own_error(own: Exception) -> None:
    """Also to a task, to which StopIteration would mean that all went well."""

    def fail(error: Exception) -> None:
        raise error

    async def awaited(event: Event) -> None:
        await asyncio.wait_for(event, WAIT)

    with Queue("host") as queue, Queue("host") as other:
        first = other.call(lambda: fail(ValueError("first")))
        second = queue.call(lambda: fail(own), [first])
        for wait in (second.wait, second.wait, lambda: asyncio.run(awaited(second))):
            with pytest.raises((KeyError, RuntimeError), match=r"own|raised StopIteration"):
                wait()
        with pytest.raises(ValueError, match="first"):
            first.wait()


def test_an_error_is_told_once_and_not_by_events_that_come_later(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue:
        failed = queue.submit(work)
        device.fail_call()
        assert not queue.poll()  # the vendor reports the error here, and may never do so again
        later = queue.submit(None)
        device.release()
        with pytest.raises(VendorError):
            failed.wait()
        later.wait()
        queue.record().wait()

# SPDX-License-Identifier: Apache-2.0
"""How queues end: closing, Ctrl-C, failing calls, a lost device, fork, the end of the program."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable

import pytest

import pinning
from child_process import run_in_child
from fake_device import WAIT, Background
from fake_memory import FakeEvent, FakeMemoryDevice
from pinning import PinningError, VendorError
from pinning.conformance.faults import eventually
from pinning.queues import Event, Queue, default_queue
from pinning.queues.queue import Order
from queue_work import Thing, program, work

HOST = pinning.device("host:0")


# ---- close, and faults ----


def test_close_waits_and_then_nothing_can_be_submitted(device: FakeMemoryDevice) -> None:
    queue = Queue(device)
    event = queue.submit(work)
    closing = Background(queue.close)
    device.let_go()
    closing.result()
    queue.close()
    assert queue.closed
    assert event.done()
    for attempt in (lambda: queue.submit(work), queue.record, lambda: queue.call(lambda: None)):
        with pytest.raises(PinningError, match="closed"):
            attempt()


def test_a_point_in_a_queue_keeps_objects_alive(device: FakeMemoryDevice) -> None:
    thing = Thing()
    known = weakref.ref(thing)
    with Queue(device) as queue:
        queue.submit(work)
        queue.submit(None, keep=(thing,))
        del thing
        kept = known() is not None
        device.let_go()
        queue.synchronize()
    assert kept and eventually(lambda: known() is None)


def test_what_is_kept_is_released_though_another_thread_is_still_releasing(device: FakeMemoryDevice) -> None:
    class Slow:
        def __del__(self) -> None:
            releasing.set()
            go_on.wait(WAIT)

    releasing, go_on = threading.Event(), threading.Event()
    thing = Thing()
    known = weakref.ref(thing)
    with Queue(device) as queue:
        queue.submit(work, keep=(Slow(),))
        event = queue.submit(work, keep=(thing,))
        del thing
        device.let_go()
        polling = Background(queue.done)
        assert releasing.wait(WAIT)
        event.wait()
        assert known() is None
        go_on.set()
        polling.result()


def test_every_vendor_call_may_fail_at_every_point(device: FakeMemoryDevice) -> None:
    def everything() -> list[Event]:
        ran.clear()
        with Queue(device) as one, Queue(device, "out_of_order") as other:
            first = one.submit(lambda vendor: vendor.mark(lambda: ran.append(1)))  # type: ignore[attr-defined]
            second = other.submit(lambda vendor: vendor.mark(lambda: ran.append(2)), [first], (Thing(),))  # type: ignore[attr-defined]
            third = other.record()
            one.wait_for(third)
            fourth = one.submit(lambda vendor: vendor.mark(lambda: ran.append(4)), [second])  # type: ignore[attr-defined]
            events = [first, second, third, fourth]
            for event in events:
                event.wait()
            fourth.elapsed(third)
        return events

    ran: list[int] = []
    device.let_go()
    everything()
    failures, point = 0, 0
    while True:
        device.fail_call(VendorError("fakeInjected", 7, "FAKE_INJECTED"), calls_before=point)
        try:
            everything()
        except VendorError as error:
            assert error.name == "FAKE_INJECTED"
            failures += 1
        device.release()
        pending_failures = bool(device._call_failures)
        device.fail_no_more()
        if pending_failures:
            break
        point += 1
    assert failures > 10
    everything()
    assert ran == [1, 2, 4]


def test_a_lost_device(device: FakeMemoryDevice) -> None:
    thing = Thing()
    gone = weakref.ref(thing)
    queue, other = Queue(device), Queue(device, "out_of_order")
    event = queue.submit(work, (), (thing,))
    after = other.submit(work, [event])
    device.lose()
    for ask in (event.wait, after.done, queue.synchronize, lambda: queue.submit(work, (), (Thing(),))):
        with pytest.raises(VendorError, match="LOST"):
            ask()
    for each in (queue, other):
        with pytest.raises(VendorError, match="LOST"):
            each.close()
        assert each.closed
    del thing
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    "waits",
    [
        Queue.close,
        Queue.synchronize,
        lambda queue: queue.call(print).wait(),
        lambda queue: pinning.copy(bytearray(8), bytes(8), queue=queue),
    ],
)
def test_a_function_of_a_queue_cannot_wait_for_itself(waits: Callable[[Queue], object]) -> None:
    with Queue(HOST) as queue:
        with pytest.raises(PinningError, match="a queue of host:0 calls cannot wait for work of that queue"):
            queue.call(lambda: waits(queue)).wait()
        assert not queue.closed
        queue.call(lambda: None).wait()
        assert queue.done()


def test_a_closed_queue_has_nothing_to_wait_for() -> None:
    queue = Queue(HOST)
    ran: list[int] = []
    event = queue.call(lambda: ran.append(1))
    queue.close()
    for wait in (queue.synchronize, event.wait, HOST.synchronize):  # type: ignore[attr-defined]
        Background(wait).result()
    assert (queue.done(), event.done(), ran) == (True, True, [1])


@pytest.mark.parametrize("ends", [Queue.close, lambda queue: (queue.synchronize(), queue.submit(work))])
def test_what_is_over_stays_so_though_the_vendors_event_is_recorded_later(
    device: FakeMemoryDevice, ends: Callable[[Queue], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(device)
    event = queue.submit(work)
    assert event.vendor_event is None
    device.release()
    ends(queue)
    assert event.vendor_event is not None
    with monkeypatch.context() as late:
        late.setattr(FakeEvent, "done", lambda _: False)
        late.setattr(FakeEvent, "wait", lambda _: pytest.fail("it would wait for later work"))
        assert event.done()
        event.wait()
    device.let_go()
    queue.close()


def test_events_are_over_once_a_queue_of_the_host_is_closed() -> None:
    for _ in range(200):
        queue = Queue(HOST)
        event = queue.call(lambda: None)
        queue.close()
        assert event.done()


def test_close_waits_for_a_submission_in_progress(device: FakeMemoryDevice) -> None:
    thing = Thing()
    gone = weakref.ref(thing)
    begun, go = threading.Event(), threading.Event()

    def slow(vendor: object) -> None:
        begun.set()
        assert go.wait(WAIT)
        work(vendor)

    queue = Queue(device)
    submitting = Background(lambda thing=thing: queue.submit(slow, (), (thing,)))  # type: ignore[misc]
    assert begun.wait(WAIT)
    closing = Background(queue.close)
    assert eventually(lambda: queue.closed)
    go.set()
    event = submitting.result()
    assert isinstance(event, Event)
    assert not event.done()
    del submitting, thing
    assert gone() is not None, "its work is still to come"
    device.let_go()
    closing.result()
    assert event.done()
    assert gone() is None


def test_a_queue_is_not_given_back_while_the_vendor_is_asked_about_it(
    device: FakeMemoryDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(device)
    queue.submit(work)
    device.let_go()
    vendor, begun, go = device.queues[0], threading.Event(), threading.Event()

    def done() -> bool:
        begun.set()
        assert go.wait(WAIT)
        assert not vendor.closed, "a driver may crash here"
        return True

    monkeypatch.setattr(vendor, "done", done)
    asking = Background(queue.poll)
    assert begun.wait(WAIT)
    closing = Background(queue.close)
    assert eventually(lambda: "queue.synchronize" in device.vendor_calls)
    assert not vendor.closed
    go.set()
    assert asking.result() is True
    closing.result()
    assert vendor.closed


def test_an_object_that_closes_the_queue_when_it_is_collected_during_a_submission(device: FakeMemoryDevice) -> None:
    queue = Queue(device)

    class Last:
        def __del__(self) -> None:
            queue.close()

    def drops(vendor: object) -> None:
        things.clear()
        work(vendor)

    things = [Last()]
    event = queue.submit(drops)
    assert queue.closed
    device.let_go()
    event.wait()
    assert eventually(lambda: device.queues_alive == 0), "another thread gives it back"


def test_ctrl_c_during_close_leaves_the_queue_open() -> None:
    go = threading.Event()
    queue = Queue(HOST)
    event = queue.call(lambda: go.wait(WAIT))
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        queue.close()
    assert not queue.closed
    go.set()
    queue.call(lambda: None).wait()
    assert event.done()
    queue.close()
    assert queue.closed


@pytest.mark.parametrize("order", ["in_order", "out_of_order"])
@pytest.mark.parametrize("how", ["wait", "synchronize", "close", "adopted"])
def test_what_a_handler_of_a_signal_raises_is_no_error_of_the_work(how: str, order: Order) -> None:
    go, seen = threading.Event(), list[int]()

    def handler(number: int, frame: object) -> None:
        seen.append(number)
        raise TimeoutError

    queue = Queue(HOST, order)
    event, second = (queue.call(lambda: go.wait(WAIT)) for _ in range(2))  # out of order, each has a vendor's queue
    adopted = Queue.adopt(queue.handle, HOST) if how == "adopted" else queue
    if how == "adopted":
        adopted.call(lambda: None)
    wait = {"wait": event.wait, "synchronize": queue.synchronize, "close": queue.close, "adopted": adopted.close}[how]
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeoutError):
            threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
            wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (seen, queue.closed, adopted.closed, event.error) == ([signal.SIGUSR1], False, False, None)
    assert not second.done(), "it ends the wait for all"
    go.set()
    event.wait()
    for each in (adopted, queue):
        each.synchronize()
        each.close()


@pytest.mark.parametrize("order", ["in_order", "out_of_order"])
def test_ctrl_c_in_each_vendor_call_of_close(device: FakeMemoryDevice, order: Order) -> None:
    """A device in Python may raise it anywhere: the queue stays open, accepts work, and closes the next time."""
    point = 0
    while True:
        queue = Queue(device, order)
        events = [queue.submit(work) for _ in range(3)]  # out of order, each is in a vendor's queue of its own
        device.release()
        device.fail_call(KeyboardInterrupt(), calls_before=point)
        try:
            queue.close()
        except KeyboardInterrupt:
            assert not queue.closed
            device.fail_no_more()
            events.append(queue.submit(work))
            device.release()
            events[-1].wait()
            queue.close()
        else:
            device.fail_no_more()
            break
        assert queue.closed
        assert all(event.done() for event in events)
        assert device.queues_alive == 0
        point += 1
    device.let_go()
    assert point >= (2 if order == "in_order" else 6), "waiting and giving back, of each vendor's queue"


def test_what_is_kept_is_released_by_itself_also_after_a_pause(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue:
        for _ in range(3):
            thing = Thing()
            gone = weakref.ref(thing)
            queue.submit(work, (), (thing,))
            del thing
            device.release()
            assert eventually(lambda gone=gone: gone() is None)
            time.sleep(0.3)  # in which the service thread finds that nothing is submitted any more


def test_a_dropped_queue_of_a_lost_device_keeps_nothing(device: FakeMemoryDevice) -> None:
    thing = Thing()
    gone = weakref.ref(thing)
    queue = Queue(device)
    queue.submit(work, (), (thing,))
    device.lose()
    del queue, thing
    assert eventually(lambda: gone() is None)


def test_a_queue_that_the_vendor_does_not_take_back_is_still_open(device: FakeMemoryDevice) -> None:
    device.let_go()
    queue = Queue(device)
    device.fail_call(calls_before=1)  # after the call of synchronize
    with pytest.raises(VendorError, match="FAKE_FAILURE"):
        queue.close()
    assert not queue.closed
    queue.submit(work).wait()
    queue.close()


def test_what_was_submitted_before_a_refusal_comes_before_later_events(device: FakeMemoryDevice) -> None:
    def refused(vendor: object) -> None:
        vendor.mark(lambda: ran.append(2))  # type: ignore[attr-defined]
        raise VendorError("fakeInjected", 7, "FAKE_INJECTED")

    ran: list[int] = []
    with Queue(device) as queue:
        first = queue.submit(lambda vendor: vendor.mark(lambda: ran.append(1)))  # type: ignore[attr-defined]
        with pytest.raises(VendorError, match="INJECTED"):
            queue.submit(refused)
        last = queue.record()
        while not last.done() and device.release(steps=1):
            pass
        assert ran == [1, 2]
        assert first.done()
        device.let_go()


# ---- an adopted queue, whose progress only events show ----


def test_an_event_that_the_vendor_refuses_in_an_adopted_queue(device: FakeMemoryDevice) -> None:
    theirs = device.make_queue()
    queue, thing = Queue.adopt(theirs.handle, device), Thing()
    gone = weakref.ref(thing)
    device.fail_call(calls_before=1)  # after the work itself
    event = queue.submit(work, (), (thing,))
    del thing
    assert event.vendor_event is None
    assert not event.done()
    assert not queue.done()
    device.release()
    assert not queue.poll(), "not asked: others may submit there too"
    assert event.done()
    assert queue.done()
    assert gone() is None
    device.let_go()
    queue.close()
    theirs.close()


@pytest.mark.parametrize("adopted", [True, False])
def test_what_a_dropped_queues_work_uses_outlasts_it_though_its_event_was_refused(
    device: FakeMemoryDevice, adopted: bool
) -> None:
    """Until the end of the work, which an event made later shows; in a stream of others, for ever."""
    theirs, thing = device.make_queue(), Thing()
    queue = Queue.adopt(theirs.handle, device) if adopted else Queue(device)
    assert queue.handle
    gone = weakref.ref(thing)
    device.fail_call(calls_before=1)
    queue.submit(work, (), (thing,))
    del thing, queue
    gc.collect()
    time.sleep(0.05)
    assert gone() is not None
    device.let_go()
    assert adopted or eventually(lambda: gone() is None)
    theirs.close()


@pytest.mark.parametrize("recovers", [True, False])
def test_close_of_an_adopted_queue_after_a_refused_event(device: FakeMemoryDevice, recovers: bool) -> None:
    """The event is recorded after all, and waited for, or if that is refused, all work in the stream is."""
    theirs = device.make_queue()
    queue, thing = Queue.adopt(theirs.handle, device), Thing()
    gone = weakref.ref(thing)
    device.fail_call(calls_before=1)
    queue.submit(work, (), (thing,))
    del thing
    if not recovers:
        device.fail_call()
    closing = Background(queue.close)
    assert eventually(lambda: queue.closed)
    assert gone() is not None
    device.let_go()
    closing.result()
    assert gone() is None
    theirs.close()


# ---- fork ----


def test_the_child_of_a_fork(device: FakeMemoryDevice) -> None:
    queue = Queue(device)
    event, over = queue.submit(work, (), (Thing(),)), Event()

    def child() -> None:
        calls = len(device.vendor_calls)
        for ask in (lambda: queue.submit(work), queue.close, queue.synchronize, event.wait, event.done):
            with pytest.raises(PinningError, match="fork"):
                ask()
        over.wait()
        assert len(device.vendor_calls) == calls
        ran: list[int] = []
        with Queue(HOST) as own:
            own.call(lambda: ran.append(1))
        assert ran == [1]

    run_in_child(child)
    device.let_go()
    event.wait()
    queue.close()


def test_what_a_refused_submission_keeps_can_be_freed_after_it() -> None:
    with Queue(HOST) as queue, pinning.alloc(4096, device="host") as memory:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                queue.submit(lambda _: 1 / 0, keep=(memory,))
        queue.synchronize()
        memory.free()


def test_a_child_has_default_queues_of_its_own() -> None:
    array, there = bytearray(b"abc"), bytearray(3)
    pinning.copy(there, array, queue=default_queue(HOST))

    def child() -> None:
        pinning.copy(there, b"def", queue=default_queue(HOST))
        assert there == b"def"

    run_in_child(child)
    assert there == b"abc"


def test_the_child_drops_the_parents_queues_in_silence() -> None:
    device = FakeMemoryDevice()
    queues = [Queue(device)]
    queues[0].submit(work, (), (Thing(),))

    def child() -> None:
        calls = len(device.vendor_calls)
        queues.clear()
        gc.collect()
        Queue(HOST).close()
        assert len(device.vendor_calls) == calls

    run_in_child(child)
    device.let_go()
    queues.pop().close()
    device.check()


def test_a_child_cannot_wait_for_its_parent() -> None:
    go = threading.Event()
    with Queue(HOST) as queue:
        events = [queue.call(lambda: go.wait(WAIT)) for _ in range(2)]
        assert events[0].vendor_event is not None

        def child() -> None:
            with Queue(HOST) as own:
                for event in events:
                    with pytest.raises(PinningError, match="fork"):
                        own.call(lambda: None, [event])
                    with pytest.raises(PinningError, match="fork"):
                        event.elapsed(event)

        run_in_child(child)
        go.set()


def test_a_child_adopts_for_itself(device: FakeMemoryDevice) -> None:
    theirs = device.make_queue()

    class Stream:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, theirs.handle

    stream = Stream()
    parents = Queue.adopt(stream, device)

    def child() -> None:
        own = Queue.adopt(stream, device)
        assert own is not parents
        own.submit(work)

    run_in_child(child)
    parents.close()
    theirs.close()


def test_a_function_that_a_queue_calls_forks_and_returns_in_the_child() -> None:
    """The child's only thread is that of the parent's queue, which must not go on with the queue's other work."""
    done = program("""
        read, write = os.pipe()
        children = []
        def fork():
            children.append(os.fork())
            if not children[-1]:
                os.write(write, b"child ")
        queue = Queue("host")
        queue.call(fork)
        queue.call(lambda: os.write(write, b"parent ")).wait()
        print(os.waitpid(children[0], 0)[1])
        os.close(write)
        print(sorted(os.read(read, 100).split()))
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n[b'child', b'parent']\n", "")


def test_a_child_that_a_queues_function_forks_goes_on_in_its_other_threads() -> None:
    done = program("""
        def fork():
            global child
            child = os.fork()
            if not child:
                def late():
                    time.sleep(0.2)
                    os._exit(3)
                threading.Thread(target=late).start()
        Queue("host").call(fork).wait()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_a_destructor_on_the_service_thread_forks_and_returns_in_the_child() -> None:
    done = program("""
        forked = threading.Event()
        class Forks:
            def __del__(self):
                global child
                child = os.fork()
                forked.set()
        queue = Queue("host")
        queue.submit(lambda vendor: None, (), (Forks(),))
        assert forked.wait(100)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


# ---- exit ----


def test_exit_waits_for_work() -> None:
    done = program("""
        queue = Queue("host")
        queue.call(lambda: time.sleep(0.2))
        queue.call(lambda: os.write(1, b"done"))
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done", "")


def test_exit_does_not_wait_for_ever() -> None:
    done = program("""
        from pinning.queues import pending
        pending.EXIT_SECONDS = 0.1
        queue = Queue("host")
        queue.call(lambda: time.sleep(1000))
        queue.call(lambda: os.write(1, b"done"))
    """)
    assert (done.returncode, done.stdout) == (0, "")
    assert "work is still in a queue" in done.stderr


@pytest.mark.parametrize(
    "left",
    [
        pytest.param("queue.call(lambda: [sum(range(100)) for _ in iter(int, 1)])", id="in Python"),
        pytest.param("queue.call(int, [fake.submit(lambda vendor: vendor.mark(print))])", id="at a gate"),
        pytest.param("queue.submit(lambda vendor: vendor.wait_value(word.ctypes.data, 1))", id="at a word"),
        pytest.param(
            "queue.submit(lambda vendor: vendor.call(sleep, 1000), (), (word,))", id="in a function without the GIL"
        ),
    ],
)
def test_the_process_ends_whatever_a_queue_is_at(left: str) -> None:
    done = program(f"""
        import ctypes, numpy
        from fake_memory import FakeMemoryDevice
        from pinning.queues import pending
        pending.EXIT_SECONDS = 0.1
        queue, fake = Queue("host"), Queue(FakeMemoryDevice())
        word, sleep = numpy.zeros(1, "u4"), ctypes.cast(ctypes.CDLL(None).sleep, ctypes.c_void_p).value
        {left}
        queue.submit(lambda vendor: vendor.fill(word.ctypes.data, b"1", 4), (), (word,))
    """)
    assert (done.returncode, done.stdout) == (0, "")
    assert "work is still in a queue" in done.stderr
    assert "Error" not in done.stderr


def test_exit_does_not_wait_for_a_lost_device() -> None:
    done = program("""
        from fake_memory import FakeMemoryDevice
        device = FakeMemoryDevice()
        queue = Queue(device)
        event = queue.submit(lambda vendor: vendor.mark(print), (), (device,))
        device.lose()
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("what", ["a call that is refused", "an event that is refused"])
def test_exit_does_not_wait_for_what_an_adopted_queue_cannot_show(what: str) -> None:
    refused = {
        "a call that is refused": """
            owner = Queue("host")
            adopted = Queue.adopt(owner.handle, "host")
            adopted.call(lambda: None).wait()
            owner.close()
            try:
                adopted.call(lambda: None)
            except pinning.PinningError:
                pass
        """,
        "an event that is refused": """
            from fake_memory import FakeMemoryDevice
            device = FakeMemoryDevice()
            theirs = device.make_queue()
            adopted = Queue.adopt(theirs.handle, device)
            device.fail_call(calls_before=1)
            adopted.submit(lambda vendor: vendor.mark(print), (), (device,))
        """,
    }
    done = program(
        f"""
        from pinning.queues import pending
        pending.EXIT_SECONDS = 0.1  # it warns after that
        {refused[what].strip()}
    """.replace("\n            ", "\n        ")
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_exit_does_not_wait_for_what_is_submitted_meanwhile() -> None:
    """As by a daemon thread that always has something pending."""
    done = program("""
        import itertools
        from fake_memory import FakeEvent, FakeMemoryDevice
        from pinning.queues import pending

        def submit():
            queue.submit(lambda vendor: vendor.mark(lambda: None), (), (device,))

        def submit_and_look(event, look=FakeEvent.done, turns=itertools.count()):
            submit()
            device.release(steps=2)
            return next(turns) % 2 == 1 and look(event)  # one at a time

        pending.EXIT_SECONDS = 2  # it warns after that
        device = FakeMemoryDevice()
        theirs = device.make_queue()
        queue = Queue.adopt(theirs.handle, device)  # whose progress is read from events
        for _ in range(3):
            submit()
        FakeEvent.done = submit_and_look
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

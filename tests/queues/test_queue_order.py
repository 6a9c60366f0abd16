# SPDX-License-Identifier: Apache-2.0
"""Dependencies: random operations in queues of both orders, against a graph searched by brute force."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fake_memory import FakeMemoryDevice
from pinning.queues import Event, Queue

SOME = st.lists(st.integers(0, 200), max_size=4)


class Operations(RuleBasedStateMachine):
    """Numbered operations; `before[i]` are those that operation `i` must come after directly."""

    @initialize(orders=st.lists(st.booleans(), min_size=1, max_size=4))
    def begin(self, orders: list[bool]) -> None:
        self.device = FakeMemoryDevice()
        self.queues = [Queue(self.device, "in_order" if ordered else "out_of_order") for ordered in orders]
        self.before: list[set[int]] = []
        self.events: dict[int, Event] = {}  # those that still exist
        self.of: list[list[int]] = [[] for _ in orders]  # the operations of each queue
        self.barriers: list[set[int]] = [set() for _ in orders]
        self.ran: list[int] = []

    def chosen(self, numbers: list[int]) -> list[int]:
        alive = sorted(self.events)
        return [alive[number % len(alive)] for number in numbers] if alive else []

    def waits_of(self, queue: int, waits: list[int]) -> set[int]:
        """The operations that one submitted now must come after directly."""
        ordered = self.queues[queue].order == "in_order"
        return {*waits, *self.barriers[queue], *(self.of[queue][-1:] if ordered else [])}

    def all_before(self, direct: set[int]) -> set[int]:
        found, todo = set(), list(direct)
        while todo:
            number = todo.pop()
            if number not in found:
                found.add(number)
                todo += self.before[number]
        return found

    def enter(self, queue: int, event: Event, direct: set[int]) -> None:
        number = len(self.before)
        self.before.append(direct)
        self.of[queue].append(number)
        self.events[number] = event

    def run(self, number: int) -> None:
        assert self.all_before(self.before[number]) <= set(self.ran), f"{number} ran too early"
        self.ran.append(number)

    @rule(at=st.integers(0, 3), some=SOME, empty=st.booleans())
    def submit(self, at: int, some: list[int], empty: bool) -> None:
        queue, waits, number = at % len(self.queues), self.chosen(some), len(self.before)
        direct = self.waits_of(queue, waits)
        wait_for = [self.events[each] for each in waits]
        if empty:
            event = self.queues[queue].submit(None, wait_for)
            self.enter(queue, event, direct)
            self.ran.append(number)  # nothing to run; later operations come after all that it comes after
        else:
            event = self.queues[queue].submit(lambda vendor: vendor.mark(lambda: self.run(number)), wait_for)
            self.enter(queue, event, direct)

    @rule(at=st.integers(0, 3), some=SOME)
    def wait_for(self, at: int, some: list[int]) -> None:
        queue, waits = at % len(self.queues), self.chosen(some)
        self.queues[queue].wait_for(*(self.events[each] for each in waits))
        self.barriers[queue] |= set(waits)

    @rule(at=st.integers(0, 3))
    def record(self, at: int) -> None:
        queue = at % len(self.queues)
        everything = set(self.of[queue]) | self.barriers[queue]
        self.enter(queue, self.queues[queue].record(), everything)
        self.ran.append(len(self.before) - 1)

    @precondition(lambda self: self.events)
    @rule(some=SOME)
    def drop(self, some: list[int]) -> None:
        for number in set(self.chosen(some)):
            del self.events[number]

    @rule(steps=st.integers(1, 8), at=st.integers(0, 60))
    def release(self, steps: int, at: int) -> None:
        """Of one queue of the device, so that others are behind."""
        if self.device.queues:
            self.device.release(steps, self.device.queues[at % len(self.device.queues)])

    @rule(some=SOME)
    def ask(self, some: list[int]) -> None:
        for number in self.chosen(some):
            if self.events[number].done():
                assert self.all_before({number}) <= set(self.ran)

    @rule(at=st.integers(0, 3))
    def poll(self, at: int) -> None:
        queue = at % len(self.queues)
        if self.queues[queue].poll():
            assert set(self.of[queue]) <= set(self.ran)

    @invariant()
    def histories_are_those_of_the_graph(self) -> None:
        ran = set(self.ran)
        for number, event in getattr(self, "events", {}).items():
            expected = self.all_before({number}) & set(self.events)
            found = {each for each, other in self.events.items() if event._comes_after(other)}
            assert found >= expected
            assert found - expected <= ran, "only what is over may be in every history"

    def teardown(self) -> None:
        if not hasattr(self, "device"):
            return
        self.device.release()
        assert sorted(self.ran) == list(range(len(self.before))), "something waits for ever"
        self.device.let_go()
        self.finish()
        self.device.check()

    def finish(self) -> None:
        for event in self.events.values():
            event.wait()
            assert event.done()
        self.events.clear()
        for queue in self.queues:
            queue.close()


def test_order_of_an_operation_is_known_when_a_barrier_completes() -> None:
    device = FakeMemoryDevice()
    one, barred = (Queue(device, "out_of_order") for _ in range(2))
    ordered = Queue(device)
    first = one.record()
    barrier = ordered.submit(lambda vendor: vendor.mark(lambda: None), [first])
    barred.wait_for(barrier)
    device.release()
    assert ordered.poll()  # and `one` is not queried
    for event in (barred.record(), barred.submit(None)):
        assert event._comes_after(first)
    for queue in (one, ordered, barred):
        queue.close()
    del first, barrier, event
    device.check()


def test_an_operation_with_a_wait_list_comes_after_what_its_queue_waits_for_too() -> None:
    device, ran = FakeMemoryDevice(), list[str]()
    ordered = [Queue(device), Queue(device)]
    queue = Queue(device, "out_of_order")
    first, second = (
        each.submit(lambda vendor, name=name: vendor.mark(lambda: ran.append(name)))
        for each, name in zip(ordered, ("first", "second"), strict=True)
    )
    queue.wait_for(first)
    queue.submit(lambda vendor: vendor.mark(lambda: ran.append("last")), [second])
    for vendor_queue in device.queues[1:]:
        device.release(queue=vendor_queue)
    assert ran == ["second"]
    device.let_go()
    assert ran == ["second", "first", "last"]
    for each in (*ordered, queue):
        each.close()
    del first, second
    device.check()


Operations.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestOperations = Operations.TestCase

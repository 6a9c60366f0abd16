# SPDX-License-Identifier: Apache-2.0
"""Random allocations, uses and frees over held queues, against a model that keeps every dependency of every byte.

The model has no clocks: it keeps the closure of all dependencies, and for each 256 bytes all their frees so far. These
determine which bytes an allocation must not get, and when it must not need new memory.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import pinning
from fake_memory import FakeMemoryDevice
from machine_steps import steps
from pinning import Context, Pool, PoolLimitError, VendorError
from pinning.queues import Queue, pending

GRAIN = 256
DEVICE = FakeMemoryDevice()  # shared by all examples
picks = st.integers(0, 1 << 16)
some = st.lists(picks, max_size=2)


class Node:
    """An operation, all operations before it in the order, and whether it has run."""

    def __init__(self, before: set[Node], event: Any) -> None:
        self.before = {self, *before}
        self.event = event
        self.ran = True

    @property
    def over(self) -> bool:
        return all(node.ran for node in self.before)


class Line:
    """The model of a queue."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.last: set[Node] = set()  # all later operations come after these

    def before(self, waits: list[Node]) -> set[Node]:
        return self.last.union(*(wait.before for wait in waits))

    def add(self, waits: list[Node], event: Any) -> Node:
        node = Node(self.before(waits), event)
        if self.queue.order == "in_order":
            self.last = node.before
        return node


class Held:
    """An allocation that is not freed yet."""

    def __init__(self, allocation: Any, ready: Node, number: int) -> None:
        self.allocation, self.ready = allocation, ready
        self.tag = number % 251 + 1
        self.written = False
        self.uses: list[tuple[Line, Node]] = []

    @property
    def grains(self) -> range:
        start = self.allocation.ptr // GRAIN
        return range(start, start + -(-self.allocation.size // GRAIN))


class PoolMachine(RuleBasedStateMachine):
    @initialize(
        maximum=st.none() | st.integers(4, 24),
        threshold=st.none() | st.integers(0, 8),
        orders=st.lists(st.booleans(), min_size=2, max_size=4),
    )
    def make(self, maximum: int | None, threshold: int | None, orders: list[bool]) -> None:
        self.device = DEVICE
        self.context = Context(self.device)
        self.pool = Pool(
            self.context,
            release_threshold=None if threshold is None else threshold * GRAIN,
            maximum_size=None if maximum is None else maximum * GRAIN,
        )
        self.lines = [Line(Queue(self.device, "in_order" if ordered else "out_of_order")) for ordered in orders]
        self.look_after = look_after = pending.look_after  # not for work: so no thread queries the vendor
        pending.look_after = lambda lane: look_after(lane) if lane.retired else None
        self.held: list[Held] = []
        self.nodes: list[Node] = []  # those whose event still exists
        self.frees: dict[int, list[Node]] = {}  # by grain
        self.used_high = self.reserved_high = self.made = 0
        self.wrong: list[str] = []

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        pending.look_after = self.look_after
        self.device.fail_no_more()
        self.device.let_go()
        assert self.wrong == []
        while self.held:
            self.held.pop().allocation.free()
        self.forget(set(self.nodes))
        self.pool.trim_to(0)
        assert self.pool.reserved == 0, "all is free, and so the blocks are whole segments again"
        self.pool.close()
        self.context.close()
        for line in self.lines:
            with suppress(VendorError):  # of a query that failed and was not reported yet
                line.queue.synchronize()
            line.queue.close()
        self.lines.clear()
        self.device.queues.clear()
        self.device.vendor_calls.clear()
        self.device.held = True
        assert (self.device.wrong, self.device.allocated) == ([], {})
        assert self.device.queues_alive == 0

    # ---- the model ----

    def line(self, pick: int) -> Line:
        return self.lines[pick % len(self.lines)]

    def some_nodes(self, chosen: list[int]) -> list[Node]:
        return [self.nodes[pick % len(self.nodes)] for pick in chosen] if self.nodes else []

    def segments(self) -> list[range]:
        return [range(base // GRAIN, (base + size) // GRAIN) for base, (size, _) in self.device.allocated.items()]

    def taken(self) -> set[int]:
        return {grain for held in self.held for grain in held.grains}

    def is_usable(self, grain: int, before: set[Node]) -> bool:
        return all(node in before or node.over for node in self.frees.get(grain, ()))

    def must_have(self, grains: int, before: set[Node]) -> bool:
        """Whether this many neighbouring grains can be reused without querying a queue."""
        taken = self.taken()
        for segment in self.segments():
            run = 0
            for grain in segment:
                frees = self.frees.get(grain, ())
                run = run + 1 if grain not in taken and all(node in before for node in frees) else 0
                if run == grains:
                    return True
        return False

    def forget_what_went_back(self) -> None:
        there = {grain for segment in self.segments() for grain in segment}
        for grain in set(self.frees) - there:
            del self.frees[grain]

    def forget(self, nodes: set[Node]) -> None:
        for node in nodes:
            node.event = None

    # ---- what a program does ----

    @rule(on=picks, size=st.integers(1, 6 * GRAIN), waits=some, failing=st.none() | st.integers(0, 2))
    def alloc(self, on: int, size: int, waits: list[int], failing: int | None) -> None:
        line, after = self.line(on), self.some_nodes(waits)
        before = line.before(after)
        grains = -(-size // GRAIN)
        must = self.must_have(grains, before)
        reserved, used = self.pool.reserved, self.pool.used
        allocations = self.device.vendor_calls.count("allocate")
        if failing is not None:
            self.device.fail_call(calls_before=failing)
        try:
            allocation, event = line.queue.alloc(size, pool=self.pool, wait_for=[node.event for node in after])
        except VendorError:
            assert failing is not None
            assert (self.pool.used, len(self.held)) == (used, len(self.held))
            return
        finally:
            self.device.fail_no_more()
        if must:
            assert self.device.vendor_calls.count("allocate") == allocations, "it comes after the frees, and so reuses"
        if isinstance(event.error, PoolLimitError):
            assert not must
            assert self.pool.maximum_size is not None
            assert self.pool.reserved + grains * GRAIN > self.pool.maximum_size
            assert self.pool.used == used
            return
        assert reserved <= self.pool.reserved or not must
        self.forget_what_went_back()
        self.made += 1
        held = Held(allocation, Node(set(), event) if event._position == 0 else line.add(after, event), self.made)
        taken = self.taken()
        assert allocation.size == size
        assert not taken & set(held.grains), "somebody has that"
        assert any(set(held.grains) <= set(segment) for segment in self.segments())
        for grain in held.grains:
            assert self.is_usable(grain, before), "given out before the free that it should come after"
        self.held.append(held)
        self.nodes.append(held.ready)
        self.used_high = max(self.used_high, self.pool.used)

    @rule(which=picks, on=picks, waits=some)
    def use(self, which: int, on: int, waits: list[int]) -> None:
        if not self.held:  # no precondition: what is drawn depends on no address that the device gave
            return
        held, line = self.held[which % len(self.held)], self.line(on)
        after = [held.ready, *self.some_nodes(waits)]
        node = line.add(after, None)
        node.ran = False
        ptr, size, tag = held.allocation.ptr, held.allocation.size, held.tag

        def work() -> None:
            node.ran = True
            if held.written and set(ctypes.string_at(ptr, size)) != {tag}:
                self.wrong.append(f"allocation {tag} was overwritten")
            ctypes.memset(ptr, tag, size)
            held.written = True

        node.event = line.queue.call(work, [each.event for each in after])
        held.uses.append((line, node))
        self.nodes.append(node)

    @rule(which=picks, on=picks, waits=some, failing=st.none() | st.integers(0, 1))
    def free(self, which: int, on: int, waits: list[int], failing: int | None) -> None:
        if not self.held:
            return
        held, line = self.held[which % len(self.held)], self.line(on)
        after = [node for _, node in held.uses if node not in line.last] + self.some_nodes(waits)
        if failing is not None:
            self.device.fail_call(calls_before=failing)
        try:
            event = line.queue.free(held.allocation, [node.event for node in after])
        except VendorError:
            assert failing is not None
            assert not held.allocation.freed
            assert pinning.memory_info(held.allocation.ptr) is not None
            return
        finally:
            self.device.fail_no_more()
        node = line.add(after, event)
        self.held.remove(held)
        for grain in held.grains:
            self.frees.setdefault(grain, []).append(node)
        self.nodes.append(node)
        assert held.allocation.freed
        limit = self.pool.release_threshold
        if limit is not None and failing is None and all(queue.idle for queue in self.device.queues):
            taken = self.taken()
            whole = [segment for segment in self.segments() if not taken & set(segment)]
            assert self.pool.reserved <= limit or not whole
        self.forget_what_went_back()

    @rule(steps=st.integers(1, 6), of=picks)
    def release(self, steps: int, of: int) -> None:
        if self.device.queues:
            self.device.release(steps, self.device.queues[of % len(self.device.queues)])

    @rule()
    def release_all(self) -> None:
        self.device.release()
        assert all(queue.idle for queue in self.device.queues)

    @rule(keep=st.integers(0, 4))
    def forget_events(self, keep: int) -> None:
        """Keep only the last `keep` events and those that a program needs to free its allocations."""
        if not self.nodes:
            return
        needed = [held.ready for held in self.held] + [node for held in self.held for _, node in held.uses]
        kept = [*needed, *self.nodes[len(self.nodes) - keep :]]
        self.forget(set(self.nodes) - set(kept))
        self.nodes = kept

    @rule(grains=st.integers(0, 8), failing=st.none() | st.integers(0, 2))
    def trim(self, grains: int, failing: int | None) -> None:
        if failing is not None:
            self.device.fail_call(calls_before=failing)
        try:
            self.pool.trim_to(grains * GRAIN)
        except VendorError:
            assert failing is not None
        else:
            if failing is None and all(queue.idle for queue in self.device.queues):
                taken = self.taken()
                whole = [segment for segment in self.segments() if not taken & set(segment)]
                assert self.pool.reserved <= grains * GRAIN or not whole
        finally:
            self.device.fail_no_more()
        self.forget_what_went_back()

    @rule()
    def reset(self) -> None:
        self.pool.reset_high()
        self.used_high, self.reserved_high = self.pool.used, self.pool.reserved

    # ---- what must hold after each step ----

    @invariant()
    def figures(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert self.wrong == []
        assert self.device.wrong == []
        assert self.pool.used == sum(len(held.grains) for held in self.held) * GRAIN
        assert self.pool.reserved == sum(size for size, _ in self.device.allocated.values())
        assert self.pool.maximum_size is None or self.pool.reserved <= self.pool.maximum_size
        self.reserved_high = max(self.reserved_high, self.pool.reserved)
        assert self.pool.used_high == self.used_high
        assert self.pool.reserved_high == self.reserved_high

    @invariant()
    def addresses_are_known(self) -> None:
        if not hasattr(self, "pool"):
            return
        for held in self.held:
            ptr, size = held.allocation.ptr, held.allocation.size
            for at in (ptr, ptr + size - 1):
                info = pinning.memory_info(at)
                assert info is not None
                assert (info.base, info.size, info.pool, info.context) == (ptr, size, self.pool, self.context)


PoolMachine.TestCase.settings = steps(8000)
TestPool = PoolMachine.TestCase

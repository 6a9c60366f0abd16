# SPDX-License-Identifier: Apache-2.0
"""Random locks and budgets of two devices whose vendors fail at random, against a model of what is locked or idle."""

from __future__ import annotations

import numpy
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import pinning
from fake_device import FakeDevice
from machine_steps import steps
from pinning import Lock, LockLimitError, VendorError
from pinning.budget.cache import collect

UNIT = 4096
ARRAYS = 5

arrays = st.integers(0, ARRAYS - 1)
devices = st.integers(0, 1)
failing_calls = st.builds(set[int]) | st.sets(st.integers(0, 4), max_size=2)  # none in half of the steps


class BudgetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        pinning.give_back_idle()
        self.devices = [FakeDevice(f"fake:{index}") for index in range(2)]
        before = pinning.budget()
        self.fixed, self.external = before.used, before.external  # left by other tests
        self.arrays = [numpy.zeros((1 + index) * UNIT, "u1") for index in range(ARRAYS)]
        self.locks: list[tuple[Lock, int, int]] = []  # with device and array
        self.idle: list[tuple[int, int]] = []  # device and array, the longest idle first
        self.limit = self.idle_limit = 100 * UNIT
        self.set_budget(100, 100)

    def teardown(self) -> None:
        for device in self.devices:
            device.fail_no_more()
        for lock, _, _ in self.locks:
            lock.unlock()
        pinning.budget(1.0, idle=False)
        collect()
        for device in self.devices:
            assert device.locked == {}
            assert device.wrong == []
        assert pinning.budget().used == self.fixed

    # ---- the model ----

    def size(self, array: int) -> int:
        return self.arrays[array].nbytes

    def counted(self) -> set[tuple[int, int]]:
        return {(device, array) for _, device, array in self.locks}

    def used(self) -> int:
        return sum(self.size(array) for _, array in [*self.counted(), *self.idle])

    def idling(self) -> int:
        return sum(self.size(array) for _, array in self.idle)

    def give_back_excess(self) -> None:
        while self.idle and (self.idling() > self.idle_limit or self.used() > self.limit):
            del self.idle[0]

    def plan_failures(self, calls: set[int]) -> None:
        for device in self.devices:
            device.fail_no_more()
            for call in calls:
                device.fail(VendorError("fakeCall", 1, "FAKE"), call)

    def learn(self) -> None:
        """Update the model after a vendor's failure, which may have left any regions idle, in any order."""
        for device in self.devices:
            device.fail_no_more()
        for device, array in self.idle_now():  # so that the order is known again
            pinning.lock(self.arrays[array], device=self.devices[device]).unlock()
        self.idle = self.idle_now()

    def idle_now(self) -> list[tuple[int, int]]:
        """The idle regions, in an order that does not depend on addresses: Hypothesis needs repeatable examples."""
        found = []
        for index, device in enumerate(self.devices):
            starts = {region.start for region in pinning.regions(device, idle=True) if region.idle}
            found += [(index, array) for array in range(ARRAYS) if self.arrays[array].ctypes.data in starts]
        return found

    # ---- what a program does ----

    @rule(limit=st.integers(0, 30), idle=st.integers(0, 30))
    def set_budget(self, limit: int, idle: int) -> None:
        self.limit, self.idle_limit = limit * UNIT, idle * UNIT
        self.give_back_excess()
        limit = self.fixed + self.external + self.limit
        now = pinning.budget(limit, idle=self.idle_limit)
        assert now.limit == limit

    @rule(device=devices, array=arrays, part=st.booleans(), failing=failing_calls)
    def lock(self, device: int, array: int, part: bool, failing: set[int]) -> None:
        which = device, array
        there = which in self.counted() or which in self.idle
        if not there:
            part = False  # only a whole array can be kept idle
        refused = False
        if not there:
            fits = self.used() - self.idling() + self.size(array) <= self.limit
            refused = not fits
            while fits and self.used() + self.size(array) > self.limit:
                del self.idle[0]
        calls = [len(each.calls) for each in self.devices]
        self.plan_failures(failing)
        buffer = self.arrays[array][UNIT // 2 :] if part else self.arrays[array]
        try:
            made = pinning.lock(buffer, device=self.devices[device])
        except LockLimitError:
            assert refused or failing
            self.learn()
            return
        except VendorError:
            assert failing
            self.learn()
            return
        assert not refused
        if there:
            assert calls == [len(each.calls) for each in self.devices], "a vendor was called for what is registered"
        self.idle = [each for each in self.idle if each != which]
        self.locks.append((made, device, array))
        if failing:
            self.learn()

    @precondition(lambda self: self.locks)
    @rule(which=st.integers(0, 1 << 16), failing=failing_calls)
    def unlock(self, which: int, failing: set[int]) -> None:
        lock, device, array = self.locks[which % len(self.locks)]
        last = sum((device, array) == each[1:] for each in self.locks) == 1
        self.plan_failures(failing)
        try:
            lock.unlock()
        except VendorError:
            assert last and failing
            assert lock.held
            self.learn()
            return
        assert not lock.held
        self.locks.remove((lock, device, array))
        if last and self.size(array) <= self.idle_limit:
            self.idle.append((device, array))
            self.give_back_excess()
        if failing:
            self.learn()

    @rule(units=st.integers(0, 10), failing=failing_calls)
    def give_back(self, units: int, failing: set[int]) -> None:
        self.plan_failures(failing)
        expected = 0
        while self.idle and expected < units * UNIT:
            expected += self.size(self.idle.pop(0)[1])
        try:
            given = pinning.give_back_idle(units * UNIT)
        except VendorError:
            assert failing
        else:
            assert failing or given == expected
        if failing:
            self.learn()

    @rule(array=arrays)
    def drop(self, array: int) -> None:
        if any(each[2] == array for each in self.locks):
            return
        self.arrays[array] = numpy.zeros_like(self.arrays[array])
        collect()
        self.idle = [each for each in self.idle if each[1] != array]

    @invariant()
    def agrees(self) -> None:
        now = pinning.budget()
        assert now.used - self.fixed == self.used() == sum(sum(each.locked.values()) for each in self.devices)
        assert now.idle == self.idling()
        for index, device in enumerate(self.devices):
            for array in range(ARRAYS):
                references = sum((index, array) == each[1:] for each in self.locks)
                region = pinning.find(self.arrays[array], device=device)
                assert (region.references if region else 0) == references
                assert device.wrong == []


BudgetMachine.TestCase.settings = steps(2400)
TestBudget = BudgetMachine.TestCase

# SPDX-License-Identifier: Apache-2.0
"""Random allocations, frees, locks, growths and closes of an arena whose vendor fails at times, against a model.

The model has the contents of each allocation, and the start and end of each growth. From these it derives which bytes
are free, and whether an allocation must succeed.
"""

from __future__ import annotations

from contextlib import suppress

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import pinning
from fake_device import FakeDevice
from machine_steps import steps
from pinning import Arena, PoolLimitError, StillInUseError, StillLockedError, VendorError
from pinning.arena import ArenaAllocation
from pinning.runtime.process import run_deferred

WAIT = 60
picks = st.integers(0, 1 << 16)
sizes = st.integers(1, 4000)


class ArenaMachine(RuleBasedStateMachine):
    @initialize(size=sizes, more=st.integers(0, 20_000), unit=st.sampled_from([None, 1, 7, 100]))
    def make(self, size: int, more: int, unit: int | None) -> None:
        self.device = FakeDevice()
        self.unit = unit
        self.arena = Arena(size, self.device, unit=unit, grow=size + more)
        self.arena.wait(timeout=WAIT)
        self.growths = [(0, size)]
        self.had: dict[ArenaAllocation, int] = {}  # the value of its bytes
        self.locks: dict[ArenaAllocation, pinning.Lock] = {}
        self.filled = 0

    def range_of(self, allocation: ArenaAllocation) -> tuple[int, int]:
        start = allocation.ptr - self.arena.ptr
        return start, start + allocation.nbytes

    def free_ranges(self) -> list[tuple[int, int, int]]:
        """Start and end of each free range, and the start of its growth."""
        found = []
        taken = sorted(map(self.range_of, self.had))
        for low, high in self.growths:
            at = low
            for start, end in [each for each in taken if low <= each[0] < high] + [(high, high)]:
                if at < start:
                    found.append((at, start, low))
                at = end
        return found

    def first_fit(self, start: int, growth: int, alignment: int | None) -> int:
        if alignment is None and self.unit:
            return start + -(start - growth) % self.unit
        return start + -(self.arena.ptr + start) % (alignment or 64)

    @rule(size=sizes | st.integers(1, 100), alignment=st.sampled_from([None, 1, 2, 64, 1024, 8192]))
    def allocate(self, size: int, alignment: int | None) -> None:
        fits = any(self.first_fit(low, growth, alignment) + size <= high for low, high, growth in self.free_ranges())
        before = self.arena.nbytes
        try:
            made = self.arena.allocate(size, alignment)
        except PoolLimitError:
            assert not fits
            assert self.first_fit(before, before, alignment) + size > self.arena.maximum
            assert self.arena.nbytes == before
            return
        if fits:
            assert self.arena.nbytes == before
        elif self.arena.nbytes > before:
            self.growths.append((before, self.arena.nbytes))
            self.arena.wait(timeout=WAIT)
        start, end = self.range_of(made)
        assert made.nbytes == size
        assert any(low <= start and end <= high for low, high, _ in self.free_ranges())
        assert (self.unit and alignment is None) or made.ptr % (alignment or 64) == 0
        assert pinning.is_locked(made, device=self.device)
        self.filled = (self.filled + 1) % 256
        made.asarray()[:] = self.filled
        self.had[made] = self.filled

    @precondition(lambda self: self.had)
    @rule(pick=picks)
    def free(self, pick: int) -> None:
        allocation = list(self.had)[pick % len(self.had)]
        try:
            self.arena.free(allocation)
        except StillLockedError:
            assert allocation in self.locks
            return
        assert allocation not in self.locks
        del self.had[allocation]

    @precondition(lambda self: self.had)
    @rule(pick=picks)
    def lock(self, pick: int) -> None:
        allocation = list(self.had)[pick % len(self.had)]
        calls = self.device.count("data_lock")
        if allocation in self.locks:
            self.locks.pop(allocation).unlock()
        else:
            self.locks[allocation] = pinning.lock((allocation.ptr, allocation.nbytes), device=self.device)
        assert self.device.count("data_lock") == calls

    @rule(size=sizes)
    def grow(self, size: int) -> None:
        before = self.arena.nbytes
        try:
            self.arena.grow(size)
        except PoolLimitError:
            assert before + size > self.arena.maximum
            return
        self.growths.append((before, before + size))
        self.arena.wait(timeout=WAIT)

    @rule(fails=st.booleans(), size=sizes)
    def close_and_make_anew(self, fails: bool, size: int) -> None:
        if fails and not self.had:
            self.device.fail(VendorError("fakeUnregister", 1, "FAKE_REFUSED"))
            with suppress(VendorError):
                self.arena.close()
            self.device.fail_no_more()
        try:
            self.arena.close()
        except StillInUseError:
            assert self.had
            return
        assert not self.had
        assert self.arena.closed
        assert self.device.locked == {}
        self.arena = Arena(size, self.device, unit=self.unit, grow=2 * size)
        self.arena.wait(timeout=WAIT)
        self.growths = [(0, size)]

    @invariant()
    def all_is_as_the_model_has_it(self) -> None:
        if not hasattr(self, "arena"):
            return
        assert self.device.wrong == []
        assert self.arena.nbytes == self.growths[-1][1] == sum(self.device.locked.values())
        assert self.arena.allocated == sum(each.nbytes for each in self.had)
        assert self.arena.available == self.arena.nbytes - self.arena.allocated
        largest = max((high - low for low, high, _ in self.free_ranges()), default=0)
        assert self.arena.largest_available == largest
        for allocation, value in self.had.items():
            assert (allocation.asarray() == value).all()

    def teardown(self) -> None:
        if not hasattr(self, "arena"):
            return
        for lock in self.locks.values():
            lock.unlock()
        for allocation in self.had:
            allocation.free()
        run_deferred()
        self.arena.close()
        assert self.device.locked == {}


TestArenaMachine = ArenaMachine.TestCase
TestArenaMachine.settings = steps(1600)

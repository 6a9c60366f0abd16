# SPDX-License-Identifier: Apache-2.0
"""Random calls of a PinnedMap, the vendor failing at random, against a model that has one entry for each byte."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fake_device import FOREIGN_OFFSET, LOCKED_OFFSET, FakeDevice
from pinning import (
    InvalidRangeError,
    NotLockedError,
    PartialOverlapError,
    PinnedMap,
    StillLockedError,
    VendorError,
)

# A small space, so that ranges meet: BASE to BASE + SPACE, and one byte beyond at each side is always free.
BASE, SPACE = 0x1000, 48
REGISTERED_OFFSET = 3 << 44

starts = st.integers(0, SPACE - 1)
sizes = st.integers(1, 16)
pieces = st.none() | st.integers(1, 6)
failing_calls = st.sets(st.integers(0, 6), max_size=2)


class Entry:
    """What the map should know of one region."""

    def __init__(self, start: int, size: int, offset: int, kind: str, references: int) -> None:
        self.start, self.size, self.offset, self.kind, self.references = start, size, offset, kind, references
        self.half_unlocked = False

    @property
    def span(self) -> range:
        return range(self.start, self.start + self.size)


class PinnedMapMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.device = FakeDevice()
        self.map = PinnedMap(self.device)
        self.model: list[Entry] = []
        self.error: VendorError | None = None

    @initialize(largest=st.sampled_from([3, 7, 1 << 40]))
    def choose_the_device(self, largest: int) -> None:
        self.device = FakeDevice(largest_lock=largest)
        self.map = PinnedMap(self.device)

    def teardown(self) -> None:
        self.device.fail_no_more()
        self.map.close()
        assert self.device.locked == {}
        assert self.device.wrong == []

    # ---- the model's view ----

    def at(self, ptr: int) -> Entry | None:
        return next((entry for entry in self.model if ptr in entry.span), None)

    def meeting(self, ptr: int, size: int) -> list[Entry]:
        found = (entry for entry in self.model if ptr < entry.span.stop and entry.start < ptr + size)
        return sorted(found, key=lambda entry: entry.start)

    def foreign_around(self, ptr: int) -> range | None:
        found = (range(base, base + size) for base, size in self.device.foreign.items())
        return next((each for each in found if ptr in each), None)

    def named_by_the_vendor(self, ptr: int, size: int) -> range | None:
        around = self.foreign_around(ptr) or self.foreign_around(ptr + size - 1)
        return around if self.device.tells_foreign else None

    def foreign_meets(self, ptr: int, size: int) -> bool:
        return any(ptr < base + length and base < ptr + size for base, length in self.device.foreign.items())

    def plan_failures(self, calls: set[int]) -> None:
        self.device.fail_no_more()
        self.error = VendorError("fakeCall", 1, "FAKE") if calls else None
        for call in calls:
            assert self.error is not None
            self.device.fail(self.error, call)

    # ---- what a program does ----

    @rule(at=starts, size=sizes, piece=pieces, failing=failing_calls)
    def lock(self, at: int, size: int, piece: int | None, failing: set[int]) -> None:
        ptr = BASE + at
        self.plan_failures(failing)
        calls, locked = len(self.device.calls), dict(self.device.locked)
        around = self.at(ptr)
        if around and not around.half_unlocked and ptr + size <= around.span.stop:
            assert self.map.lock(ptr, size, piece=piece) == ptr + around.offset
            around.references += 1
            assert len(self.device.calls) == calls
            return
        if meeting := self.meeting(ptr, size):
            with pytest.raises(StillLockedError if meeting[0].half_unlocked else PartialOverlapError) as refused:
                self.map.lock(ptr, size, piece=piece)
            assert f"{meeting[0].start:#x}" in str(refused.value)
            assert len(self.device.calls) == calls
            return
        try:
            device_ptr = self.map.lock(ptr, size, piece=piece)
        except VendorError as error:
            left = {base: length for base, length in self.device.locked.items() if base not in locked}
            if error is not self.error:  # already pinned: the vendor does not say by whom, or pieces of ours are left
                assert self.foreign_meets(ptr, size)
                assert left or not self.named_by_the_vendor(ptr, size)
            if left:  # a piece was refused, and then to undo another
                assert len(failing) == 2 or self.foreign_meets(ptr, size)
                entry = Entry(ptr, size, LOCKED_OFFSET, "locked", 1)
                entry.half_unlocked = True
                self.model.append(entry)
        except StillLockedError:  # what someone else pinned would enter over a region of which pieces are left
            pinned = self.named_by_the_vendor(ptr, size)
            assert pinned is not None
            assert self.meeting(pinned.start, len(pinned))[0].half_unlocked
        except PartialOverlapError as refused_too:
            pinned = self.named_by_the_vendor(ptr, size)
            assert pinned is not None
            assert f"{pinned.start:#x}" in str(refused_too)
            inside = ptr in pinned and ptr + size <= pinned.stop
            assert not inside or self.meeting(pinned.start, len(pinned))
        else:
            assert not self.foreign_meets(ptr, size) or self.foreign_around(ptr)
            pinned = self.foreign_around(ptr)
            if pinned is not None:
                assert device_ptr == ptr + FOREIGN_OFFSET
                self.model.append(Entry(pinned.start, len(pinned), FOREIGN_OFFSET, "foreign", 1))
            else:
                assert device_ptr == ptr + LOCKED_OFFSET
                self.model.append(Entry(ptr, size, LOCKED_OFFSET, "locked", 1))

    @rule(at=starts, failing=failing_calls)
    def unlock(self, at: int, failing: set[int]) -> None:
        ptr = BASE + at
        self.plan_failures(failing)
        calls = len(self.device.calls)
        entry = self.at(ptr)
        if entry is None or entry.references == 0:
            with pytest.raises(NotLockedError, match=f"{ptr:#x}"):
                self.map.unlock(ptr)
            assert len(self.device.calls) == calls
        elif entry.references > 1 or entry.kind != "locked":
            self.map.unlock(ptr)
            assert len(self.device.calls) == calls
            entry.references -= 1
            if entry.references == 0 and entry.kind == "foreign":
                self.model.remove(entry)
        else:
            held = [base for base in self.device.locked if base in entry.span]
            try:
                self.map.unlock(ptr)
            except VendorError as error:
                assert error is self.error
                left = [base for base in self.device.locked if base in entry.span]
                assert left == held[: len(left)] and left, "the last piece goes first, and some piece was refused"
                entry.half_unlocked = entry.half_unlocked or left != held
            else:
                self.model.remove(entry)

    @rule(at=starts, size=sizes)
    def register(self, at: int, size: int) -> None:
        ptr = BASE + at
        if meeting := self.meeting(ptr, size):
            with pytest.raises(StillLockedError if meeting[0].half_unlocked else PartialOverlapError):
                self.map.register(ptr, size, ptr + REGISTERED_OFFSET)
            return
        self.map.register(ptr, size, ptr + REGISTERED_OFFSET)
        self.model.append(Entry(ptr, size, REGISTERED_OFFSET, "registered", 0))

    @rule(at=starts)
    def unregister(self, at: int) -> None:
        entry = self.at(BASE + at)
        if entry is None or entry.kind != "registered":
            with pytest.raises(NotLockedError):
                self.map.unregister(BASE + at)
        elif entry.references:
            with pytest.raises(StillLockedError, match=f"{entry.references} time"):
                self.map.unregister(BASE + at)
        else:
            self.map.unregister(BASE + at)
            self.model.remove(entry)

    @rule(at=starts, size=sizes)
    def someone_else_pins(self, at: int, size: int) -> None:
        ptr = BASE + at
        taken = [range(base, base + length) for base, length in self.device.locked.items()]
        taken += [range(base, base + length) for base, length in self.device.foreign.items()]
        if not any(ptr < each.stop and each.start < ptr + size for each in taken):
            self.device.foreign[ptr] = size

    @rule(at=starts)
    def someone_else_unpins(self, at: int) -> None:
        around = self.foreign_around(BASE + at)
        entry = self.at(BASE + at)
        if around and (entry is None or entry.kind != "foreign"):
            del self.device.foreign[around.start]

    @rule()
    def the_vendor_forgets_who(self) -> None:
        self.device.tells_foreign = not self.device.tells_foreign

    @rule(at=starts, size=st.integers(-1, 0) | st.just(1 << 64))
    def lock_what_is_no_range(self, at: int, size: int) -> None:
        calls = len(self.device.calls)
        for attempt in (lambda: self.map.lock(BASE + at, size), lambda: self.map.register(BASE + at, size, 1)):
            with pytest.raises(InvalidRangeError):
                attempt()
        assert len(self.device.calls) == calls

    @precondition(lambda self: len(self.model) > 2)
    @rule(failing=failing_calls)
    def close(self, failing: set[int]) -> None:
        self.plan_failures(failing)
        try:
            self.map.close()
        except VendorError as error:
            assert error is self.error
            assert self.device.locked
            self.device.fail_no_more()
            assert not self.map.closed
            self.map.close()
        assert self.map.closed
        assert self.device.locked == {}
        self.model.clear()
        self.map = PinnedMap(self.device)

    # ---- what must hold after each step ----

    @invariant()
    def the_map_is_the_model(self) -> None:
        shown = sorted((entry for entry in self.model if not entry.half_unlocked), key=lambda entry: entry.start)
        found = list(self.map)
        assert len(self.map) == len(shown)
        assert [
            (each.start, each.size, each.device_ptr - each.start, each.references, each.external) for each in found
        ] == [(each.start, each.size, each.offset, each.references, each.kind != "locked") for each in shown]
        by_start = {each.start: each for each in found}
        for ptr in range(BASE - 1, BASE + SPACE + 17):
            entry = self.at(ptr)
            expected = by_start[entry.start] if entry and not entry.half_unlocked else None
            assert self.map.find(ptr) == expected
            assert (ptr in self.map) == (expected is not None)
        for entry in shown:
            for first in (entry.start - 1, entry.start, entry.start + 1, entry.span.stop - 1):
                for size in (1, entry.size - 1, entry.size, entry.size + 1):
                    holder = next((e for e in shown if first in e.span and first + size <= e.span.stop and size), None)
                    assert self.map.find(first, size) == (by_start[holder.start] if holder else None)

    @invariant()
    def the_vendor_has_locked_what_the_model_says(self) -> None:
        assert self.device.wrong == []
        locked = {ptr for base, size in self.device.locked.items() for ptr in range(base, base + size)}
        for entry in self.model:
            mine = locked & set(entry.span)
            if entry.kind != "locked":
                assert not mine
            elif entry.half_unlocked:
                assert mine and mine != set(entry.span)
            else:
                assert mine == set(entry.span)
            locked -= mine
        assert not locked, "the vendor has locked what no region covers"


PinnedMapMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestPinnedMap = PinnedMapMachine.TestCase

# SPDX-License-Identifier: Apache-2.0
"""Random calls of a PinnedMap against a model; the vendor fails at random, and other code pins and unpins memory."""

from __future__ import annotations

import gc
import sys
from typing import Literal, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import pinning
from fake_device import FOREIGN_OFFSET, LOCKED_OFFSET, Call, CoarseFakeDevice
from machine_steps import steps
from pinning import (
    AlreadyPinnedError,
    NotLockedError,
    PartialOverlapError,
    PinnedMap,
    PinningError,
    StillLockedError,
    VendorError,
)
from pinning.map.pinned_map import Hold, Region

Policy = Literal["off", "on", "mandatory"]

# A small space, so that ranges meet: BASE to BASE + SPACE, and one byte beyond at each side is always free.
BASE, SPACE = 0x1000, 48
REGISTERED_OFFSET = 3 << 44

starts = st.integers(0, SPACE - 1)
sizes = st.integers(1, 16)
failing_calls = st.builds(set[int]) | st.sets(st.integers(0, 6), max_size=2)  # none in half of the steps
policies: st.SearchStrategy[Policy] = st.sampled_from(["off", "on", "mandatory"])


class Spot(NamedTuple):
    """A range anywhere, or, if `around` is a number, one with nearly the bounds of something that is there already."""

    at: int
    size: int
    around: int | None

    def among(self, known: list[range]) -> tuple[int, int]:
        if self.around is None or not known:
            return BASE + self.at, self.size
        span = known[self.around % len(known)]
        start = max(span.start + (0, 0, 1, 2, -1)[self.at % 5], BASE)
        return start, max(span.stop + (0, 0, -1, -2, 1)[self.size % 5] - start, 1)


spots = st.builds(Spot, starts, sizes, st.none() | st.integers(0, 7))


class Way(NamedTuple):
    """How a range is locked, and whether by a Hold, which gives up its own lock only."""

    piece: int | None
    read_only: bool | None
    coherent: bool | None
    keep: bool


ways = st.builds(
    Way,
    st.none() | st.integers(1, 6) | st.just(sys.maxsize),
    st.sampled_from([None, True, False]),
    st.sampled_from([None, True, False, False]),
    st.booleans(),
)


class Entry:
    """What the map should know about one region."""

    def __init__(self, start: int, size: int, kind: str, coherent: bool | None, references: int, piece: int = SPACE):
        self.start, self.size, self.kind, self.coherent, self.references = start, size, kind, coherent, references
        self.piece = min(piece, size)
        self.offset = {"locked": LOCKED_OFFSET, "foreign": FOREIGN_OFFSET, "registered": REGISTERED_OFFSET}[kind]
        self.half_unlocked = False

    @property
    def span(self) -> range:
        return range(self.start, self.start + self.size)

    @property
    def facts(self) -> tuple[object, ...]:
        kinds = self.kind != "locked", self.kind == "registered"
        pieces = self.piece, tuple(self.span[self.piece :: self.piece])
        return self.start, self.size, self.start + self.offset, self.references, self.coherent, *kinds, *pieces


def facts(region: Region) -> tuple[object, ...]:
    kinds, pieces = (region.external, region.registered), (region.piece, region.borders)
    return region.start, region.size, region.device_ptr, region.references, region.coherent, *kinds, *pieces


class RefusalError(Exception):
    """The model's own: the error that the map should raise, and what its message should say."""

    def __init__(self, error: type[Exception], *says: str) -> None:
        self.error, self.says = error, says

    def check(self, error: Exception) -> None:
        assert type(error) is self.error, error
        assert all(each in str(error) for each in self.says), (error, self.says)


def spelled(span: range) -> str:
    return f"[{span.start:#x}, {span.stop:#x})"


@pytest.fixture(scope="module", autouse=True)
def what_other_tests_have_left_goes() -> None:
    gc.collect()


class PinnedMapMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.choose_the_device(7, set())

    @initialize(largest=st.sampled_from([3, 7, 1 << 40]), coherence=st.just({True, False}) | st.sets(st.booleans()))
    def choose_the_device(self, largest: int, coherence: set[bool]) -> None:
        self.budget_before = pinning.budget()
        self.device = CoarseFakeDevice(*coherence, largest_lock=largest)
        self.map = PinnedMap(self.device)
        self.model: list[Entry] = []
        self.holds: list[tuple[Hold, Entry]] = []
        self.mapped: dict[int, list[Entry | None]] = {}
        self.errors: list[VendorError] = []

    def teardown(self) -> None:
        self.device.fail_no_more()
        self.map.close()
        for hold, _ in self.holds:
            hold.unlock()
        assert self.device.locked == {}
        assert self.device.wrong == []

    # ---- the model ----

    def range_at(self, spot: Spot) -> tuple[int, int]:
        foreign = [range(base, base + size) for base, size in self.device.foreign.items()]
        return spot.among([*foreign, *(entry.span for entry in self.model)])

    def at(self, ptr: int) -> Entry | None:
        return next((entry for entry in self.model if ptr in entry.span), None)

    def first_meeting(self, ptr: int, size: int) -> Entry | None:
        found = [entry for entry in self.model if ptr < entry.span.stop and entry.start < ptr + size]
        return min(found, key=lambda entry: entry.start, default=None)

    def foreign_around(self, ptr: int) -> range | None:
        found = (range(base, base + size) for base, size in self.device.foreign.items())
        return next((each for each in found if ptr in each), None)

    def named_by_the_vendor(self, ptr: int, size: int) -> range | None:
        around = self.foreign_around(ptr) or self.foreign_around(ptr + size - 1)
        return around if self.device.tells_foreign else None

    def foreign_meets(self, ptr: int, size: int) -> bool:
        return any(ptr < base + length and base < ptr + size for base, length in self.device.foreign.items())

    def is_stale(self, entry: Entry) -> bool:
        told = self.device.foreign.get(entry.start) if self.device.tells_foreign else None
        return entry.kind == "foreign" and told != entry.size

    @property
    def others_coherence(self) -> bool | None:
        (only,) = self.device.coherence if len(self.device.coherence) == 1 else (None,)
        return only

    def coherence_for(self, wish: bool | None) -> bool | None:
        offered = self.device.coherence
        if wish is True and True not in offered:
            raise RefusalError(PinningError, "coherent=True", "does not promise", "coherent=None")
        return next((each for each in (wish is not False, wish is False) if each in offered), None)

    def refusal(self, entry: Entry, span: range) -> RefusalError:
        if entry.half_unlocked:
            return RefusalError(StillLockedError, spelled(entry.span), "half unlocked")
        pinner = "someone else" if entry.kind == "foreign" else "locked region"
        return RefusalError(PartialOverlapError, spelled(span), spelled(entry.span), pinner)

    def not_coherent(self, span: range, coherent: bool | None) -> RefusalError:
        why = "nobody knows" if coherent is None else "coarse-grained"
        return RefusalError(StillLockedError, spelled(span), why, "coherent=None")

    def model_lock(
        self, ptr: int, size: int, wish: bool | None, piece: int | None = None, vendor_locks: bool = True
    ) -> Entry | None:
        """Change the model as the map should change; return the entry that was counted, None if nothing is locked."""
        coherent = self.coherence_for(wish)
        while entry := self.first_meeting(ptr, size):
            if self.is_stale(entry):
                self.model.remove(entry)
                continue
            if entry.half_unlocked or ptr not in entry.span or ptr + size > entry.span.stop:
                raise self.refusal(entry, range(ptr, ptr + size))
            if wish is True and not entry.coherent:
                raise self.not_coherent(entry.span, entry.coherent)
            entry.references += 1
            return entry
        if not self.foreign_meets(ptr, size) or not (vendor_locks or self.named_by_the_vendor(ptr, size)):
            if vendor_locks:
                taken = min(piece or size, self.device.largest_lock)
                self.model.append(Entry(ptr, size, "locked", coherent, 1, taken))
            return self.model[-1] if vendor_locks else None
        pinned = self.named_by_the_vendor(ptr, size)
        if pinned is None:
            raise RefusalError(AlreadyPinnedError)
        if ptr not in pinned or ptr + size > pinned.stop:
            says = spelled(range(ptr, ptr + size)), spelled(pinned), "someone else"
            raise RefusalError(PartialOverlapError, *says)
        while entry := self.first_meeting(pinned.start, len(pinned)):
            if not self.is_stale(entry):
                raise self.refusal(entry, pinned)
            self.model.remove(entry)
        if wish is True and not self.others_coherence:
            raise self.not_coherent(pinned, self.others_coherence)
        self.model.append(Entry(pinned.start, len(pinned), "foreign", self.others_coherence, 1))
        return self.model[-1]

    def model_count_down(self, entry: Entry) -> None:
        entry.references -= 1
        if entry.references == 0 and entry.kind != "registered":
            self.model.remove(entry)

    def plan_failures(self, calls: set[int]) -> None:
        self.device.fail_no_more()
        self.errors = [VendorError("fakeCall", call, "FAKE") for call in sorted(calls)]
        self.references = {id(entry): entry.references for entry in self.model}
        self.before = list(self.model), dict(self.device.locked)
        for error in self.errors:
            self.device.fail(error, error.code)

    @property
    def raised(self) -> list[VendorError]:
        """The planned errors that the vendor has raised so far, in order: a caller should get the first of them."""
        return [error for error in self.errors if error not in self.device.failures_left()]

    def after_a_vendors_error(self, ptr: int, size: int, wish: bool | None) -> None:
        """Restore the model, without stale regions that were removed, and with pieces that could not be undone."""
        model, locked = self.before
        self.model = [entry for entry in model if not self.is_stale(entry) or self.map.find(entry.start)]
        for entry in self.model:
            entry.references = self.references[id(entry)]
        if any(base not in locked for base in self.device.locked):
            entry = Entry(ptr, size, "locked", self.coherence_for(wish), 1)
            entry.half_unlocked = True
            self.model.append(entry)

    # ---- what a program does ----

    @rule(spot=spots, how=ways, failing=failing_calls)
    def lock(self, spot: Spot, how: Way, failing: set[int]) -> None:
        ptr, size = self.range_at(spot)
        self.plan_failures(failing)
        calls, before = len(self.device.calls), list(self.model)
        asks_nobody = (found := self.first_meeting(ptr, size)) is not None and found.kind != "foreign"
        expected: Entry | RefusalError | None
        try:
            expected = self.model_lock(ptr, size, how.coherent, how.piece)
        except RefusalError as refusal:
            expected = refusal
        try:
            if how.keep:
                hold = Hold(self.map, ptr, size, how.read_only, how.piece, how.coherent)
                device_ptr = hold.device_ptr
            else:
                device_ptr = self.map.lock(ptr, size, how.read_only, piece=how.piece, coherent=how.coherent)
        except VendorError as error:
            if error not in self.raised[:1]:
                assert isinstance(error, AlreadyPinnedError)
                assert self.foreign_meets(ptr, size)
                assert not isinstance(expected, Entry) or failing, "pieces of ours were left, so nobody was asked"
            self.after_a_vendors_error(ptr, size, how.coherent)
        except PinningError as error:
            assert isinstance(expected, RefusalError) and not self.raised, error
            expected.check(error)
        else:
            assert isinstance(expected, Entry) and not self.raised
            assert device_ptr == ptr + expected.offset
            if how.keep:
                self.holds.append((hold, expected))
            made = self.device.calls[calls:]
            if expected in before and expected.kind == "foreign":
                assert made == [Call("is_pinned_ptr", expected.start)], "it is asked once whether it is still pinned"
            elif expected not in before and expected.kind == "locked":
                asks = how.read_only, expected.coherent is not False
                assert [call for call in made if call.method == "data_lock"] == [
                    Call("data_lock", each, min(expected.piece, ptr + size - each), *asks)
                    for each in range(ptr, ptr + size, expected.piece)
                ]
        assert len(self.device.calls) == calls or not asks_nobody

    @rule(spot=spots, failing=failing_calls)
    def unlock(self, spot: Spot, failing: set[int]) -> None:
        ptr, _ = self.range_at(spot)
        self.plan_failures(failing)
        calls = len(self.device.calls)
        entry = self.at(ptr)
        if entry is None or entry.references == 0:
            with pytest.raises(NotLockedError, match=f"{ptr:#x}"):
                self.map.unlock(ptr)
            assert len(self.device.calls) == calls
        else:
            self.give_up(entry, lambda: self.map.unlock(ptr))

    def give_up(self, entry: Entry, call: object) -> bool:
        """Release one lock of an entry; False if the vendor has refused."""
        assert callable(call)
        calls = len(self.device.calls)
        last = entry.references == 1 and entry.kind == "locked"
        held = [base for base in self.device.locked if base in entry.span]
        try:
            call()
        except VendorError as error:
            assert last and error is self.raised[0]
            left = [base for base in self.device.locked if base in entry.span]
            assert left == held[: len(left)] and left, "the last piece goes first, and some piece was refused"
            entry.half_unlocked = entry.half_unlocked or left != held
            return False
        assert not self.raised and (last or len(self.device.calls) == calls)
        self.model_count_down(entry)
        return True

    @precondition(lambda self: self.holds)
    @rule(which=st.integers(0, 1 << 16), failing=failing_calls)
    def unlock_a_hold(self, which: int, failing: set[int]) -> None:
        self.plan_failures(failing)
        calls = len(self.device.calls)
        hold, entry = self.holds[which % len(self.holds)]
        assert hold.held == (entry in self.model)
        if entry in self.model and entry.references:
            done = self.give_up(entry, hold.unlock)
        else:  # the entry or its count is gone: there may be others at the same place now
            done = hold.unlock()
            assert len(self.device.calls) == calls
        if done:
            assert not hold.held
            assert hold.unlock() is False
            self.holds.remove((hold, entry))

    @rule(spot=spots, policy=policies, failing=failing_calls)
    def lock_mapped(self, spot: Spot, policy: Policy, failing: set[int]) -> None:
        ptr, size = self.range_at(spot)
        self.plan_failures(failing)
        locks = self.device.count("data_lock")
        expected: Entry | RefusalError | None
        try:
            expected = self.model_lock(ptr, size, None, vendor_locks=False)
            if expected is None and policy != "off":
                expected = self.model_lock(ptr, size, None)
        except RefusalError as refusal:
            expected = refusal
        try:
            device_ptr = self.map.lock_mapped(ptr, size, policy)
        except VendorError as error:
            assert policy == "mandatory"
            assert error in self.raised[:1] or self.foreign_meets(ptr, size)
            self.after_a_vendors_error(ptr, size, None)
            return
        except PinningError as error:
            assert policy == "mandatory"
            assert isinstance(expected, RefusalError), error
            expected.check(error)
            return
        counted = expected if isinstance(expected, Entry) else None
        if device_ptr is None and counted is not None:
            assert failing and policy != "mandatory"
            self.after_a_vendors_error(ptr, size, None)
            counted = None
        elif failing and device_ptr is None:
            self.after_a_vendors_error(ptr, size, None)
        assert device_ptr == (ptr + counted.offset if counted else None)
        assert device_ptr is None or not self.raised
        may_ask = policy != "off" and (counted is None or counted.kind == "locked")
        assert may_ask or self.device.count("data_lock") == locks, "the vendor was asked to lock what is pinned"
        self.mapped.setdefault(ptr, []).append(counted)

    @rule(at=starts, failing=failing_calls)
    def unlock_unmapped(self, at: int, failing: set[int]) -> None:
        ptr = BASE + at
        there = self.mapped.get(ptr, [])
        self.undo_a_mapping(ptr, there, failing)

    @precondition(lambda self: any(self.mapped.values()))
    @rule(which=st.integers(0, 1 << 16), failing=failing_calls)
    def unlock_what_is_mapped(self, which: int, failing: set[int]) -> None:
        mapped = [(ptr, there) for ptr, there in self.mapped.items() if there]
        self.undo_a_mapping(*mapped[which % len(mapped)], failing)

    def undo_a_mapping(self, ptr: int, there: list[Entry | None], failing: set[int]) -> None:
        self.plan_failures(failing)
        calls = len(self.device.calls)
        idle = next((place for place, entry in enumerate(there) if entry not in self.model), None)
        entry = there[-1] if there and idle is None else None
        if entry is None or entry.references == 0:
            self.map.unlock_unmapped(ptr)
            assert len(self.device.calls) == calls
            if there:
                del there[-1 if idle is None else idle]
        elif self.give_up(entry, lambda: self.map.unlock_unmapped(ptr)):
            there.pop()

    @rule(failing=failing_calls)
    def refresh(self, failing: set[int]) -> None:
        self.plan_failures(failing)
        stale = [entry for entry in self.model if self.is_stale(entry)]
        try:
            gone = self.map.refresh()
        except VendorError as error:
            assert error is self.raised[0]
            return
        assert not self.raised
        expected = sorted((entry.start, entry.size, entry.references) for entry in stale)
        assert [(region.start, region.size, region.references) for region in gone] == expected
        self.model = [entry for entry in self.model if entry not in stale]

    @rule(spot=spots)
    def register(self, spot: Spot) -> None:
        ptr, size = self.range_at(spot)
        if meeting := self.first_meeting(ptr, size):
            refusal = self.refusal(meeting, range(ptr, ptr + size))
            with pytest.raises(refusal.error) as caught:
                self.map.register(ptr, size, ptr + REGISTERED_OFFSET)
            refusal.check(caught.value)
            return
        self.map.register(ptr, size, ptr + REGISTERED_OFFSET)
        self.model.append(Entry(ptr, size, "registered", self.others_coherence, 0))

    @rule(spot=spots)
    def unregister(self, spot: Spot) -> None:
        ptr, _ = self.range_at(spot)
        entry = self.at(ptr)
        if entry is None or entry.kind != "registered":
            with pytest.raises(NotLockedError, match=f"{ptr:#x}"):
                self.map.unregister(ptr)
        elif entry.references:
            with pytest.raises(StillLockedError, match=rf"{entry.start:#x}.*{entry.references} time"):
                self.map.unregister(ptr)
        else:
            self.map.unregister(ptr)
            self.model.remove(entry)

    @rule(at=starts, size=sizes)
    def someone_else_pins(self, at: int, size: int) -> None:
        ptr = BASE + at
        self.pin_if_free(ptr, size)

    @rule(at=starts)
    def someone_else_unpins(self, at: int) -> None:
        around = self.foreign_around(BASE + at)
        if around:
            del self.device.foreign[around.start]

    @precondition(lambda self: any(entry.kind == "foreign" for entry in self.model))
    @rule(which=st.integers(0, 1 << 16), lower=st.integers(-2, 2), longer=st.integers(-2, 2))
    def someone_else_pins_anew(self, which: int, lower: int, longer: int) -> None:
        """Pin a range again that the map knows as external, perhaps with other bounds."""
        known = [entry for entry in self.model if entry.kind == "foreign"]
        entry = known[which % len(known)]
        self.device.foreign.pop(entry.start, None)
        ptr, size = max(entry.start - lower, BASE), max(entry.size + longer, 1)
        self.pin_if_free(ptr, size)

    def pin_if_free(self, ptr: int, size: int) -> None:
        taken = [*self.device.locked.items(), *self.device.foreign.items()]
        if not any(ptr < base + length and base < ptr + size for base, length in taken):
            self.device.foreign[ptr] = size

    @rule(tells=st.sampled_from([True, True, True, False]))
    def the_vendor_forgets_who(self, tells: bool) -> None:
        self.device.tells_foreign = tells

    @precondition(lambda self: len(self.model) > 2)
    @rule(failing=failing_calls)
    def close(self, failing: set[int]) -> None:
        self.plan_failures(failing)
        try:
            self.map.close()
        except VendorError as error:
            assert error is self.raised[0]
            left = [each for each in self.model if any(base in each.span for base in self.device.locked)]
            assert len(left) == len(self.raised), "only what the vendor has refused stays"
            self.device.fail_no_more()
            assert not self.map.closed
            self.map.close()
        else:
            assert not self.raised
        self.map.close()
        assert self.map.closed
        assert list(self.map) == []
        for attempt in (lambda: self.map.lock(BASE, 1), lambda: self.map.register(BASE, 1, 1)):
            with pytest.raises(PinningError, match="closed"):
                attempt()
        assert self.device.locked == {}
        assert not any(hold.held for hold, _ in self.holds)
        for ptr in self.mapped:
            self.map.unlock_unmapped(ptr)
        self.model.clear()
        self.holds.clear()
        self.mapped.clear()
        self.map = PinnedMap(self.device)

    # ---- what must hold after each step ----

    @invariant()
    def the_map_is_the_model(self) -> None:
        shown = sorted((entry for entry in self.model if not entry.half_unlocked), key=lambda entry: entry.start)
        found = list(self.map)
        assert len(self.map) == len(shown)
        assert [facts(each) for each in found] == [each.facts for each in shown]
        assert all(each.end == each.start + each.size and each.device is self.device for each in found)
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
        for hold, of in self.holds:
            assert hold.held == (of in self.model)

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
            for base in self.device.locked:
                assert base not in mine or (base in self.device.coarse) == (entry.coherent is False)
        assert not locked, "the vendor has locked what no region covers"

    @invariant()
    def the_budget_counts_it(self) -> None:
        now, before = pinning.budget(), self.budget_before
        assert now.used - before.used == sum(self.device.locked.values())
        assert now.external - before.external == sum(entry.size for entry in self.model if entry.kind != "locked")


PinnedMapMachine.TestCase.settings = steps(16_000)
TestPinnedMap = PinnedMapMachine.TestCase

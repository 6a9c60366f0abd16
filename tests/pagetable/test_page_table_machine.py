# SPDX-License-Identifier: Apache-2.0
"""Random inserts and removes: after every step the page table answers as an interval tree does."""

from __future__ import annotations

from bisect import bisect_left

import numpy
import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pagetable import AbsentError, OverlapError, PageTable, RangeError, Region
from reference_table import ReferencePageTable

TOP = 2**64
PAGE, BIG_PAGE, GIANT_PAGE = 2**12, 2**21, 2**30
# Where a table of levels could go wrong: at the ends of its cells, at the end of its flat part, and at the top.
PLACES = [0, PAGE, BIG_PAGE, GIANT_PAGE, 0x7F00_0000_0000, 2**47 - GIANT_PAGE, 2**47, 2**63, TOP - GIANT_PAGE, TOP]
CELLS = [16, 256, PAGE, BIG_PAGE, GIANT_PAGE]
SCALES = [1, *CELLS, 2**40, 2**47]

near = st.integers(-3, 3)
places = st.sampled_from(PLACES)
scales = st.sampled_from(SCALES)
sizes = st.one_of(
    st.integers(1, 3 * PAGE),
    st.builds(lambda scale, times, off: max(1, scale * times + off), scales, st.integers(1, 4), near),
    st.integers(0, 64).map(lambda bits: 2**bits),
)
addresses = st.one_of(
    st.builds(lambda place, scale, steps, off: place + scale * steps + off, places, scales, st.integers(-9, 9), near),
    st.integers(0, TOP - 1),
).filter(lambda address: 0 <= address < TOP)


def bounds(region: Region | None) -> tuple[int, int] | None:
    return None if region is None else (region.start, region.size)


def fail_alike(error: type[Exception], table: PageTable, model: ReferencePageTable, call: str, *args: object) -> None:
    for one in (table, model):
        with pytest.raises(error):
            getattr(one, call)(*args)


class Comparison(RuleBasedStateMachine):
    flat = True

    @initialize()
    def start_empty(self) -> None:
        self.table = PageTable(flat=self.flat)
        self.model = ReferencePageTable()
        self.probed: list[int] = []
        self.removed: list[Region] = []

    def present(self, data: st.DataObject) -> Region:
        return data.draw(st.sampled_from(list(self.table)))

    def insert_in_both(self, start: int, size: int) -> None:
        """Insert in the table and in the model; the outcome must be the same."""
        self.probed = [start - 1, start, start + size // 2, start + size - 1, start + size]
        try:
            expected = self.model.insert(start, size)
        except (OverlapError, RangeError) as error:
            with pytest.raises(type(error)):
                self.table.insert(start, size)
            return
        region = self.table.insert(start, size)
        assert bounds(region) == bounds(expected)
        assert self.table.find(start) == region

    @rule(start=addresses, size=sizes)
    def insert(self, start: int, size: int) -> None:
        self.insert_in_both(start, size)

    @rule(data=st.data(), gap=st.integers(-2, 2), size=sizes, after=st.booleans())
    @precondition(lambda self: len(self.model) > 0)
    def insert_beside_another(self, data: st.DataObject, gap: int, size: int, after: bool) -> None:
        beside = self.present(data)
        start = beside.end + gap if after else beside.start - size - gap
        assume(0 <= start < TOP)
        self.insert_in_both(start, size)

    @rule(place=addresses, cell=st.sampled_from(CELLS), count=st.integers(2, 20), data=st.data())
    def crowd_one_cell(self, place: int, cell: int, count: int, data: st.DataObject) -> None:
        """A cell lists up to seven regions and is split for the eighth."""
        first = place & -cell
        starts = data.draw(st.lists(st.integers(0, cell - 1), min_size=2, max_size=count, unique=True).map(sorted))
        fill = data.draw(st.sampled_from([1, 2, 3]))  # divides the space up to the next one
        for start, after in zip(starts, [*starts[1:], cell], strict=True):
            self.insert_in_both(first + start, max(1, (after - start) // fill))

    @rule(data=st.data(), by_start=st.booleans())
    @precondition(lambda self: len(self.model) > 0)
    def remove(self, data: st.DataObject, by_start: bool) -> None:
        region = self.present(data)
        self.table.remove(region.start if by_start else region)
        self.model.remove(region.start)
        self.removed.append(region)
        self.probed = [region.start - 1, region.start, region.end - 1, region.end]

    @rule(data=st.data(), count=st.integers(1, 12))
    @precondition(lambda self: len(self.model) > 0)
    def remove_neighbours(self, data: st.DataObject, count: int) -> None:
        everyone = list(self.table)
        first = data.draw(st.integers(0, len(everyone) - 1))
        for region in everyone[first : first + count]:
            self.table.remove(region)
            self.model.remove(region.start)

    @rule(data=st.data(), size=sizes)
    @precondition(lambda self: len(self.model) > 0)
    def put_another_in_its_place(self, data: st.DataObject, size: int) -> None:
        old = self.present(data)
        assume(size != old.size)
        self.table.remove(old)
        self.model.remove(old.start)
        self.insert_in_both(old.start, size)
        assert self.table.find(old.start) != old
        with pytest.raises(AbsentError):
            self.table.remove(old)

    @rule(address=addresses)
    def remove_where_none_starts(self, address: int) -> None:
        found = self.model.find(address)
        assume(found is None or found.start != address)
        fail_alike(AbsentError, self.table, self.model, "remove", address)

    @rule(data=st.data())
    @precondition(lambda self: self.removed)
    def remove_again(self, data: st.DataObject) -> None:
        stale = data.draw(st.sampled_from(self.removed))
        assume(bounds(self.model.find(stale.start)) != bounds(stale))
        with pytest.raises(AbsentError):
            self.table.remove(stale)

    @rule(start=st.sampled_from([-1, TOP, 5]), size=st.sampled_from([-1, 0, TOP, TOP + 1]))
    def insert_nonsense(self, start: int, size: int) -> None:
        fail_alike(RangeError, self.table, self.model, "insert", start, size)

    @rule(start=addresses, size=sizes)
    def overlapping(self, start: int, size: int) -> None:
        expected = [bounds(region) for region in self.model.overlapping(start, size)]
        assert [bounds(region) for region in self.table.overlapping(start, size)] == expected

    @rule(start=addresses, size=st.one_of(st.just(0), sizes))
    def find_range(self, start: int, size: int) -> None:
        assert bounds(self.table.find_range(start, size)) == bounds(self.model.find_range(start, size))

    @rule(asked=st.lists(addresses, max_size=30), data=st.data())
    def ask_for_many(self, asked: list[int], data: st.DataObject) -> None:
        lengths = data.draw(st.lists(sizes.filter(lambda size: size < TOP), min_size=len(asked), max_size=len(asked)))
        self.agree_on(asked)
        answers = self.table.contains_many(words(asked), words(lengths))
        assert answers.tolist() == self.model.contains_many(words(asked), words(lengths)).tolist()

    def agree_on(self, asked: list[int]) -> None:
        by_id = {region.id: region for region in self.table}
        expected = [bounds(self.model.find(address)) for address in asked]
        assert [bounds(self.table.find(address)) for address in asked] == expected
        assert [address in self.table for address in asked] == [found is not None for found in expected]
        assert self.table.contains_many(words(asked)).tolist() == [found is not None for found in expected]
        assert [bounds(by_id.get(id)) for id in self.table.find_many(words(asked)).tolist()] == expected

    @invariant()
    def same_regions(self) -> None:
        everyone = list(self.table)
        assert [bounds(region) for region in everyone] == [bounds(region) for region in self.model]
        assert len(self.table) == len(self.model)
        ids = [region.id for region in everyone]
        assert len(set(ids)) == len(ids)
        assert all(0 <= id < 2**29 for id in ids)

    @invariant()
    def same_answers_where_it_changed(self) -> None:
        around = list(self.probed)
        if self.probed:  # and at the ends of the nearest others
            everyone = list(self.model)
            nearest = bisect_left([region.start for region in everyone], self.probed[0])
            for region in everyone[max(0, nearest - 2) : nearest + 3]:
                around += [region.start - 1, region.start, region.end - 1, region.end]
        self.agree_on([address for address in around if 0 <= address < TOP])


def words(values: list[int]) -> numpy.ndarray:
    return numpy.array(values, dtype=numpy.uint64)


class PooledComparison(Comparison):
    flat = False


def run(machine: type[Comparison]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=120,
            stateful_step_count=40,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        ),
    )


def test_page_table_agrees_with_an_interval_tree() -> None:
    run(Comparison)


def test_page_table_without_reservations_agrees_with_an_interval_tree() -> None:
    run(PooledComparison)


class Forgetful(PageTable):
    """Wrong on purpose: does not find the last byte of a region."""

    def find(self, address: int) -> Region | None:
        region = super().find(address)
        return None if region is not None and address == region.end - 1 else region


def test_the_comparison_notices_one_wrong_byte() -> None:
    class Faulty(Comparison):
        @initialize()
        def start_empty(self) -> None:
            super().start_empty()
            self.table = Forgetful()

    with pytest.raises(AssertionError):
        run(Faulty)

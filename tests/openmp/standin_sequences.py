# SPDX-License-Identifier: Apache-2.0
"""Any sequence of mappings, transfers, frees and locks: no transfer crosses a lock, and no lock outlives its memory.

Run with the tool loaded first and the stand-in as the driver, under several policies.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ompt_runtime import Runtime
from programs import TOOL, kernel_tells

from c_library import c_library, libc
from mapped_memory import PAGE, READ_WRITE, Memory
from pinning.conformance.faults import eventually
from standins.libcuda import DRIVER
from standins.standin import StandIn

PAGES = 12
FIXED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
BUDGET = 40 << 10 if os.environ.get("PINNING_LOCK_BUDGET") else 1 << 40
KERNEL_TELLS = kernel_tells()
STAYS = os.environ.get("PINNING_LOCK_UNTIL") != "unmapped"

tool = ctypes.CDLL(str(TOOL))
tool.llvm_omp_target_lock_mem.restype = ctypes.c_void_p
tool.llvm_omp_target_lock_mem.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
tool.llvm_omp_target_unlock_mem.argtypes = [ctypes.c_void_p, ctypes.c_int]
unseen = c_library("libc.so.6")  # the C library's own functions, not those that the tool interposes
runtime = Runtime(tool, "sm_90", "sm_90")
standin: StandIn

Range = tuple[int, int]
places = st.tuples(st.integers(0, 2 * PAGES - 1), st.integers(1, 2 * PAGES)).map(
    lambda drawn: (drawn[0] * PAGE // 2, min(drawn[1], 2 * PAGES - drawn[0]) * PAGE // 2)
)
devices = st.integers(0, 1)


def meet(one: Range, other: Range) -> bool:
    return one[0] < other[0] + other[1] and other[0] < one[0] + one[1]


def holds(one: Range, other: Range) -> bool:
    return one[0] <= other[0] and other[0] + other[1] <= one[0] + one[1]


class Program(RuleBasedStateMachine):
    """A program with `PAGES` pages, which it maps to two devices as OpenMP allows, and frees at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(PAGES)
        self.mapped: dict[int, list[Range]] = {0: [], 1: []}
        self.asked: list[Range] = []
        self.refused: set[Range] = set()  # what the driver has refused to unlock: it stays until something meets it

    def teardown(self) -> None:
        for device, ranges in self.mapped.items():
            for first, _ in ranges:
                runtime.unmap(self.memory.ptr + first, device)
        self.free((0, PAGES * PAGE))
        assert not self.locked()

    def locked(self) -> set[Range]:
        """Offset and size of each registration of the driver."""
        return {(start - self.memory.ptr, size) for start, size in standin.registrations()}

    @rule(place=places, device=devices)
    def map(self, place: Range, device: int) -> None:
        if not any(meet(place, each) for each in self.mapped[device]):
            runtime.map(self.memory.ptr + place[0], place[1], device)
            self.mapped[device].append(place)

    @rule(data=st.data(), device=devices, refused=st.booleans())
    def unmap(self, data: st.DataObject, device: int, refused: bool) -> None:
        if self.mapped[device]:
            place = data.draw(st.sampled_from(self.mapped[device]))
            self.mapped[device].remove(place)
            standin.configure("fail=cuMemHostUnregister:1:999" if refused else "")
            runtime.unmap(self.memory.ptr + place[0], device)
            if refused and len(standin.calls("cuMemHostUnregister")) == 1:
                self.refused |= {region for region in self.locked() if meet(region, place)}
            standin.configure()

    @rule(data=st.data(), device=devices, times=st.integers(1, 3))
    def move_what_is_mapped(self, data: st.DataObject, device: int, times: int) -> None:
        if self.mapped[device]:
            first, size = data.draw(st.sampled_from(self.mapped[device]))
            skipped = data.draw(st.integers(0, size - 1))
            part = (first + skipped, data.draw(st.integers(1, size - skipped)))
            for _ in range(times):
                self.move(part, device)

    @rule(place=places, device=devices)
    def move(self, place: Range, device: int) -> None:
        with runtime.to_device(self.memory.ptr + place[0], place[1], device):
            for region in self.locked():
                assert holds(region, place) or not meet(region, place), f"{place} crosses {region}"

    @rule(place=places)
    def free(self, place: Range) -> None:
        """Free the pages, and get other ones there."""
        pages = self.replace(libc, place)
        assert not any(meet(region, pages) for region in self.locked())

    @precondition(lambda self: KERNEL_TELLS)
    @rule(place=places)
    def free_where_the_tool_does_not_see_it(self, place: Range) -> None:
        pages = self.replace(unseen, place)
        assert eventually(lambda: not any(meet(region, pages) for region in self.locked())), "it stays locked"

    def replace(self, library: ctypes.CDLL, place: Range) -> Range:
        start = self.memory.ptr + place[0] // PAGE * PAGE
        end = self.memory.ptr + -(-(place[0] + place[1]) // PAGE) * PAGE
        assert library.mmap(start, end - start, READ_WRITE, FIXED, -1, 0) == start
        pages = (start - self.memory.ptr, end - start)
        self.asked = [each for each in self.asked if not meet(each, pages)]
        return pages

    @precondition(lambda self: len(self.asked) < 3)
    @rule(place=places)
    def lock(self, place: Range) -> None:
        if tool.llvm_omp_target_lock_mem(self.memory.ptr + place[0], place[1], 0) is not None:
            assert any(holds(region, place) for region in self.locked())
            self.asked.append(place)

    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        if self.asked:
            place = data.draw(st.sampled_from(self.asked))
            self.asked.remove(place)
            tool.llvm_omp_target_unlock_mem(self.memory.ptr + place[0], 0)

    @invariant()
    def locks_keep_to_the_policy(self) -> None:
        regions = self.locked()
        unasked = [region for region in regions if not any(meet(region, each) for each in self.asked)]
        assert sum(size for _, size in unasked) <= BUDGET
        if not STAYS:
            everything = [*self.asked, *self.mapped[0], *self.mapped[1]]
            for region in regions:
                needed = region in self.refused or any(meet(region, each) for each in everything)
                assert needed, f"nothing needs {region}"


@pytest.fixture(autouse=True)
def driver(tmp_path: Path) -> None:
    global standin
    standin = DRIVER.standin(tmp_path / "calls")
    standin.configure()


def locked_by_three_transfers(place: Range) -> Program:
    """A program that has mapped its first bytes, and moved them until they are locked."""
    program = Program()
    runtime.map(program.memory.ptr, place[1], 0)
    for _ in range(3):
        program.move(place, 0)
    assert program.locked() == {place}
    return program


def test_a_lock_beyond_the_budget_ends_with_its_call_although_a_mapping_has_used_it() -> None:
    program, whole = Program(), (0, PAGES * PAGE)
    runtime.map(program.memory.ptr, PAGE, 1)
    assert tool.llvm_omp_target_lock_mem(program.memory.ptr, whole[1], 0) is not None
    program.move((0, PAGE), 1)
    assert program.locked() == {whole}
    tool.llvm_omp_target_unlock_mem(program.memory.ptr, 0)
    assert program.locked() == (set() if whole[1] > BUDGET else {whole})
    runtime.unmap(program.memory.ptr, 1)
    program.teardown()


def test_a_lock_whose_end_the_driver_refuses_ends_when_a_transfer_meets_it() -> None:
    place = (0, 2 * PAGE)
    program = locked_by_three_transfers(place)
    standin.configure("fail=cuMemHostUnregister:1:999")
    runtime.unmap(program.memory.ptr, 0)
    standin.configure()
    program.move((PAGE, 2 * PAGE), 0)
    assert place not in program.locked()
    program.teardown()


def test_a_mapping_that_begins_where_another_ends_leaves_that_ones_lock() -> None:
    place = (0, 2 * PAGE)
    program = locked_by_three_transfers(place)
    runtime.map(program.memory.ptr + place[1], PAGE, 0)
    assert program.locked() == {place}
    for mapped in (0, place[1]):
        runtime.unmap(program.memory.ptr + mapped, 0)
    program.teardown()


def test_sequences() -> None:
    Program.TestCase.settings = settings(
        max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    Program.TestCase().runTest()

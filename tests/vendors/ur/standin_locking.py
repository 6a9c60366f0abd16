# SPDX-License-Identifier: Apache-2.0
"""Which pages are registered, by which calls, for locks that share them."""

from __future__ import annotations

import gc
import mmap
import time
import weakref
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from hypothesis.strategies import data, integers, sampled_from

from fake_device import Background, in_threads
from mapped_memory import PAGE, Memory, locked_pages
from pinning.errors import InvalidRangeError, VendorError
from pinning_ur import plugin
from standins.standin import StandIn

DEVICE, OPENCL = plugin.device(0), plugin.device(2)
REGISTER, UNREGISTER = "urUSMHostAllocRegisterExp", "urUSMHostAllocUnregisterExp"
IMPORT, RELEASE = "urUSMImportExp", "urUSMReleaseExp"


class Buffer:
    """An object that a caller holds while it requests a lock."""


def pages(memory: Memory, *ranges: tuple[int, int]) -> set[tuple[int, int]]:
    """Ranges of pages of `memory`, each from `first` up to but excluding `last`, as the stand-in reports them."""
    return {(memory.ptr + first * PAGE, (last - first) * PAGE) for first, last in ranges}


def test_a_lock_is_one_registration_of_whole_pages(standin: StandIn) -> None:
    memory = Memory(4)
    assert DEVICE.data_lock(memory.ptr + 100, 2 * PAGE, None) == memory.ptr + 100
    assert standin.registrations() == pages(memory, (0, 3))
    assert locked_pages(memory.ptr, memory.ptr + memory.size) == {0, 1, 2}
    DEVICE.data_unlock(memory.ptr + 100)
    assert standin.registrations() == set()
    assert locked_pages(memory.ptr, memory.ptr + memory.size) == set()
    assert (len(standin.calls(REGISTER)), len(standin.calls(UNREGISTER))) == (1, 1)


def test_of_two_locks_at_one_address_the_smaller_ends_first(standin: StandIn) -> None:
    memory = Memory(4)
    for size in (1, 4, 2):  # by several maps
        DEVICE.data_lock(memory.ptr, size * PAGE, None)
    for _ in range(2):
        DEVICE.data_unlock(memory.ptr)
        assert sum(size for _, size in standin.registrations()) == 4 * PAGE
        assert DEVICE.is_pinned_ptr(memory.ptr + 3 * PAGE)
    DEVICE.data_unlock(memory.ptr)
    assert standin.registrations() == set()
    assert DEVICE.is_pinned_ptr(memory.ptr) is None


def test_memory_that_is_not_there_is_not_imported(standin: StandIn) -> None:
    memory = Memory(3)
    memory.unmap(1)
    standin.configure("no_register")
    for first, last in ((0, 3), (0, 2), (1, 2), (1, 3)):
        with pytest.raises(InvalidRangeError, match=f"no memory at {memory.ptr + PAGE:#x}"):
            DEVICE.data_lock(memory.ptr + first * PAGE, (last - first) * PAGE, None)
    assert standin.calls(IMPORT) == []


def test_a_refused_lock_keeps_nothing_of_the_caller_alive(standin: StandIn) -> None:
    memory = Memory(1)
    kept = weakref.ref(buffer := Buffer())

    def lock(buffer: Buffer) -> None:
        with pytest.raises(VendorError):
            OPENCL.data_lock(memory.ptr, PAGE, None)

    gc.disable()
    lock(buffer)
    del buffer
    gc.enable()
    assert kept() is None


def test_a_lock_that_is_refused_in_part_registers_nothing(standin: StandIn) -> None:
    memory = Memory(3)
    DEVICE.data_lock(memory.ptr + PAGE, PAGE, None)
    standin.configure(f"fail={REGISTER}:2:999")
    with pytest.raises(VendorError):
        DEVICE.data_lock(memory.ptr, 3 * PAGE, None)
    standin.configure()
    assert standin.registrations() == pages(memory, (1, 2))
    DEVICE.data_unlock(memory.ptr + PAGE)


def test_a_refused_unlock_still_holds_the_pages_that_it_shares(standin: StandIn) -> None:
    memory = Memory(2)
    neighbour, lock = memory.ptr, memory.ptr + 8
    DEVICE.data_lock(neighbour, 8, None)
    DEVICE.data_lock(lock, PAGE, None)
    standin.configure(f"fail={UNREGISTER}:1:20")
    with pytest.raises(VendorError):
        DEVICE.data_unlock(lock)
    standin.configure()
    DEVICE.data_unlock(neighbour)
    assert standin.registrations() == pages(memory, (0, 1), (1, 2))
    DEVICE.data_unlock(lock)


@pytest.mark.parametrize(
    ("protection", "told", "read_only"),
    [
        (mmap.PROT_READ, None, True),
        (mmap.PROT_READ, True, True),
        (mmap.PROT_READ | mmap.PROT_WRITE, None, False),
        (mmap.PROT_READ | mmap.PROT_WRITE, True, False),  # the rest of the page may be written
        (mmap.PROT_READ, False, False),  # not looked up
    ],
)
def test_a_mapping_that_may_not_be_written(
    standin: StandIn, protection: int, told: bool | None, read_only: bool
) -> None:
    memory = Memory(1)
    memory.protect(0, protection)
    DEVICE.data_lock(memory.ptr + 8, 8, told)
    (call,) = standin.calls(REGISTER)
    assert call.split()[-1] == str(int(read_only))
    DEVICE.data_unlock(memory.ptr + 8)


def test_a_page_that_stays_is_registered_as_its_mapping_allows(standin: StandIn) -> None:
    memory = Memory(2)
    memory.protect(1, mmap.PROT_READ)
    DEVICE.data_lock(memory.ptr, PAGE + 8, None)
    DEVICE.data_lock(memory.ptr + PAGE + 8, 8, None)
    DEVICE.data_unlock(memory.ptr)
    assert [call.split()[-1] for call in standin.calls(REGISTER)] == ["1", "1"]
    DEVICE.data_unlock(memory.ptr + PAGE + 8)


def test_an_adapter_that_can_only_import(standin: StandIn) -> None:
    memory = Memory(2)
    standin.configure("no_register")
    DEVICE.data_lock(memory.ptr + 5, PAGE, None)
    assert [call.split()[2:] for call in standin.calls(IMPORT)] == [[f"{memory.ptr:#x}", str(2 * PAGE)]]
    assert DEVICE.is_pinned_ptr(memory.ptr + 5) == (memory.ptr + 5, PAGE, memory.ptr + 5)
    DEVICE.data_unlock(memory.ptr + 5)
    assert [call.split()[2:] for call in standin.calls(RELEASE)] == [[f"{memory.ptr:#x}"]]
    assert standin.calls(UNREGISTER) == []


def test_an_adapter_that_can_do_neither(standin: StandIn) -> None:
    memory = Memory(1)
    with pytest.raises(VendorError) as raised:
        OPENCL.data_lock(memory.ptr, PAGE, None)
    error = raised.value
    assert (error.call, error.code, error.name) == (IMPORT, 44, "UR_RESULT_ERROR_UNSUPPORTED_FEATURE")
    assert [word for word in ("OpenCL", REGISTER, IMPORT, "host:0") if word not in error.advice] == []
    assert OPENCL.is_pinned_ptr(memory.ptr) is None


def test_a_long_lock_holds_up_nobody_elsewhere(standin: StandIn) -> None:
    memory, elsewhere = Memory(2), Memory(2)
    DEVICE.data_lock(elsewhere.ptr, PAGE, None)
    standin.configure(f"delay={REGISTER}:60000")
    locking = [Background(partial(DEVICE.data_lock, memory.ptr + start, 100, False)) for start in (0, 200)]
    standin.wait_for(REGISTER)
    assert DEVICE.is_pinned_ptr(elsewhere.ptr) == (elsewhere.ptr, PAGE, elsewhere.ptr)
    assert DEVICE.is_pinned_ptr(memory.ptr) is None
    DEVICE.data_unlock(elsewhere.ptr)
    assert all(thread.is_alive() for thread in locking)
    assert len(standin.calls(REGISTER)) == 1  # the other thread waits for the page, and then shares it
    standin.configure()
    for thread in locking:
        thread.join()
    assert standin.calls(REGISTER) == []
    for start in (0, 200):
        DEVICE.data_unlock(memory.ptr + start)


def test_two_neighbours_leave_one_registration_at_once(standin: StandIn) -> None:
    memory = Memory(2)
    left, middle, right = memory.ptr, memory.ptr + 100, memory.ptr + 2 * PAGE - 100
    DEVICE.data_lock(middle, 2 * PAGE - 200, False)
    DEVICE.data_lock(left, 100, False)
    DEVICE.data_lock(right, 100, False)
    DEVICE.data_unlock(middle)
    assert standin.registrations() == pages(memory, (0, 2))
    standin.configure(f"delay={UNREGISTER}:60000")
    leaving = [Background(lambda ptr=ptr: DEVICE.data_unlock(ptr)) for ptr in (left, right)]  # type: ignore[misc]
    standin.wait_for(UNREGISTER)
    time.sleep(0.1)  # enough for both calls, if the threads did not take turns
    assert len(standin.calls(UNREGISTER)) == 1
    standin.configure()
    for thread in leaving:
        thread.result()
    assert standin.registrations() == set()


def test_what_is_locked_during_a_question_is_not_someone_elses(standin: StandIn) -> None:
    memory = Memory(3)
    DEVICE.data_lock(memory.ptr, 8, False)
    DEVICE.data_lock(memory.ptr + 2 * PAGE + 8, 8, False)
    standin.configure("delay=urUSMGetMemAllocInfo:60000")
    asking = Background(lambda: DEVICE.is_pinned_ptr(memory.ptr + PAGE))
    standin.wait_for("urUSMGetMemAllocInfo")
    DEVICE.data_lock(memory.ptr + 8, 2 * PAGE, False)  # its ends are in pages that are already registered
    assert standin.registrations() == pages(memory, (0, 1), (1, 2), (2, 3))
    standin.configure()
    assert asking.result() is None
    for start in (0, 8, 2 * PAGE + 8):
        DEVICE.data_unlock(memory.ptr + start)


def test_many_threads_share_pages(standin: StandIn) -> None:
    memory = Memory(8)

    def work(offset: int) -> None:
        for step in range(60):
            start = memory.ptr + (offset + step * 700) % (6 * PAGE)
            size = 100 + step * 90
            DEVICE.data_lock(start, size, False)
            assert DEVICE.is_pinned_ptr(start + size - 1) is not None
            DEVICE.data_unlock(start)

    in_threads(work, range(0, 52, 13))
    assert standin.registrations() == set()


class Model(RuleBasedStateMachine):
    """Locks of any bytes of some pages, against a list of the locks. Calls fail at random."""

    standin: StandIn
    area = 6 * PAGE

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(6)
        self.locks: list[tuple[int, int]] = []

    @rule(
        start=integers(0, area - 1),
        size=integers(1, 3 * PAGE),
        function=sampled_from([REGISTER, IMPORT]),
        failing=integers(0, 3),
    )
    def lock(self, start: int, size: int, function: str, failing: int) -> None:
        size = min(size, self.area - start)
        if any(base == start for base, _ in self.locks):
            return  # of two locks at one base, the smaller is unlocked first
        self.standin.configure("no_register;" * (function == IMPORT) + f"fail={function}:{failing}:20" * bool(failing))
        try:
            DEVICE.data_lock(self.memory.ptr + start, size, None)
        except VendorError as error:
            assert (error.call, error.code, bool(failing)) == (function, 20, True)
        else:
            self.locks.append((start, size))
        self.standin.configure()

    @precondition(lambda self: self.locks)
    @rule(data=data(), failing=integers(0, 4))
    def unlock(self, data: data, failing: int) -> None:  # type: ignore[valid-type]
        lock = data.draw(sampled_from(self.locks))  # type: ignore[attr-defined]
        self.standin.configure(f"fail=*:{failing}:20" if failing else "")
        try:
            DEVICE.data_unlock(self.memory.ptr + lock[0])
        except VendorError as error:
            assert (error.code, bool(failing)) == (20, True)
        else:
            self.locks.remove(lock)
        self.standin.configure()

    @invariant()
    def what_is_registered_is_what_the_locks_touch(self) -> None:
        needed = {page for start, size in self.locks for page in range(start // PAGE, (start + size - 1) // PAGE + 1)}
        registered = [
            page
            for start, size in self.standin.registrations()
            for page in range((start - self.memory.ptr) // PAGE, (start + size - self.memory.ptr) // PAGE)
        ]
        assert sorted(registered) == sorted(needed)

    @invariant()
    def every_byte_is_found_in_its_largest_lock(self) -> None:
        for byte in (start + at for start, size in self.locks for at in (-1, 0, size - 1, size)):
            around = [(size, start) for start, size in self.locks if start <= byte < start + size]
            found = DEVICE.is_pinned_ptr(self.memory.ptr + byte)
            assert (found and (found.size, found.base - self.memory.ptr)) == (max(around) if around else None)

    def teardown(self) -> None:
        self.standin.configure()
        for start, _ in self.locks:
            DEVICE.data_unlock(self.memory.ptr + start)
        assert self.standin.registrations() == set()


@pytest.fixture
def machine(standin: StandIn) -> Iterator[type[Model]]:
    Model.standin = standin
    yield Model


def test_any_order_of_locks(machine: type[Model]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))

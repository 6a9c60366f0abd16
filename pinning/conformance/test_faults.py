# SPDX-License-Identifier: Apache-2.0
"""The n-th driver call fails, for every n: afterwards the state is as before, and the error says what failed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pinning
from pinning import MemoryKind, PinnedMap, PinningError, VendorError
from pinning.conformance.bench import Bench
from pinning.conformance.faults import Faults
from pinning.conformance.memory import PAGE, has
from pinning.plugin import CopyDevice, Device, MemoryDevice

kinds: pytest.MarkDecorator = pytest.mark.parametrize("kind", MemoryKind, ids=lambda kind: kind.value)


@pytest.fixture
def bench(device: Device, faults: Faults) -> Iterator[Bench]:
    bench = Bench(device, faults)
    if isinstance(device, CopyDevice):  # creates what the device keeps for its copies
        device_ptr = device.allocate(PAGE)
        device.copy(device_ptr, bench.pages.ptr, PAGE)
        device.free(device_ptr)
    before = bench.state()
    yield bench
    faults.begin()
    assert bench.state() == before


# ---- locks ----

RANGES = {"odd": (100, 5000), "a page": (PAGE, PAGE), "many": (PAGE + 1, 4 * PAGE)}
ranges: pytest.MarkDecorator = pytest.mark.parametrize(("at", "size"), RANGES.values(), ids=list(RANGES))


@ranges
def test_a_lock_fails_without_a_trace(bench: Bench, locking: Device, at: int, size: int) -> None:
    ptr = bench.pages.ptr + at
    assert bench.every_call_fails(lambda: locking.data_lock(ptr, size, None), lambda: locking.data_unlock(ptr))


def test_a_coarse_grained_lock_fails_without_a_trace(bench: Bench, locking: Device) -> None:
    device: Any = locking
    ptr = bench.pages.ptr
    if False not in getattr(device, "coherence", ()):
        pytest.skip(f"{locking.name} has no coarse-grained memory")
    assert bench.every_call_fails(
        lambda: device.data_lock(ptr, PAGE, None, coherent=False), lambda: device.data_unlock(ptr)
    )


@ranges
def test_an_unlock_that_fails_leaves_the_lock(bench: Bench, locking: Device, at: int, size: int) -> None:
    ptr = bench.pages.ptr + at
    locking.data_lock(ptr, size, None)
    bench.every_call_fails(lambda: locking.data_unlock(ptr), lambda: locking.data_lock(ptr, size, None))
    locking.data_unlock(ptr)


def test_a_lock_beside_others_fails_without_a_trace(bench: Bench, locking: Device) -> None:
    """Its first and its last page are locked already, by neighbours."""
    ptr, size = bench.pages.ptr + PAGE + 100, 3 * PAGE
    neighbours = [(bench.pages.ptr, PAGE + 100), (ptr + size, 300)]
    for neighbour in neighbours:
        locking.data_lock(*neighbour, None)
    bench.every_call_fails(lambda: locking.data_lock(ptr, size, None), lambda: locking.data_unlock(ptr))
    locking.data_lock(ptr, size, None)
    bench.every_call_fails(lambda: locking.data_unlock(ptr), lambda: locking.data_lock(ptr, size, None))
    for base in (ptr, *(base for base, _ in neighbours)):
        locking.data_unlock(base)


def test_a_map_is_as_before(bench: Bench, locking: Device) -> None:
    with PinnedMap(locking) as on:
        ptr, size = bench.pages.ptr + 50, 2 * PAGE

        def is_empty() -> None:
            assert len(on) == 0

        def has_it() -> None:
            assert [(region.start, region.size, region.references) for region in on] == [(ptr, size, 1)]

        bench.every_call_fails(lambda: on.lock(ptr, size), lambda: on.unlock(ptr), is_empty)
        on.lock(ptr, size)
        bench.every_call_fails(lambda: on.unlock(ptr), lambda: on.lock(ptr, size), has_it)
        on.unlock(ptr)


def test_pieces_are_all_locked_or_none(bench: Bench, locking: Device) -> None:
    with PinnedMap(locking) as on:
        try:
            on.lock(bench.pages.ptr, 3 * PAGE, piece=PAGE)
        except PinningError as error:
            pytest.skip(f"{locking.name} has no pieces: {error}")
        on.unlock(bench.pages.ptr)

        def is_empty() -> None:
            assert len(on) == 0

        act, undo = lambda: on.lock(bench.pages.ptr, 3 * PAGE, piece=PAGE), lambda: on.unlock(bench.pages.ptr)
        bench.every_call_fails(act, undo, is_empty)


def test_a_question_about_locked_memory_fails(bench: Bench, locking: Device) -> None:
    """A failed query must not report that locked memory is not locked."""
    ptr = bench.pages.ptr
    locking.data_lock(ptr, PAGE, None)
    expected = locking.is_pinned_ptr(ptr + 1)

    def ask() -> None:
        assert locking.is_pinned_ptr(ptr + 1) == expected

    bench.every_call_fails(ask)
    locking.data_unlock(ptr)


def test_every_call_fails_until_the_driver_recovers(bench: Bench, locking: Device) -> None:
    ptr, faults = bench.pages.ptr, bench.faults
    locking.data_lock(ptr, PAGE, None)
    faults.begin()
    locking.data_unlock(ptr)
    acts: list[Callable[[], object]] = [lambda: locking.data_lock(ptr + 2 * PAGE, PAGE, None)]
    if faults.calls():
        acts.append(lambda: locking.data_unlock(ptr))
    locking.data_lock(ptr, PAGE, None)
    before = bench.state()
    faults.begin(fail=1, failures=16)
    for act in acts:
        with pytest.raises(VendorError):
            act()
    faults.begin()
    assert bench.state() == before
    locking.data_unlock(ptr)


def test_python_runs_on_during_any_call_of_a_lock(bench: Bench, locking: Device) -> None:
    ptr, faults = bench.pages.ptr, bench.faults

    def begin() -> threading.Thread:
        thread = threading.Thread(target=locking.data_lock, args=(ptr, PAGE, None))
        thread.start()
        return thread

    faults.begin()
    begin().join()
    functions = set(faults.calls())
    locking.data_unlock(ptr)
    for function in functions:
        faults.begin(slow=function)
        thread = begin()
        while function not in faults.calls():
            time.sleep(0.001)
        assert thread.is_alive()  # this thread runs while the call is in progress
        faults.begin()
        thread.join()
        locking.data_unlock(ptr)


def test_ctrl_c_during_any_call_of_a_lock_leaves_nothing_locked(bench: Bench, locking: Device) -> None:
    def lock() -> pinning.Lock:
        return pinning.lock((bench.pages.ptr + 100, PAGE), device=locking)

    lock().unlock()
    bench.faults.begin()
    again = lock()  # not the first one, which also sets up the device
    functions = set(bench.faults.calls())
    again.unlock()
    before = bench.state()

    def interrupt(function: str, over: threading.Event) -> None:
        while function not in bench.faults.calls() and not over.wait(0.001):
            pass
        os.kill(os.getpid(), signal.SIGINT)
        bench.faults.begin()

    assert functions
    for function in functions:
        bench.faults.begin(slow=function)
        over = threading.Event()
        interrupting = threading.Thread(target=interrupt, args=(function, over))
        with pytest.raises(KeyboardInterrupt):
            interrupting.start()
            try:
                lock()
            finally:
                over.set()
                interrupting.join()
        assert bench.state() == before, f"interrupted during {function}"


# ---- memory ----


@kinds
def test_an_allocation_fails_without_a_trace(bench: Bench, memories: MemoryDevice, kind: MemoryKind) -> None:
    made: list[int] = []
    bench.every_call_fails(
        lambda: made.append(memories.allocate(100, has(memories, kind))), lambda: memories.free(made.pop(), kind)
    )


@kinds
def test_what_could_not_be_given_back_is_still_allocated(
    bench: Bench, memories: MemoryDevice, kind: MemoryKind
) -> None:
    allocated = [memories.allocate(100, has(memories, kind))]
    known = memories.memory_info(allocated[0])
    assert known

    def is_known() -> None:
        found = memories.memory_info(allocated[0])
        assert found and (found.kind, found.base, found.size) == (kind, allocated[0], known.size)

    def free() -> None:
        memories.free(allocated[0], kind)

    def allocate() -> None:
        allocated[0] = memories.allocate(100, kind)

    bench.every_call_fails(free, allocate, is_known)
    free()


@kinds
def test_a_question_about_an_allocation_fails(bench: Bench, memories: MemoryDevice, kind: MemoryKind) -> None:
    ptr = memories.allocate(100, has(memories, kind))
    info = memories.memory_info(ptr + 1)

    def ask() -> None:
        assert memories.memory_info(ptr + 1) == info

    bench.every_call_fails(ask)
    memories.free(ptr, kind)


def test_a_connection_that_cannot_be_asked_about(bench: Bench, memories: MemoryDevice, others: list[Device]) -> None:
    if not others:
        pytest.skip(f"{memories.name} is the only device of its plugin")
    bench.every_call_fails(lambda: memories.connection(others[0]))


@pytest.mark.parametrize("locked", [False, True], ids=["pageable", "locked"])
def test_a_copy_that_fails_says_so(
    bench: Bench, copies: CopyDevice, refusal: PinningError | None, locked: bool
) -> None:
    if locked and refusal is not None:
        pytest.skip(f"{copies.name} locks no memory")
    there, pages = copies.allocate(PAGE), bench.pages
    if locked:
        copies.data_lock(pages.ptr, PAGE, None)
    bench.every_call_fails(lambda: copies.copy(there, pages.ptr, PAGE))
    bench.every_call_fails(lambda: copies.copy(pages.ptr, there, PAGE))
    assert pages.read() == pages.contents
    if locked:
        copies.data_unlock(pages.ptr)
    copies.free(there)

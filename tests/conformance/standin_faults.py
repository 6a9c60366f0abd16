# SPDX-License-Identifier: Apache-2.0
"""The n-th call of the driver fails, for every n: afterwards all is as it was before, and the error says what failed.

What is locked is what the kernel says (``lo`` in smaps), what the stand-in has registered and what the device tells.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from vendors import VENDORS

import pinning
from pinning import PinnedMap, PinningError, VendorError
from pinning.conformance.memory import PAGE, Pages
from standins.standin import StandIn

NAME = os.environ["CONFORMANCE_VENDOR"]
VENDOR = VENDORS[NAME]
CODE, CODE_NAME = VENDOR.failure
DEVICE = pinning.device(f"{NAME}:0")

State = tuple[set[int], set[tuple[int, int]], list[object]]


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[StandIn]:
    standin = VENDOR.driver.standin(tmp_path / "calls")
    standin.configure()
    yield standin
    standin.configure()
    assert standin.registrations() == set()


@pytest.fixture
def pages(standin: StandIn) -> Iterator[Pages]:
    pages = Pages(6)
    yield pages
    standin.configure()
    assert state(standin, pages)[::2] == (set(), [None] * 6)


def locked_pages(pages: Pages) -> set[int]:
    """The numbers of the pages that the kernel has locked."""
    found: set[int] = set()
    low = high = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(" ", 1)[0]
        if "-" in first and not first.endswith(":"):
            low, high = (int(address, 16) for address in first.split("-"))
        elif first == "VmFlags:" and "lo" in line.split():
            inside = range(max(low, pages.ptr), min(high, pages.ptr + pages.size), PAGE)
            found.update((page - pages.ptr) // PAGE for page in inside)
    return found


def state(standin: StandIn, pages: Pages) -> State:
    """What is locked, by three witnesses."""
    tells = [DEVICE.is_pinned_ptr(pages.ptr + page * PAGE + 200) for page in range(6)]
    return locked_pages(pages), standin.registrations(), list(tells)


def each_failure(
    standin: StandIn, pages: Pages, act: Callable[[], object], undo: Callable[[], object]
) -> Iterator[tuple[str, VendorError]]:
    """Let the first call of `act` fail, then the second and so on, with what was raised; `undo` follows a success."""
    for n in count(1):
        before = state(standin, pages)
        standin.configure(f"fail=*:{n}:{CODE}")
        raised: VendorError | None = None
        try:
            act()
        except VendorError as error:
            raised = error
        calls = standin.calls()
        standin.configure()
        if raised is None:
            failed = calls[n - 1].split()[0] if n <= len(calls) else None
            assert failed in {None, *VENDOR.tolerated}, f"{failed} failed, and nothing was raised"
            assert state(standin, pages) != before
            undo()
        assert state(standin, pages) == before
        if n > len(calls):
            return
        if raised is not None:
            yield calls[n - 1].split()[0], raised


def check(failures: Iterator[tuple[str, VendorError]]) -> None:
    seen = 0
    for call, error in failures:
        assert (error.call, error.code, error.name) == (call, CODE, CODE_NAME)
        assert call in str(error) and str(CODE) in str(error) and CODE_NAME in str(error)
        seen += 1
    assert seen, "no call was made to fail"


RANGES = {"odd": (100, 5000), "a page": (PAGE, PAGE), "many": (PAGE + 1, 4 * PAGE)}


@pytest.mark.parametrize(("at", "size"), RANGES.values(), ids=list(RANGES))
def test_a_lock_fails_without_a_trace(standin: StandIn, pages: Pages, at: int, size: int) -> None:
    ptr = pages.ptr + at
    check(
        each_failure(standin, pages, lambda: DEVICE.data_lock(ptr, size, None), lambda: DEVICE.data_unlock(ptr)),
    )


@pytest.mark.parametrize(("at", "size"), RANGES.values(), ids=list(RANGES))
def test_an_unlock_that_fails_leaves_the_lock(standin: StandIn, pages: Pages, at: int, size: int) -> None:
    ptr = pages.ptr + at
    DEVICE.data_lock(ptr, size, None)
    check(
        each_failure(standin, pages, lambda: DEVICE.data_unlock(ptr), lambda: DEVICE.data_lock(ptr, size, None)),
    )
    DEVICE.data_unlock(ptr)


def test_a_lock_beside_others_fails_without_a_trace(standin: StandIn, pages: Pages) -> None:
    """Its first and its last page are locked already, by neighbours."""
    ptr, size = pages.ptr + PAGE + 100, 3 * PAGE
    neighbours = [(pages.ptr, PAGE + 100), (ptr + size, 300)]
    for neighbour in neighbours:
        DEVICE.data_lock(*neighbour, None)
    check(each_failure(standin, pages, lambda: DEVICE.data_lock(ptr, size, None), lambda: DEVICE.data_unlock(ptr)))
    DEVICE.data_lock(ptr, size, None)
    check(each_failure(standin, pages, lambda: DEVICE.data_unlock(ptr), lambda: DEVICE.data_lock(ptr, size, None)))
    for base in (ptr, *(base for base, _ in neighbours)):
        DEVICE.data_unlock(base)


def test_a_map_is_as_before(standin: StandIn, pages: Pages) -> None:
    with PinnedMap(DEVICE) as on:
        ptr, size = pages.ptr + 50, 2 * PAGE
        for _, _ in each_failure(standin, pages, lambda: on.lock(ptr, size), lambda: on.unlock(ptr)):
            assert len(on) == 0
        on.lock(ptr, size)
        for _, _ in each_failure(standin, pages, lambda: on.unlock(ptr), lambda: on.lock(ptr, size)):
            (region,) = on
            assert (region.start, region.size, region.references) == (ptr, size, 1)
        on.unlock(ptr)


def test_pieces_are_all_locked_or_none(standin: StandIn, pages: Pages) -> None:
    with PinnedMap(DEVICE) as on:
        try:
            on.lock(pages.ptr, 3 * PAGE, piece=PAGE)
        except PinningError as error:
            pytest.skip(f"{NAME} has no pieces: {error}")
        on.unlock(pages.ptr)
        act, undo = lambda: on.lock(pages.ptr, 3 * PAGE, piece=PAGE), lambda: on.unlock(pages.ptr)
        for _, _ in each_failure(standin, pages, act, undo):
            assert len(on) == 0


def test_a_question_that_fails_changes_nothing(standin: StandIn, pages: Pages) -> None:
    DEVICE.data_lock(pages.ptr, PAGE, None)
    before = state(standin, pages)
    for n in count(1):
        standin.configure(f"fail=*:{n}:{CODE}")
        try:
            answer = DEVICE.is_pinned_ptr(pages.ptr + 1)
        except VendorError as error:
            assert (error.code, error.name) == (CODE, CODE_NAME)
        else:
            assert answer is not None, "it says that locked memory is not, though the driver only failed"
        calls = standin.calls()
        standin.configure()
        assert state(standin, pages) == before
        if n > len(calls):
            break
    DEVICE.data_unlock(pages.ptr)


def test_every_call_fails_until_the_driver_recovers(standin: StandIn, pages: Pages) -> None:
    DEVICE.data_lock(pages.ptr, PAGE, None)
    before = state(standin, pages)
    standin.configure(";".join(f"fail=*:{n}:{CODE}" for n in range(1, 17)))
    for act in (lambda: DEVICE.data_unlock(pages.ptr), lambda: DEVICE.data_lock(pages.ptr + 2 * PAGE, PAGE, None)):
        with pytest.raises(VendorError):
            act()
    standin.configure()
    assert state(standin, pages) == before
    DEVICE.data_unlock(pages.ptr)


def test_ctrl_c_during_any_call_of_a_lock_leaves_nothing_locked(standin: StandIn, pages: Pages) -> None:
    def lock() -> pinning.Lock:
        return pinning.lock((pages.ptr + 100, PAGE), device=DEVICE)

    lock().unlock()
    standin.configure()
    again = lock()  # not the first one, which also sets up the device
    functions = {call.split()[0] for call in standin.calls()}
    again.unlock()
    before = state(standin, pages)

    def interrupt(function: str, over: threading.Event) -> None:
        while not standin.calls(function) and not over.wait(0.001):
            pass
        os.kill(os.getpid(), signal.SIGINT)
        standin.configure()

    assert functions
    for function in functions:
        standin.configure(f"delay={function}:60000")
        over = threading.Event()
        interrupting = threading.Thread(target=interrupt, args=(function, over))
        with pytest.raises(KeyboardInterrupt):
            interrupting.start()
            try:
                lock()
            finally:
                over.set()
                interrupting.join()
        assert state(standin, pages) == before, f"interrupted during {function}"

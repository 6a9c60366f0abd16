# SPDX-License-Identifier: Apache-2.0
"""fork, and the end of a process with locks held."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

import pinning
from pinning import PinningError
from pinning.conformance.faults import Faults
from pinning.conformance.memory import PAGE, Pages
from pinning.conformance.processes import in_fork, refusals
from pinning.plugin import CopyDevice, Device, Plugin


def test_a_child_holds_nothing_of_its_parent(locking: Device) -> None:
    pages = Pages(2)
    lock = pinning.lock((pages.ptr, pages.size), device=locking)

    def look() -> object:
        lock.unlock()
        return lock.held, pinning.regions(locking), pages.read() == pages.contents

    assert in_fork(look) == "(False, [], True)"
    assert lock.held
    lock.unlock()


def test_the_parent_keeps_its_lock(locking: Device) -> None:
    pages = Pages(1)
    with pinning.lock((pages.ptr, PAGE), device=locking):
        before = locking.is_pinned_ptr(pages.ptr)
        in_fork(lambda: None)
        assert locking.is_pinned_ptr(pages.ptr) == before
        pages.write(0, b"still mine")
    assert pages.read()[:10] == b"still mine"


def test_a_child_locks_for_itself_or_is_told_that_it_cannot(locking: Device) -> None:
    pages = Pages(2)

    def lock_in_child() -> str:
        try:
            if locking.is_pinned_ptr(pages.ptr) is not None:
                return "the device reports what the parent has locked"
            with pinning.lock((pages.ptr, PAGE), device=locking):
                pages.write(PAGE - 5, b"child")
            return "locked"
        except PinningError as error:
            return f"refused: {error}"

    with pinning.lock((pages.ptr, pages.size), device=locking):
        said = in_fork(lock_in_child)
    assert pages.read() == pages.contents
    assert said.startswith(("locked", "refused: ")), said
    if said != "locked":
        assert "fork" in said, f"the refusal must name the fork: {said}"
        pytest.skip(f"{locking.name} does not work in a fork: {said}")


def test_a_fork_may_use_all_of_the_driver_or_is_told_that_it_cannot(
    locking: Device, plugin: Plugin, driver_faults: Faults | None
) -> None:
    pages, index = Pages(1), locking.index
    locking.data_lock(pages.ptr, 100, None)
    attempts: list[Callable[[], object]] = [
        plugin.device_count,
        lambda: plugin.device(index),
        lambda: locking.data_lock(pages.ptr + 200, 1, None),
        lambda: locking.data_unlock(pages.ptr),
        lambda: locking.is_pinned_ptr(pages.ptr),
    ]
    if isinstance(locking, CopyDevice):
        attempts += [lambda: locking.allocate(1), lambda: locking.copy(pages.ptr, pages.ptr, 1)]
    if driver_faults:
        driver_faults.begin()
    refused = refusals(attempts)
    assert not refused or driver_faults is None or driver_faults.calls() == [], "the driver was called in the child"
    locking.data_unlock(pages.ptr)
    if not refused:
        pytest.skip(f"{locking.name} works in a fork")
    assert refused == len(attempts)


PROGRAM = """
import sys, threading, pinning
device = pinning.device(sys.argv[1])
buffer = bytearray(10_000)
kept = pinning.lock(buffer, device=device)
pinning.pinned_map(device).lock(kept.ptr + 10, 20)
own = pinning.PinnedMap(device)
other = bytearray(10_000)
lock = pinning.lock(other, device=device)
ptr = lock.ptr
lock.unlock()
own.lock(ptr, 100)
print("locked", flush=True)
"""


@pytest.mark.parametrize(
    "end", ["", "raise SystemExit(0)", "import os; os.fork(); pass"], ids=["at its end", "SystemExit", "and its fork's"]
)
def test_a_process_ends_with_locks_held(locking: Device, end: str) -> None:
    command = [sys.executable, "-P", "-W", "error::ResourceWarning", "-c", PROGRAM + end, locking.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "locked\n"), done.stderr
    assert "Error" not in done.stderr and "rror:" not in done.stderr, done.stderr

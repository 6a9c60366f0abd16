# SPDX-License-Identifier: Apache-2.0
"""The tool loaded by the runtime, so that it does not see what is freed: locks live no longer than mappings.

Also with a runtime whose callbacks have no endpoints.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
from ompt_runtime import Runtime
from programs import TOOL

from mapped_memory import PAGE, Memory
from standins.libcuda import DRIVER
from standins.standin import StandIn

tool = ctypes.CDLL(str(TOOL))
RUNTIMES = {emi: Runtime(tool, "sm_90", "sm_90", emi=emi) for emi in (True, False)}


@pytest.fixture(params=[True, False], ids=["with endpoints", "without"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return RUNTIMES[request.param]


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[StandIn]:
    standin = DRIVER.standin(tmp_path / "calls")
    standin.configure()
    yield standin
    assert standin.registrations() == set()


def move(runtime: Runtime, ptr: int, size: int, times: int = 1) -> None:
    for _ in range(times):
        with runtime.to_device(ptr, size):
            pass


def test_a_lock_goes_with_the_mapping(runtime: Runtime, standin: StandIn) -> None:
    memory = Memory(8)
    for _ in range(3):
        runtime.map(memory.ptr, 4 * PAGE)
        move(runtime, memory.ptr + PAGE, PAGE, times=2)
        assert standin.registrations() == {(memory.ptr, 4 * PAGE)}
        runtime.unmap(memory.ptr)
        assert standin.registrations() == set()


def test_what_is_not_mapped_is_not_locked(runtime: Runtime, standin: StandIn) -> None:
    memory = Memory(8)
    move(runtime, memory.ptr, 4 * PAGE, times=5)
    assert standin.calls("cuMemHostRegister") == []


def test_a_mapping_that_replaces_two_ends_the_locks_of_both(runtime: Runtime, standin: StandIn) -> None:
    memory = Memory(8)
    halves = {(memory.ptr, 4 * PAGE), (memory.ptr + 4 * PAGE, 4 * PAGE)}
    for each in halves:
        runtime.map(*each)
        move(runtime, *each, times=2)
    assert standin.registrations() == halves
    runtime.map(memory.ptr, 8 * PAGE)  # so the others have ended unseen
    assert standin.registrations() == set()
    runtime.unmap(memory.ptr)


def test_a_transfer_that_crosses_a_lock_takes_it_away(runtime: Runtime, standin: StandIn) -> None:
    memory = Memory(8)
    runtime.map(memory.ptr, 4 * PAGE)
    move(runtime, memory.ptr, 4 * PAGE, times=2)
    with runtime.to_device(memory.ptr + 2 * PAGE, 4 * PAGE):
        assert standin.registrations() == set()
    with runtime.to_device(memory.ptr, 4 * PAGE):
        assert standin.registrations() == {(memory.ptr, 4 * PAGE)}
    runtime.unmap(memory.ptr)


def test_a_lock_stays_as_long_as_either_of_two_mappings(standin: StandIn) -> None:
    runtime, memory = RUNTIMES[True], Memory(8)
    runtime.map(memory.ptr, 4 * PAGE)
    runtime.map(memory.ptr, 4 * PAGE, device=1)
    move(runtime, memory.ptr, 4 * PAGE, times=2)
    runtime.unmap(memory.ptr)
    assert standin.registrations() == {(memory.ptr, 4 * PAGE)}
    runtime.unmap(memory.ptr, device=1)

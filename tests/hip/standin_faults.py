# SPDX-License-Identifier: Apache-2.0
"""Every call of the runtime failing at every point, and a process that the runtime does not work in.

A stand-in checks the ABI and the sequence of calls, not a real runtime's semantics.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from failing import UNKNOWN, Outcome, each_failure

from mapped_memory import PAGE, Memory
from pinning.errors import PluginUnavailableError, VendorError
from pinning_hip import HipDevice, plugin
from standins.standin import StandIn

DEVICE = plugin.device(0)


def expected(*calls: str) -> dict[str, tuple[str, int, str]]:
    """How the failures of these calls are to be raised."""
    return {call: (call, UNKNOWN, "hipErrorUnknown") for call in calls}


def raised(failed: list[tuple[str, Outcome]]) -> dict[str, tuple[str, int, str]]:
    """How the failures were raised, but for those of setting the device back and of forgetting an error."""
    assert {call for call, outcome in failed if not outcome} <= {"hipSetDevice", "hipGetLastError"}
    return {call: (outcome.call, outcome.code, outcome.name) for call, outcome in failed if outcome}


def test_a_lock_fails_without_a_trace(standin: StandIn) -> None:
    memory = Memory(1)
    failed = []
    for call, outcome in each_failure(standin, lambda: DEVICE.data_lock(memory.ptr, PAGE, None)):
        failed.append((call, outcome))
        assert standin.registrations() == (set() if outcome else {(memory.ptr, PAGE)})
        if not outcome:
            DEVICE.data_unlock(memory.ptr)
    DEVICE.data_unlock(memory.ptr)  # of the last round, in which nothing failed
    assert raised(failed) == expected(
        *("hipGetDevice", "hipSetDevice", "hipPointerGetAttribute", "hipHostRegister", "hipHostGetDevicePointer")
    )


def test_a_device_is_made_or_not(standin: StandIn) -> None:
    assert raised(list(each_failure(standin, lambda: HipDevice("hip:0", 0)))) == expected("hipDeviceGetName")


def test_an_unlock_that_fails_leaves_the_lock(standin: StandIn) -> None:
    memory = Memory(1)
    DEVICE.data_lock(memory.ptr, PAGE, False)
    failed = []
    for call, outcome in each_failure(standin, lambda: DEVICE.data_unlock(memory.ptr)):
        failed.append((call, outcome))
        assert standin.registrations() == ({(memory.ptr, PAGE)} if outcome else set())
        if not outcome:
            DEVICE.data_lock(memory.ptr, PAGE, False)
    assert raised(failed) == expected("hipGetDevice", "hipSetDevice", "hipHostUnregister")


def test_a_lock_that_cannot_be_undone_says_so(standin: StandIn) -> None:
    memory = Memory(1)
    standin.configure(f"fail=hipHostGetDevicePointer:1:{UNKNOWN};fail=hipHostUnregister:1:{UNKNOWN}")
    with pytest.raises(VendorError) as failure:
        DEVICE.data_lock(memory.ptr, PAGE, False)
    assert failure.value.call == "hipHostUnregister"
    assert standin.registrations() == {(memory.ptr, PAGE)}
    DEVICE.data_unlock(memory.ptr)


def test_a_query_passes_on_what_is_not_about_the_pointer(standin: StandIn) -> None:
    memory = Memory(1)
    DEVICE.data_lock(memory.ptr, PAGE, False)
    failed = list(each_failure(standin, lambda: DEVICE.is_pinned_ptr(memory.ptr + 1)))
    assert raised(failed) == expected(
        *("hipGetDevice", "hipSetDevice", "hipPointerGetAttribute"),
        *("hipMemGetAddressRange", "hipHostGetDevicePointer"),
    )
    DEVICE.data_unlock(memory.ptr)


def test_a_copy_passes_on_every_failure(standin: StandIn) -> None:
    memory = Memory(1)
    there = DEVICE.allocate(PAGE)
    failed = list(each_failure(standin, lambda: DEVICE.copy(there, memory.ptr, PAGE)))
    assert raised(failed) == expected("hipGetDevice", "hipSetDevice", "hipMemcpy")
    DEVICE.free(there)


def test_device_memory_that_cannot_be_had(standin: StandIn) -> None:
    standin.configure("fail=hipMalloc:1:2")
    with pytest.raises(VendorError, match=r"hipMalloc failed: hipErrorOutOfMemory \(2\)"):
        DEVICE.allocate(PAGE)


def test_a_code_that_hip_python_does_not_know(standin: StandIn) -> None:
    standin.configure("fail=hipRuntimeGetVersion:1:4242")
    with pytest.raises(VendorError) as failure:
        plugin.library()
    assert (failure.value.call, failure.value.code) == ("hipRuntimeGetVersion", 4242)
    assert "hip-python" in str(failure.value)


def test_a_fork_is_told_that_hip_does_not_work_in_it(standin: StandIn) -> None:
    memory = Memory(1)
    DEVICE.data_lock(memory.ptr, PAGE, False)
    attempts: list[Callable[[], object]] = [
        plugin.device_count,
        plugin.library,
        lambda: plugin.device(0),
        lambda: DEVICE.data_lock(memory.ptr + 64, 1, False),
        lambda: DEVICE.data_unlock(memory.ptr),
        lambda: DEVICE.is_pinned_ptr(memory.ptr),
        lambda: DEVICE.allocate(1),
    ]
    standin.configure()
    child = os.fork()
    if child == 0:
        refused = 0
        for attempt in attempts:
            try:
                attempt()
            except PluginUnavailableError as error:
                refused += "fork" in str(error) and "spawn" in str(error)
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == len(attempts)
    assert standin.calls() == []
    DEVICE.data_unlock(memory.ptr)

# SPDX-License-Identifier: Apache-2.0
"""Every call of the driver failing at every point, and a process that the driver does not work in.

A stand-in checks the ABI and the sequence of calls, not a real driver's semantics.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from failures import UNKNOWN, each_failure

from mapped_memory import PAGE, Memory
from pinning.errors import PluginUnavailableError, VendorError
from pinning_cuda import CudaDevice, plugin
from standins.standin import StandIn

DEVICE = plugin.device(0)


def test_a_lock_fails_without_a_trace(standin: StandIn) -> None:
    memory = Memory(1)
    failed = {}
    DEVICE.free(DEVICE.allocate(1))  # the first of all calls makes the context
    for call, outcome in each_failure(standin, lambda: DEVICE.data_lock(memory.ptr, PAGE, None)):
        failed[call] = outcome
        assert standin.registrations() == (set() if outcome else {(memory.ptr, PAGE)})
        if not outcome:
            DEVICE.data_unlock(memory.ptr)
    DEVICE.data_unlock(memory.ptr)  # of the last round, in which nothing failed
    names = {call: outcome and (outcome.call, outcome.code, outcome.name) for call, outcome in failed.items()}
    assert names.pop("cuCtxGetCurrent") is None  # the context is pushed then
    assert names.pop("cuCtxPopCurrent") is None  # it may report someone else's earlier failure
    assert names == {
        call: (call, UNKNOWN, "CUDA_ERROR_UNKNOWN")
        for call in ("cuCtxPushCurrent", "cuMemHostRegister", "cuMemHostGetDevicePointer")
    }


def test_a_device_is_made_or_not(standin: StandIn) -> None:
    failed = dict(each_failure(standin, lambda: CudaDevice("cuda:0", 0)))
    assert {call: outcome and outcome.call for call, outcome in failed.items()} == {
        call: call for call in ("cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute")
    }


def test_an_unlock_that_fails_leaves_the_lock(standin: StandIn) -> None:
    memory = Memory(1)
    DEVICE.data_lock(memory.ptr, PAGE, False)
    failed = {}
    for call, outcome in each_failure(standin, lambda: DEVICE.data_unlock(memory.ptr)):
        failed[call] = outcome
        assert standin.registrations() == ({(memory.ptr, PAGE)} if outcome else set())
        if not outcome:
            DEVICE.data_lock(memory.ptr, PAGE, False)
    assert {call for call, outcome in failed.items() if outcome} == {"cuCtxPushCurrent", "cuMemHostUnregister"}


def test_a_lock_that_cannot_be_undone_says_so(standin: StandIn) -> None:
    memory = Memory(1)
    standin.configure(f"fail=cuMemHostGetDevicePointer:1:{UNKNOWN};fail=cuMemHostUnregister:1:{UNKNOWN}")
    with pytest.raises(VendorError) as raised:
        DEVICE.data_lock(memory.ptr, PAGE, False)
    assert raised.value.call == "cuMemHostUnregister"
    assert standin.registrations() == {(memory.ptr, PAGE)}
    DEVICE.data_unlock(memory.ptr)


def test_a_query_passes_on_what_is_not_about_the_pointer(standin: StandIn) -> None:
    memory = Memory(1)
    DEVICE.data_lock(memory.ptr, PAGE, False)
    outcomes = list(each_failure(standin, lambda: DEVICE.is_pinned_ptr(memory.ptr + 1)))
    assert outcomes and all(outcome and outcome.code == UNKNOWN for _, outcome in outcomes)
    DEVICE.data_unlock(memory.ptr)


def test_a_copy_passes_on_every_failure(standin: StandIn) -> None:
    memory = Memory(1)
    there = DEVICE.allocate(PAGE)
    outcomes = dict(each_failure(standin, lambda: DEVICE.copy(there, memory.ptr, PAGE)))
    assert {call for call, outcome in outcomes.items() if outcome} == {
        *("cuCtxPushCurrent", "cuMemcpy", "cuStreamSynchronize")
    }
    DEVICE.free(there)


def test_device_memory_that_cannot_be_had(standin: StandIn) -> None:
    standin.configure("fail=cuMemAlloc:1:2")
    with pytest.raises(VendorError, match=r"cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        DEVICE.allocate(PAGE)


def test_a_fork_is_told_that_cuda_does_not_work_in_it(standin: StandIn) -> None:
    memory = Memory(1)
    DEVICE.data_lock(memory.ptr, PAGE, False)
    attempts: list[Callable[[], object]] = [
        plugin.device_count,
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

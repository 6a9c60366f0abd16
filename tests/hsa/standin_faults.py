# SPDX-License-Identifier: Apache-2.0
"""Every call of the runtime failing at every point, and a process that the runtime does not work in.

A stand-in checks the ABI and the sequence of calls, not a real runtime's semantics.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from failing import FAILURE, each_failure

from mapped_memory import PAGE, Memory
from pinning.errors import PluginUnavailableError, VendorError
from pinning_hsa import plugin
from standins.standin import StandIn

DEVICE = plugin.device(0)


PROGRAM = """
from pinning.errors import PinningError
from pinning_hsa import plugin
for _ in range(2):
    try:
        print(plugin.device(0).description)
    except PinningError as error:
        print(error)
"""


@pytest.mark.parametrize(
    "call",
    [
        *("hsa_init", "hsa_iterate_agents", "hsa_agent_get_info"),
        *("hsa_amd_agent_iterate_memory_pools", "hsa_amd_memory_pool_get_info"),
        "hsa_amd_agent_memory_pool_get_info",
    ],
)
def test_a_machine_that_cannot_be_asked_can_be_asked_again(standin: StandIn, call: str) -> None:
    environment = {**os.environ, "STANDIN_HSA": f"gpus=2;fail={call}:1:{FAILURE}"}
    child = [sys.executable, "-P", "-c", PROGRAM]
    done = subprocess.run(child, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    failed, asked_again = done.stdout.splitlines()
    assert f"{call} failed: HSA_STATUS_ERROR_OUT_OF_RESOURCES (4104)" in failed
    assert asked_again == "Stand-in 0 (gfx942)"


@pytest.mark.parametrize("coherent", [True, False])
def test_a_lock_fails_without_a_trace(standin: StandIn, coherent: bool) -> None:
    memory = Memory(1)
    failed = []
    for call, outcome in each_failure(standin, lambda: DEVICE.data_lock(memory.ptr, PAGE, None, coherent=coherent)):
        assert outcome and (outcome.call, outcome.code) == (call, FAILURE)
        assert standin.registrations() == set()
        assert DEVICE.is_pinned_ptr(memory.ptr) is None
        failed.append(call)
    DEVICE.data_unlock(memory.ptr)  # of the last round, in which nothing failed
    lock = "hsa_amd_memory_lock_to_pool" if coherent else "hsa_amd_memory_lock"
    assert failed == ["hsa_amd_pointer_info", "hsa_amd_pointer_info", lock]


def test_an_unlock_that_fails_leaves_the_lock(standin: StandIn) -> None:
    memory = Memory(1)
    device_ptr = DEVICE.data_lock(memory.ptr, PAGE, False)
    for call, outcome in each_failure(standin, lambda: DEVICE.data_unlock(memory.ptr)):
        assert call == "hsa_amd_memory_unlock"
        assert outcome and outcome.code == FAILURE
        assert standin.registrations() == {(memory.ptr, PAGE)}
        assert DEVICE.is_pinned_ptr(memory.ptr) == (memory.ptr, PAGE, device_ptr)
    assert standin.registrations() == set()


def test_a_query_passes_on_every_failure(standin: StandIn) -> None:
    memory = Memory(1)
    outcomes = list(each_failure(standin, lambda: DEVICE.is_pinned_ptr(memory.ptr)))
    assert [(call, outcome and outcome.code) for call, outcome in outcomes] == [("hsa_amd_pointer_info", FAILURE)]


@pytest.mark.parametrize("locked", [True, False])
def test_a_copy_passes_on_every_failure_but_that_of_giving_back_its_signal(standin: StandIn, locked: bool) -> None:
    memory = Memory(1)
    there = DEVICE.allocate(PAGE)
    if locked:
        DEVICE.data_lock(memory.ptr, PAGE, False)
    outcomes = list(each_failure(standin, lambda: DEVICE.copy(there, memory.ptr, PAGE)))
    if locked:
        assert {call for call, outcome in outcomes if outcome is None} == {"hsa_signal_destroy"}
        assert {call: outcome.code for call, outcome in outcomes if outcome} == {
            "hsa_amd_pointer_info": FAILURE,
            "hsa_signal_create": FAILURE,
            "hsa_amd_memory_async_copy": FAILURE,
            "hsa_signal_wait_scacquire": -1,
        }
        DEVICE.data_unlock(memory.ptr)
    else:
        assert {call for call, outcome in outcomes if outcome} == {"hsa_amd_pointer_info", "hsa_memory_copy"}
    DEVICE.free(there)


def test_a_status_that_the_runtime_has_no_name_for(standin: StandIn) -> None:
    standin.configure("fail=hsa_amd_memory_pool_allocate:1:77")
    with pytest.raises(VendorError, match=r"hsa_amd_memory_pool_allocate failed: unknown \(77\)"):
        DEVICE.allocate(PAGE)


def test_a_fork_is_told_that_hsa_does_not_work_in_it(standin: StandIn) -> None:
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
        lambda: DEVICE.copy(memory.ptr, memory.ptr, 1),
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

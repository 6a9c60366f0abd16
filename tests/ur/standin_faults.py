# SPDX-License-Identifier: Apache-2.0
"""Every call of the loader failing at every point, and a process that the loader does not work in.

A stand-in checks the ABI and the sequence of calls, not a real adapter's semantics.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from failing import DEVICE_LOST, each_failure

from mapped_memory import PAGE, Memory
from pinning.errors import PluginUnavailableError, VendorError
from pinning_ur import plugin
from pinning_ur.loader import SONAME
from standins.standin import StandIn

DEVICE = plugin.device(0)
REGISTER, UNREGISTER, INFO = "urUSMHostAllocRegisterExp", "urUSMHostAllocUnregisterExp", "urUSMGetMemAllocInfo"


def handles() -> int:
    """Contexts and queues that have not been given back."""
    count: int = ctypes.CDLL(SONAME).standin_handles()
    return count


PROGRAM = """
from pinning.errors import PluginUnavailableError
from pinning_ur import plugin
try:
    print(plugin.device_count(), *plugin.warnings())
except PluginUnavailableError as error:
    print(0, error)
"""


def test_an_adapter_that_fails_is_left_out_and_named(standin: StandIn, tmp_path: Path) -> None:
    found, log = [], tmp_path / "log"
    for n in count(1):
        log.write_text("")
        configuration = f"devices=2;opencl;log={log};fail=*:{n}:{DEVICE_LOST}"
        child = [sys.executable, "-P", "-c", PROGRAM]
        done = subprocess.run(child, env={**os.environ, "STANDIN_UR": configuration}, capture_output=True, text=True)
        devices, _, said = done.stdout.strip().partition(" ")
        found.append(int(devices))
        calls = log.read_text().splitlines()
        if n > len(calls):
            assert said == ""
            break
        assert f"{calls[n - 1].split()[0]} failed: UR_RESULT_ERROR_DEVICE_LOST (20)" in said
    # The start and the list of adapters, what Level Zero is asked, which has two devices, what OpenCL is asked.
    assert found == [0] * 3 + [1] * 5 + [2] * 5 + [3]


def test_a_lock_fails_without_a_trace(standin: StandIn) -> None:
    memory, before = Memory(3), handles()
    lock = lambda: DEVICE.data_lock(memory.ptr + 8, PAGE, None)  # noqa: E731
    # At first there is no context yet; it is made once.
    for calls in (["urContextCreate", INFO, REGISTER], [INFO, INFO, REGISTER]):
        failed = []
        for call, outcome in each_failure(standin, lock):
            failed.append(call)
            assert outcome
            assert (outcome.call, outcome.code, outcome.name) == (call, DEVICE_LOST, "UR_RESULT_ERROR_DEVICE_LOST")
            assert standin.registrations() == set()
            assert handles() == before + (call != "urContextCreate")
        assert failed == calls
        DEVICE.data_unlock(memory.ptr + 8)


def test_an_unlock_that_fails_leaves_the_lock(standin: StandIn) -> None:
    memory = Memory(1)
    DEVICE.data_lock(memory.ptr, PAGE, False)
    failed = []
    for call, outcome in each_failure(standin, lambda: DEVICE.data_unlock(memory.ptr)):
        failed.append(call)
        assert outcome
        assert standin.registrations() == {(memory.ptr, PAGE)}
        assert DEVICE.is_pinned_ptr(memory.ptr) == (memory.ptr, PAGE, memory.ptr)
    assert failed == [UNREGISTER]


def test_an_unlock_beside_a_neighbour_fails_without_a_trace(standin: StandIn) -> None:
    memory = Memory(4)
    DEVICE.data_lock(memory.ptr, 3 * PAGE + 8, False)
    DEVICE.data_lock(memory.ptr + 3 * PAGE + 8, 8, False)
    failed = []
    for call, outcome in each_failure(standin, lambda: DEVICE.data_unlock(memory.ptr)):
        failed.append(call)
        assert outcome
        assert standin.registrations() == {(memory.ptr, 4 * PAGE)}
    assert failed == [UNREGISTER, REGISTER]
    assert standin.registrations() == {(memory.ptr + 3 * PAGE, PAGE)}
    DEVICE.data_unlock(memory.ptr + 3 * PAGE + 8)


def test_an_unlock_that_cannot_be_undone_can_be_repeated(standin: StandIn) -> None:
    memory = Memory(2)
    DEVICE.data_lock(memory.ptr, PAGE + 8, False)
    DEVICE.data_lock(memory.ptr + PAGE + 8, 8, False)
    standin.configure(f"fail={REGISTER}:1:{DEVICE_LOST};fail={REGISTER}:2:{DEVICE_LOST}")
    with pytest.raises(VendorError, match=REGISTER):
        DEVICE.data_unlock(memory.ptr)
    assert standin.registrations() == set()
    DEVICE.data_unlock(memory.ptr)
    DEVICE.data_unlock(memory.ptr + PAGE + 8)


def test_a_lock_in_two_parts_fails_without_a_trace(standin: StandIn) -> None:
    memory = Memory(3)
    DEVICE.data_lock(memory.ptr + PAGE, 8, False)
    before = {(memory.ptr + PAGE, PAGE)}
    failed = []
    for call, outcome in each_failure(standin, lambda: DEVICE.data_lock(memory.ptr, 3 * PAGE, False)):
        failed.append(call)
        assert outcome
        assert standin.registrations() == before
    assert failed == [INFO, INFO, REGISTER, REGISTER]
    DEVICE.data_unlock(memory.ptr)
    assert standin.registrations() == before
    DEVICE.data_unlock(memory.ptr + PAGE)


def test_a_query_passes_on_every_failure(standin: StandIn) -> None:
    outcomes = list(each_failure(standin, lambda: DEVICE.is_pinned_ptr(Memory(1).ptr)))
    assert [call for call, _ in outcomes] == [INFO]
    assert all(outcome for _, outcome in outcomes)


def test_a_copy_fails_without_a_trace(standin: StandIn) -> None:
    memory, there, before = Memory(1), DEVICE.allocate(PAGE), handles()
    failed = []
    for call, outcome in each_failure(standin, lambda: DEVICE.copy(there, memory.ptr, PAGE)):
        failed.append(call)
        assert outcome
        assert handles() == before + (call != "urQueueCreate")
    assert failed == ["urQueueCreate", "urEnqueueUSMMemcpy"]
    DEVICE.free(there)


def test_device_memory_that_cannot_be_had(standin: StandIn) -> None:
    with pytest.raises(VendorError, match=r"urUSMDeviceAlloc failed: UR_RESULT_ERROR_INVALID_USM_SIZE \(64\)"):
        DEVICE.allocate(1 << 60)


def test_a_fork_is_told_that_the_loader_does_not_work_in_it(standin: StandIn) -> None:
    memory = Memory(1)
    DEVICE.data_lock(memory.ptr, PAGE, False)
    attempts: list[Callable[[], object]] = [
        plugin.device_count,
        plugin.library,
        plugin.warnings,
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

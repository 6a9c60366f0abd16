# SPDX-License-Identifier: Apache-2.0
"""Failures specific to this loader; the conformance suite tests those common to all drivers."""

from __future__ import annotations

import ctypes
import os
from itertools import count
from pathlib import Path

import pytest

from mapped_memory import PAGE, Memory
from own_process import run
from pinning.conformance.faults import each_failure
from pinning.errors import VendorError
from pinning_ur import SONAME, plugin
from standins.libur import FAULTS
from standins.standin import StandIn

DEVICE = plugin.device(0)
DEVICE_LOST, _ = FAULTS.failure
REGISTER, UNREGISTER, INFO = "urUSMHostAllocRegisterExp", "urUSMHostAllocUnregisterExp", "urUSMGetMemAllocInfo"


def handles() -> int:
    """The number of contexts and queues that have not been released."""
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
        devices, _, said = run(PROGRAM, {**os.environ, "STANDIN_UR": configuration}).strip().partition(" ")
        found.append(int(devices))
        calls = log.read_text().splitlines()
        if n > len(calls):
            assert said == ""
            break
        assert f"{calls[n - 1].split()[0]} failed: UR_RESULT_ERROR_DEVICE_LOST (20)" in said
    # Failing call: the start and the list of adapters; those to Level Zero, which has two devices; those to OpenCL.
    assert found == [0] * 3 + [1] * 5 + [2] * 5 + [3]


def test_the_first_lock_makes_the_context_once(standin: StandIn) -> None:
    memory, before = Memory(3), handles()

    def unlock() -> None:
        DEVICE.data_unlock(memory.ptr + 8)

    for calls in (["urContextCreate", INFO, REGISTER], [INFO, INFO, REGISTER]):
        failed = []
        for call, _ in each_failure(FAULTS, lambda: DEVICE.data_lock(memory.ptr + 8, PAGE, None), unlock):
            failed.append(call)
            assert handles() == before + (call != "urContextCreate")
        assert failed == calls


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


def test_an_unlock_that_is_refused_registers_nothing_anew(standin: StandIn) -> None:
    memory = Memory(1)
    DEVICE.data_lock(memory.ptr, PAGE, False)
    standin.configure(f"fail={UNREGISTER}:1:{DEVICE_LOST}")
    with pytest.raises(VendorError, match=UNREGISTER):
        DEVICE.data_unlock(memory.ptr)
    assert standin.calls(REGISTER) == [], "the memory is still registered"
    DEVICE.data_unlock(memory.ptr)
    assert standin.registrations() == set()


def test_a_lock_in_two_parts_fails_without_a_trace(standin: StandIn) -> None:
    memory = Memory(3)
    DEVICE.data_lock(memory.ptr + PAGE, 8, False)
    before = {(memory.ptr + PAGE, PAGE)}

    def unlock() -> None:
        DEVICE.data_unlock(memory.ptr)

    failed = []
    for call, _ in each_failure(FAULTS, lambda: DEVICE.data_lock(memory.ptr, 3 * PAGE, False), unlock):
        failed.append(call)
        assert standin.registrations() == before
    assert failed == [INFO, INFO, REGISTER, REGISTER]
    assert standin.registrations() == before
    DEVICE.data_unlock(memory.ptr + PAGE)


def test_the_first_copy_makes_the_queue_once(standin: StandIn) -> None:
    memory, there, before = Memory(1), DEVICE.allocate(PAGE), handles()
    failed = []
    for call, _ in each_failure(FAULTS, lambda: DEVICE.copy(there, memory.ptr, PAGE)):
        failed.append(call)
        assert handles() == before + (call != "urQueueCreate")
    assert failed == ["urQueueCreate", "urEnqueueUSMMemcpy"]
    DEVICE.free(there)

# SPDX-License-Identifier: Apache-2.0
"""Device memory, and copies to it and from it."""

from __future__ import annotations

import ctypes
import os
import signal

import pytest

from fake_device import Background
from mapped_memory import PAGE, Memory
from pinning.errors import VendorError
from pinning_hsa import plugin
from standins.standin import StandIn

DEVICE = plugin.device(1)
CPU_AGENT, GPU_AGENT = "0xc0", "0xd1"  # the stand-in's handles


@pytest.mark.parametrize("configuration", ["", "svm"], ids=["userptr", "svm"])
@pytest.mark.parametrize("locked", [False, True])
def test_bytes_go_to_the_device_and_come_back(standin: StandIn, locked: bool, configuration: str) -> None:
    standin.configure(configuration)
    source, target = Memory(2), Memory(2)
    data = bytes(range(256)) * (PAGE // 256)
    ctypes.memmove(source.ptr + 99, data, PAGE)
    if locked:
        DEVICE.data_lock(source.ptr, 2 * PAGE, False)
        DEVICE.data_lock(target.ptr + 5, PAGE, False)
    there = DEVICE.allocate(PAGE)
    DEVICE.copy(there, source.ptr + 99, PAGE)
    DEVICE.copy(target.ptr + 5, there, PAGE)
    assert ctypes.string_at(target.ptr + 5, PAGE) == data
    DEVICE.free(there)
    copies = standin.calls("hsa_amd_memory_async_copy")
    assert len(copies) == (2 if locked else 0)
    assert len(standin.calls("hsa_memory_copy")) == (0 if locked else 2)
    if locked:
        agents = [call.split()[2:5:2] for call in copies]
        assert agents == [[GPU_AGENT, CPU_AGENT], [CPU_AGENT, GPU_AGENT]]
        DEVICE.data_unlock(source.ptr)
        DEVICE.data_unlock(target.ptr + 5)


def test_a_copy_across_the_border_of_a_lock_is_left_to_the_runtime(standin: StandIn) -> None:
    memory = Memory(2)
    there = DEVICE.allocate(2 * PAGE)
    DEVICE.data_lock(memory.ptr, PAGE, False)
    DEVICE.copy(there, memory.ptr, 2 * PAGE)
    assert standin.calls("hsa_amd_memory_async_copy") == []
    DEVICE.data_unlock(memory.ptr)
    DEVICE.free(there)


def test_a_copy_that_fails_under_way_says_so(standin: StandIn) -> None:
    memory = Memory(1)
    DEVICE.data_lock(memory.ptr, PAGE, False)
    there = DEVICE.allocate(PAGE)
    standin.configure("failing_copy")
    with pytest.raises(VendorError, match="signal is negative") as raised:
        DEVICE.copy(there, memory.ptr, PAGE)
    assert (raised.value.call, raised.value.code) == ("hsa_amd_memory_async_copy", -1)
    assert len(standin.calls("hsa_signal_destroy")) == 1
    DEVICE.free(there)
    DEVICE.data_unlock(memory.ptr)


def test_ctrl_c_during_a_copy_waits_for_the_gpu(standin: StandIn) -> None:
    memory = Memory(1)
    DEVICE.data_lock(memory.ptr, PAGE, False)
    there = DEVICE.allocate(PAGE)
    standin.configure("slow_copy;delay=hsa_amd_memory_async_copy:300")

    def interrupt() -> None:
        standin.wait_for("hsa_amd_memory_async_copy")
        os.kill(os.getpid(), signal.SIGINT)
        standin.wait_for("hsa_signal_wait_scacquire")  # the copy is in progress, and is being waited for
        ended.append("wait")
        standin.configure()

    ended: list[str] = []
    interrupting = Background(interrupt)
    with pytest.raises(KeyboardInterrupt):
        DEVICE.copy(there, memory.ptr, PAGE)
    interrupting.result()
    assert ended == ["wait"]
    DEVICE.free(there)
    DEVICE.data_unlock(memory.ptr)

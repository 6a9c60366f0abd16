# SPDX-License-Identifier: Apache-2.0
"""The plugin and its devices: names, limits, the thread's current device, and copies through the device."""

from __future__ import annotations

import pytest
from hip import hip

from fake_device import Background
from mapped_memory import PAGE, Memory
from pinning.errors import VendorError
from pinning_hip import plugin
from standins.standin import StandIn

DEVICE = plugin.device(0)


def test_slow_pageable_copies_are_said_with_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_PINNED_MIN_XFER_SIZE", raising=False)
    assert plugin.warnings() == []
    monkeypatch.setattr(type(DEVICE), "description", "AMD Instinct MI355X")
    (said,) = plugin.warnings()
    assert "hip:0, hip:1" in said and "set GPU_PINNED_MIN_XFER_SIZE=4096" in said
    monkeypatch.setenv("GPU_PINNED_MIN_XFER_SIZE", "64")
    assert plugin.warnings() == []


@pytest.mark.parametrize("index", [0, 3])
def test_the_current_device_of_the_thread_is_left(standin: StandIn, index: int) -> None:
    device, memory = plugin.device(index), Memory(1)
    hip.hipSetDevice(2)
    there = device.allocate(PAGE)
    for act in (
        lambda: device.data_lock(memory.ptr, PAGE, False),
        lambda: device.is_pinned_ptr(memory.ptr),
        lambda: device.copy(there, memory.ptr, PAGE),
        lambda: device.data_unlock(memory.ptr),
        lambda: device.free(there),
    ):
        standin.configure()
        act()
        sets = standin.calls("hipSetDevice")
        assert sets[0] == f"hipSetDevice {index}"
        assert sets[-1] == "hipSetDevice 2"
        assert hip.hipGetDevice()[1] == 2
    with pytest.raises(VendorError):
        device.data_unlock(memory.ptr)
    assert hip.hipGetDevice()[1] == 2
    hip.hipSetDevice(0)


def test_threads_have_their_own_current_device(standin: StandIn) -> None:
    memory = Memory(1)

    def work() -> object:
        plugin.device(3).data_lock(memory.ptr, PAGE, False)
        device = hip.hipGetDevice()[1]
        plugin.device(3).data_unlock(memory.ptr)
        return device

    hip.hipSetDevice(1)
    assert Background(work).result() == 0
    assert hip.hipGetDevice()[1] == 1
    hip.hipSetDevice(0)

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


def test_a_device_that_cannot_be_made_current(standin: StandIn) -> None:
    memory = Memory(1)
    hip.hipSetDevice(1)
    standin.configure("fail=hipSetDevice:1:999")
    with pytest.raises(VendorError, match="hipSetDevice failed: hipErrorUnknown"):
        DEVICE.data_lock(memory.ptr, PAGE, False)
    assert standin.registrations() == set()
    hip.hipSetDevice(0)


def test_a_code_that_is_unknown(standin: StandIn) -> None:
    standin.configure("fail=hipRuntimeGetVersion:1:4242")
    with pytest.raises(VendorError) as failure:
        plugin.library()
    assert (failure.value.call, failure.value.code) == ("hipRuntimeGetVersion", 4242)

# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory, what the runtime knows about a pointer, and connections between GPUs."""

from __future__ import annotations

import pytest
from hip import hip

from pinning.plugin import MemoryConnection
from pinning_hip import plugin
from standins.standin import StandIn

GPU = plugin.device(0)


@pytest.mark.parametrize("call", ["hipPointerGetAttribute:1", "hipPointerGetAttribute:2", "hipPointerGetAttribute:4"])
def test_memory_that_goes_while_it_is_asked_about_is_unknown(standin: StandIn, call: str) -> None:
    ptr = GPU.allocate(100)
    standin.configure(f"fail={call}:17")
    assert GPU.memory_info(ptr) is None
    standin.configure()
    GPU.free(ptr)


# ---- connections ----


def test_access_of_another_gpu_is_enabled_for_it(standin: StandIn) -> None:
    owner, user = plugin.device(2), plugin.device(3)
    hip.hipSetDevice(1)
    standin.configure()
    assert owner.connection(user) is MemoryConnection.UNIFIED
    assert standin.calls("hipDeviceCanAccessPeer") == ["hipDeviceCanAccessPeer 3 2"]
    assert standin.calls("hipSetDevice") == ["hipSetDevice 3", "hipSetDevice 1"]
    assert standin.calls("hipDeviceEnablePeerAccess") == ["hipDeviceEnablePeerAccess 2 0"]
    assert owner.connection(user) is MemoryConnection.UNIFIED  # already enabled, by us or another library
    hip.hipSetDevice(0)

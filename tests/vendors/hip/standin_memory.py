# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory, what the runtime knows of a pointer, and connections between GPUs.

A stand-in checks the ABI and the sequence of calls, not a real runtime's semantics.
"""

from __future__ import annotations

import pytest
from hip import hip

from pinning.errors import VendorError
from pinning.plugin import MemoryConnection, MemoryKind
from pinning_hip import HipDevice, plugin
from standins.standin import StandIn

HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED
GPU = plugin.device(0)
OTHER = plugin.device(1)


def test_a_gpu_without_managed_memory_has_no_shared_memory(standin: StandIn) -> None:
    standin.configure("no_managed")
    gpu = HipDevice("hip:0")
    assert gpu.memory_kinds == {HOST, DEVICE}
    with pytest.raises(VendorError, match="hipErrorNotSupported"):
        gpu.allocate(8, SHARED)


@pytest.mark.parametrize("call", ["hipPointerGetAttribute:1", "hipPointerGetAttribute:2", "hipPointerGetAttribute:4"])
def test_memory_that_goes_while_it_is_asked_about_is_unknown(standin: StandIn, call: str) -> None:
    ptr = GPU.allocate(100)
    standin.configure(f"fail={call}:17")
    assert GPU.memory_info(ptr) is None
    standin.configure()
    GPU.free(ptr)


# ---- connections ----


def test_a_gpu_uses_its_own_memory(standin: StandIn) -> None:
    standin.configure()
    assert GPU.connection(HipDevice("hip:0")) is MemoryConnection.UNIFIED
    assert standin.calls("hipDeviceCanAccessPeer") == standin.calls("hipDeviceEnablePeerAccess") == []


def test_access_of_another_gpu_is_enabled_for_it(standin: StandIn) -> None:
    owner, user = plugin.device(2), plugin.device(3)
    hip.hipSetDevice(1)
    standin.configure()
    assert owner.connection(user) is MemoryConnection.UNIFIED
    assert standin.calls("hipDeviceCanAccessPeer") == ["hipDeviceCanAccessPeer 3 2"]
    assert standin.calls("hipSetDevice") == ["hipSetDevice 3", "hipSetDevice 1"]
    assert standin.calls("hipDeviceEnablePeerAccess") == ["hipDeviceEnablePeerAccess 2 0"]
    assert owner.connection(user) is MemoryConnection.UNIFIED  # enabled already, by us or another
    hip.hipSetDevice(0)


def test_gpus_that_do_not_reach_one_another_copy(standin: StandIn) -> None:
    standin.configure("no_peers")
    assert GPU.connection(OTHER) is MemoryConnection.MIGRATABLE
    assert standin.calls("hipDeviceEnablePeerAccess") == []


# ---- no device any more ----

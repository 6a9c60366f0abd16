# SPDX-License-Identifier: Apache-2.0
"""GPUs without access to each other's memory. The process starts in this configuration: access is queried only once."""

from __future__ import annotations

from mapped_memory import PAGE
from pinning.plugin import MemoryConnection
from pinning_hsa import plugin
from standins.standin import StandIn

GPU = plugin.device(0)
OTHER = plugin.device(1)


def test_a_gpu_uses_its_own_memory_alone(standin: StandIn) -> None:
    standin.configure("no_peers")
    assert GPU.connection(GPU) is MemoryConnection.UNIFIED
    assert GPU.connection(OTHER) is MemoryConnection.NONE


def test_copies_between_them_go_through_the_host(standin: StandIn) -> None:
    standin.configure("no_peers")
    here, there = GPU.allocate(PAGE), OTHER.allocate(PAGE)
    GPU.copy(there, here, PAGE)
    assert standin.calls("hsa_amd_agents_allow_access") == []
    assert standin.calls("hsa_amd_memory_async_copy") == []
    assert len(standin.calls("hsa_memory_copy")) == 1
    GPU.free(here)
    OTHER.free(there)

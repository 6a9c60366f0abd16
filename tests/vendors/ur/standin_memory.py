# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory, what a context knows about a pointer, and connections between devices."""

from __future__ import annotations

from pinning.plugin import MemoryConnection, MemoryInfo, MemoryKind
from pinning_ur import UrPlugin, plugin
from standins.standin import StandIn

HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED
FIRST, SECOND, OPENCL = (plugin.device(index) for index in range(3))


def test_a_device_without_shared_memory(standin: StandIn) -> None:
    standin.configure("no_shared")
    assert UrPlugin().device(0).memory_kinds == {HOST, DEVICE}


def test_devices_of_other_platforms_are_counted_on(standin: StandIn) -> None:
    ptr = OPENCL.allocate(10)
    assert OPENCL.memory_info(ptr) == MemoryInfo(DEVICE, ptr, 10, 2)
    OPENCL.free(ptr)


# ---- connections ----


def test_access_of_another_device_is_enabled_for_it(standin: StandIn) -> None:
    for _ in range(2):  # the second time it is already enabled, by us or another library
        assert FIRST.connection(SECOND) is MemoryConnection.UNIFIED
    enabled = standin.calls("urUsmP2PEnablePeerAccessExp")[0].split()[1:]
    assert [int(handle, 16) for handle in enabled] == [SECOND.handle, FIRST.handle]


def test_devices_that_do_not_reach_one_another_go_through_the_host(standin: StandIn) -> None:
    standin.configure("no_peers")
    assert SECOND.connection(FIRST) is MemoryConnection.NONE
    standin.configure("fail=urUsmP2PPeerAccessGetInfoExp:1:44")
    assert SECOND.connection(FIRST) is MemoryConnection.NONE
    assert standin.calls("urUsmP2PEnablePeerAccessExp") == []


def test_devices_of_other_platforms_and_vendors_are_not_connected(standin: StandIn) -> None:
    from pinning_host import plugin as host

    assert FIRST.connection(OPENCL) is MemoryConnection.NONE
    assert FIRST.connection(host.device(0)) is MemoryConnection.NONE

# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory, connections between devices, and locks of memory that another library has pinned."""

from __future__ import annotations

import pytest
from usm import host_memory, registered, shared_memory

from mapped_memory import PAGE, Memory
from pinning.errors import AlreadyPinnedError, InvalidRangeError
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


# ---- what is pinned ----


def test_the_largest_lock_around_an_address_is_told(standin: StandIn) -> None:
    memory = Memory(2)
    FIRST.data_lock(memory.ptr, PAGE, None)
    FIRST.data_lock(memory.ptr, 2 * PAGE, None)
    assert FIRST.is_pinned_ptr(memory.ptr + 1) == (memory.ptr, 2 * PAGE, memory.ptr)
    FIRST.data_unlock(memory.ptr)
    assert FIRST.is_pinned_ptr(memory.ptr + 1) == (memory.ptr, 2 * PAGE, memory.ptr)
    FIRST.data_unlock(memory.ptr)


def test_memory_that_someone_else_pinned_is_not_locked_again(standin: StandIn) -> None:
    memory = Memory(4)
    with registered(FIRST, memory.ptr + PAGE, 2 * PAGE):
        for first, size in ((1, 1), (1, 2), (0, 2), (2, 2)):
            with pytest.raises(AlreadyPinnedError):
                FIRST.data_lock(memory.ptr + first * PAGE, size * PAGE, None)
        assert FIRST.is_pinned_ptr(memory.ptr + PAGE + 5) == (memory.ptr + PAGE, 2 * PAGE, memory.ptr + PAGE)
        assert standin.registrations() == {(memory.ptr + PAGE, 2 * PAGE)}


def test_memory_pinned_in_the_middle_of_a_range(standin: StandIn) -> None:
    memory = Memory(3)
    with (
        registered(FIRST, memory.ptr + PAGE, PAGE),
        pytest.raises(AlreadyPinnedError, match=r"urUSMHostAllocRegisterExp.*OVERLAPPING"),
    ):
        FIRST.data_lock(memory.ptr, 3 * PAGE, None)


def test_an_import_does_not_take_what_someone_else_pinned(standin: StandIn) -> None:
    with host_memory(FIRST, PAGE) as ptr:
        standin.configure("no_register")
        with pytest.raises(AlreadyPinnedError):
            FIRST.data_lock(ptr, PAGE, None)
        assert standin.calls("urUSMImportExp") == standin.calls("urUSMReleaseExp") == []


def test_device_memory_and_shared_memory_cannot_be_locked(standin: StandIn) -> None:
    there = FIRST.allocate(PAGE)
    with pytest.raises(InvalidRangeError, match=f"{there:#x}.*ur:0.*device memory"):
        FIRST.data_lock(there, PAGE, None)
    FIRST.free(there)
    with shared_memory(FIRST, PAGE) as ptr, pytest.raises(InvalidRangeError, match="shared with a device"):
        FIRST.data_lock(ptr, PAGE, None)
    assert standin.calls("urUSMHostAllocRegisterExp") == []


def test_devices_of_one_platform_lock_the_same_memory(standin: StandIn) -> None:
    memory = Memory(1)
    for device in (FIRST, SECOND):
        device.data_lock(memory.ptr, PAGE, None)
    assert len(standin.calls("urUSMHostAllocRegisterExp")) == 1
    FIRST.data_unlock(memory.ptr)
    assert FIRST.is_pinned_ptr(memory.ptr) is None
    assert SECOND.is_pinned_ptr(memory.ptr) == (memory.ptr, PAGE, memory.ptr)
    assert standin.registrations() == {(memory.ptr, PAGE)}
    SECOND.data_unlock(memory.ptr)

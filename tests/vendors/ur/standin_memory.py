# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory, what a context knows of a pointer, and connections between devices.

A stand-in checks the ABI and the sequence of calls, not a real adapter's semantics.
"""

from __future__ import annotations

import pytest

from mapped_memory import Memory
from pinning.errors import VendorError
from pinning.plugin import MemoryConnection, MemoryInfo, MemoryKind
from pinning_ur import UrPlugin, plugin
from standins.libur import FAULTS, live
from standins.standin import StandIn

DEVICE_LOST, _ = FAULTS.failure
HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED
FIRST, SECOND, OPENCL = (plugin.device(index) for index in range(3))

ALLOCATES = {HOST: "urUSMHostAlloc", DEVICE: "urUSMDeviceAlloc", SHARED: "urUSMSharedAlloc"}


@pytest.fixture(params=MemoryKind, ids=lambda kind: kind.value)
def kind(request: pytest.FixtureRequest) -> MemoryKind:
    return request.param  # type: ignore[no-any-return]


def test_a_device_without_shared_memory(standin: StandIn) -> None:
    standin.configure("no_shared")
    assert UrPlugin().device(0).memory_kinds == {HOST, DEVICE}


def test_each_kind_is_allocated_exactly_and_given_back(standin: StandIn, kind: MemoryKind) -> None:
    ptr = SECOND.allocate(1000, kind)
    (allocated,) = standin.calls(ALLOCATES[kind])
    assert allocated.endswith(" 1000")
    assert live()["allocations"] == 1
    info = MemoryInfo(kind, ptr, 1000, None if kind is HOST else 1)
    assert [FIRST.memory_info(ptr + at) for at in (0, 1, 999)] == [info] * 3  # whichever device of the platform
    assert FIRST.memory_info(ptr + 1000) is None
    assert FIRST.is_pinned_ptr(ptr + 999) == ((ptr, 1000, ptr) if kind is HOST else None)
    SECOND.free(ptr, kind)
    assert live()["allocations"] == 0
    assert FIRST.memory_info(ptr) is None


def test_devices_of_other_platforms_are_counted_on(standin: StandIn) -> None:
    ptr = OPENCL.allocate(10)
    assert OPENCL.memory_info(ptr) == MemoryInfo(DEVICE, ptr, 10, 2)
    OPENCL.free(ptr)


def test_a_lock_is_told_by_its_bytes_and_not_by_its_pages(standin: StandIn) -> None:
    memory = Memory(1)
    FIRST.data_lock(memory.ptr + 10, 100, False)
    assert FIRST.memory_info(memory.ptr + 109) == MemoryInfo(HOST, memory.ptr + 10, 100, None)
    assert FIRST.memory_info(memory.ptr + 110) is None
    FIRST.data_unlock(memory.ptr + 10)


def test_nothing_can_be_allocated(standin: StandIn, kind: MemoryKind) -> None:
    with pytest.raises(VendorError, match=r"UR_RESULT_ERROR_INVALID_USM_SIZE \(64\)"):
        FIRST.allocate(0, kind)


# ---- connections ----


def test_a_device_uses_its_own_memory(standin: StandIn) -> None:
    assert FIRST.connection(FIRST) is MemoryConnection.UNIFIED
    assert standin.calls("urUsmP2PEnablePeerAccessExp") == []


def test_access_of_another_device_is_enabled_for_it(standin: StandIn) -> None:
    for _ in range(2):  # the second time it is enabled already, by us or another
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


# ---- no device any more ----


def test_a_lost_device_says_so_and_still_answers_questions(standin: StandIn) -> None:
    ptr = FIRST.allocate(100)
    standin.configure(f"lost=urUSMDeviceAlloc:1:{DEVICE_LOST}")
    for act in (lambda: FIRST.allocate(8), lambda: FIRST.allocate(8, HOST), lambda: FIRST.free(ptr), FIRST.make_queue):
        with pytest.raises(VendorError, match="UR_RESULT_ERROR_DEVICE_LOST"):
            act()
    assert FIRST.memory_info(ptr) == MemoryInfo(DEVICE, ptr, 100, 0)
    standin.configure()
    FIRST.free(ptr)

# SPDX-License-Identifier: Apache-2.0
"""The answers of `is_pinned_ptr`, and locks of memory that another library has pinned."""

from __future__ import annotations

import pytest
from usm import host_memory, registered, shared_memory

from mapped_memory import PAGE, Memory
from pinning.errors import AlreadyPinnedError, InvalidRangeError
from pinning_ur import plugin
from standins.standin import StandIn

DEVICE, OTHER = plugin.device(0), plugin.device(1)


def test_the_largest_lock_around_an_address_is_told(standin: StandIn) -> None:
    memory = Memory(2)
    DEVICE.data_lock(memory.ptr, PAGE, None)
    DEVICE.data_lock(memory.ptr, 2 * PAGE, None)
    assert DEVICE.is_pinned_ptr(memory.ptr + 1) == (memory.ptr, 2 * PAGE, memory.ptr)
    DEVICE.data_unlock(memory.ptr)
    assert DEVICE.is_pinned_ptr(memory.ptr + 1) == (memory.ptr, 2 * PAGE, memory.ptr)
    DEVICE.data_unlock(memory.ptr)


def test_memory_that_someone_else_pinned_is_not_locked_again(standin: StandIn) -> None:
    memory = Memory(4)
    with registered(DEVICE, memory.ptr + PAGE, 2 * PAGE):
        for first, size in ((1, 1), (1, 2), (0, 2), (2, 2)):
            with pytest.raises(AlreadyPinnedError):
                DEVICE.data_lock(memory.ptr + first * PAGE, size * PAGE, None)
        assert DEVICE.is_pinned_ptr(memory.ptr + PAGE + 5) == (memory.ptr + PAGE, 2 * PAGE, memory.ptr + PAGE)
        assert standin.registrations() == {(memory.ptr + PAGE, 2 * PAGE)}


def test_memory_pinned_in_the_middle_of_a_range(standin: StandIn) -> None:
    memory = Memory(3)
    with (
        registered(DEVICE, memory.ptr + PAGE, PAGE),
        pytest.raises(AlreadyPinnedError, match=r"urUSMHostAllocRegisterExp.*OVERLAPPING"),
    ):
        DEVICE.data_lock(memory.ptr, 3 * PAGE, None)


def test_an_import_does_not_take_what_someone_else_pinned(standin: StandIn) -> None:
    with host_memory(DEVICE, PAGE) as ptr:
        standin.configure("no_register")
        with pytest.raises(AlreadyPinnedError):
            DEVICE.data_lock(ptr, PAGE, None)
        assert standin.calls("urUSMImportExp") == standin.calls("urUSMReleaseExp") == []


def test_device_memory_and_shared_memory_cannot_be_locked(standin: StandIn) -> None:
    there = DEVICE.allocate(PAGE)
    with pytest.raises(InvalidRangeError, match=f"{there:#x}.*ur:0.*device memory"):
        DEVICE.data_lock(there, PAGE, None)
    DEVICE.free(there)
    with shared_memory(DEVICE, PAGE) as ptr, pytest.raises(InvalidRangeError, match="shared with a device"):
        DEVICE.data_lock(ptr, PAGE, None)
    assert standin.calls("urUSMHostAllocRegisterExp") == []


def test_devices_of_one_platform_lock_the_same_memory(standin: StandIn) -> None:
    memory = Memory(1)
    for device in (DEVICE, OTHER):
        device.data_lock(memory.ptr, PAGE, None)
    assert len(standin.calls("urUSMHostAllocRegisterExp")) == 1
    DEVICE.data_unlock(memory.ptr)
    assert DEVICE.is_pinned_ptr(memory.ptr) is None
    assert OTHER.is_pinned_ptr(memory.ptr) == (memory.ptr, PAGE, memory.ptr)
    assert standin.registrations() == {(memory.ptr, PAGE)}
    OTHER.data_unlock(memory.ptr)

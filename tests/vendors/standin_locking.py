# SPDX-License-Identifier: Apache-2.0
"""Locking and unlocking, and whose lock it is: tests for several vendors."""

from __future__ import annotations

from typing import Any

import pytest

from mapped_memory import PAGE, Memory
from pinning.errors import AlreadyPinnedError, NotLockedError, VendorError
from standins.cases import only
from standins.standin import StandIn
from standins.vendors import Vendor, this_vendor


@only("cuda", "hip", "hsa")
def test_a_lock_registers_exactly_its_bytes_and_gives_their_device_address(
    standin: StandIn, vendor: Vendor, gpu: Any
) -> None:
    memory = Memory(2)
    assert gpu.data_lock(memory.ptr + 13, 5000, None) == memory.ptr + 13 + vendor.shift
    assert standin.registrations() == {(memory.ptr + 13, 5000)}
    gpu.data_unlock(memory.ptr + 13)
    assert standin.registrations() == set()


@only("cuda", "hip", "hsa")
@pytest.mark.parametrize("release", this_vendor().releases)
@pytest.mark.parametrize(("offset", "size"), [(0, 8192), (100, 50), (8000, 1000), (-100, 101), (8191, 1), (-5, 6)])
def test_memory_pinned_by_someone_else_is_said_to_be(
    standin: StandIn, vendor: Vendor, gpu: Any, release: str, offset: int, size: int
) -> None:
    memory = Memory(4)
    base = memory.ptr + PAGE
    gpu.data_lock(base, 8192, None)
    for device in (gpu, vendor.plugin.device(1)):
        standin.configure(release)
        with pytest.raises(AlreadyPinnedError) as raised:
            device.data_lock(base + offset, size, None)
        assert (raised.value.call, raised.value.code, raised.value.name) == vendor.registered
        assert len(standin.calls(vendor.register)) == vendor.asked_to_lock_twice
        assert standin.registrations() == {(base, 8192)}
        for neighbour in (base - 1, base + 8192):
            device.data_lock(neighbour, 1, None)
            device.data_unlock(neighbour)
    gpu.data_unlock(base)


NOT_THERE = {
    "hip": ("hipHostRegister", 1, "hipErrorInvalidValue", r"\(1\).*mapped, and writable.*ACCESS_COPY"),
    "hsa": ("hsa_amd_memory_lock_to_pool", 0x1000, "HSA_STATUS_ERROR", "not mapped.*ACCESS_COPY"),
}


@only("hip", "hsa")
def test_advice_for_memory_that_is_not_all_there(standin: StandIn, vendor: Vendor, gpu: Any) -> None:
    memory = Memory(3)
    memory.unmap(1)
    *failure, advice = NOT_THERE[vendor.name]
    with pytest.raises(VendorError, match=advice) as raised:
        gpu.data_lock(memory.ptr, memory.size, None)
    assert [raised.value.call, raised.value.code, raised.value.name] == failure
    gpu.data_lock(memory.ptr, PAGE, None)  # the failure has left nothing behind
    gpu.data_unlock(memory.ptr)


@only("hsa", "ur")
def test_unlocking_what_is_not_locked_is_refused_before_the_driver_is_asked(standin: StandIn, gpu: Any) -> None:
    memory = Memory(1)
    gpu.data_lock(memory.ptr, PAGE, None)
    before = standin.registrations()
    for ptr in (memory.ptr - 1, memory.ptr + 1, memory.ptr + PAGE):
        with pytest.raises(NotLockedError, match=f"{ptr:#x}.*{gpu.name}"):
            gpu.data_unlock(ptr)
    assert standin.registrations() == before
    gpu.data_unlock(memory.ptr)
    with pytest.raises(NotLockedError):
        gpu.data_unlock(memory.ptr)


@only("cuda", "hip")
def test_a_lock_that_cannot_be_undone_says_so(standin: StandIn, vendor: Vendor, gpu: Any) -> None:
    memory = Memory(1)
    standin.configure(f"fail={vendor.device_pointer}:1:999;fail={vendor.unregister}:1:999")
    with pytest.raises(VendorError) as raised:
        gpu.data_lock(memory.ptr, PAGE, False)
    assert raised.value.call == vendor.unregister
    assert standin.registrations() == {(memory.ptr, PAGE)}
    gpu.data_unlock(memory.ptr)


@only("cuda", "hip", "hsa")
def test_what_the_driver_refuses_to_lock_can_be_locked_later(standin: StandIn, vendor: Vendor, gpu: Any) -> None:
    memory = Memory(1)
    standin.configure(f"fail={vendor.register}:1:999")
    with pytest.raises(VendorError):
        gpu.data_lock(memory.ptr, PAGE, False)
    assert gpu.is_pinned_ptr(memory.ptr) is None
    gpu.data_lock(memory.ptr, PAGE, False)
    gpu.data_unlock(memory.ptr)

# SPDX-License-Identifier: Apache-2.0
"""The CPU, by the real loader and its OpenCL adapter. test_real_loader.py starts the process."""

from __future__ import annotations

import ctypes
import threading

import pytest
from mapped_memory import PAGE, Memory
from usm import host_memory, page_is_locked, shared_memory

import pinning
from pinning.errors import AlreadyPinnedError, InvalidRangeError, VendorError
from pinning_ur import plugin
from pinning_ur.loader import exports

CPU = plugin.device(0)


def test_the_cpu_is_a_device() -> None:
    assert plugin.device_count() == 1
    assert CPU.name == "ur:0"
    assert CPU.description.endswith(" (OpenCL)")
    library = plugin.library()
    assert library.name == "libur_loader.so.0"
    assert library.version.startswith("0.1")
    assert "OpenCL" in library.version


@pytest.mark.parametrize("size", [1, 100, 4096, (4 << 20) + 3])
def test_bytes_go_to_the_device_and_come_back(size: int) -> None:
    source, target = Memory(size // PAGE + 1), Memory(size // PAGE + 1)
    data = bytes(at * 7 % 251 for at in range(1 << 12)) * (size // (1 << 12) + 1)
    ctypes.memmove(source.ptr, data, size)
    there = CPU.allocate(size)
    CPU.copy(there, source.ptr, size)
    CPU.copy(target.ptr, there, size)
    CPU.free(there)
    assert ctypes.string_at(target.ptr, size) == data[:size]


def test_threads_copy_at_once() -> None:
    wrong: list[object] = []

    def work(value: int) -> None:
        memory = Memory(2)
        ctypes.memset(memory.ptr, value, PAGE)
        there = CPU.allocate(PAGE)
        for _ in range(20):
            CPU.copy(there, memory.ptr, PAGE)
            CPU.copy(memory.ptr + PAGE, there, PAGE)
            if ctypes.string_at(memory.ptr + PAGE, PAGE) != bytes([value]) * PAGE:
                wrong.append(value)
        CPU.free(there)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_host_memory_of_the_vendor_is_found_from_the_inside() -> None:
    with host_memory(CPU, 5000) as ptr:
        for byte in (ptr, ptr + 1, ptr + 4999):
            assert CPU.is_pinned_ptr(byte) == (ptr, 5000, ptr)
        assert CPU.is_pinned_ptr(ptr + 5000) is None
    assert CPU.is_pinned_ptr(ptr) is None


def test_other_memory_is_unknown() -> None:
    assert CPU.is_pinned_ptr(Memory(1).ptr) is None
    assert CPU.is_pinned_ptr(1) is None
    there = CPU.allocate(PAGE)
    assert CPU.is_pinned_ptr(there) is None
    with pytest.raises(InvalidRangeError, match="device memory"):
        CPU.data_lock(there, PAGE, None)
    CPU.free(there)
    with shared_memory(CPU, PAGE) as ptr:
        assert CPU.is_pinned_ptr(ptr) is None
        with pytest.raises(InvalidRangeError, match="shared"):
            CPU.data_lock(ptr, PAGE, None)


def test_a_lock_is_refused_and_says_which_call_is_missing() -> None:
    memory = Memory(1)
    for read_only in (None, True, False):
        with pytest.raises(VendorError) as raised:
            CPU.data_lock(memory.ptr + 3, 100, read_only)
        error = raised.value
        assert (error.call, error.code) == ("urUSMImportExp", 44)
        assert error.name == "UR_RESULT_ERROR_UNSUPPORTED_FEATURE"
        assert "OpenCL" in error.advice
        whose = "its adapter" if exports("urUSMHostAllocRegisterExp") else "this release of the loader"
        assert f"{whose} has no urUSMHostAllocRegisterExp" in error.advice
    assert CPU.is_pinned_ptr(memory.ptr + 3) is None
    assert not page_is_locked(memory.ptr)


def test_memory_that_the_vendor_pinned_is_taken_in() -> None:
    with host_memory(CPU, 5000) as ptr:
        with pytest.raises(AlreadyPinnedError):
            CPU.data_lock(ptr + 10, 10, None)
        table = pinning.PinnedMap(CPU)
        assert table.lock(ptr + 10, 100) == ptr + 10
        (region,) = table
        assert (region.start, region.size, region.external) == (ptr, 5000, True)
        table.unlock(ptr + 10)


def test_the_vendors_errors_have_its_names() -> None:
    for act, call, name in (
        (lambda: CPU.allocate(0), "urUSMDeviceAlloc", "UR_RESULT_ERROR_INVALID_USM_SIZE"),
        (lambda: CPU.allocate(1 << 60), "urUSMDeviceAlloc", "UR_RESULT_ERROR_INVALID_USM_SIZE"),
        (lambda: CPU.free(Memory(1).ptr), "urUSMFree", "UR_RESULT_ERROR_INVALID_VALUE"),
    ):
        with pytest.raises(VendorError) as raised:
            act()
        assert (raised.value.call, raised.value.name) == (call, name)

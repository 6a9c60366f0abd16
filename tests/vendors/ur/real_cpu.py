# SPDX-License-Identifier: Apache-2.0
"""The CPU, through the real loader and its OpenCL adapter. test_real_loader.py starts the process."""

from __future__ import annotations

import ctypes

import numpy
import pytest
from usm import host_memory, shared_memory

import pinning
from mapped_memory import PAGE, Memory, locked_pages
from pinning.errors import AlreadyPinnedError, InvalidRangeError, PinningError, VendorError
from pinning.plugin import MemoryKind
from pinning_ur import SONAME, plugin

CPU = plugin.device(0)


def test_the_cpu_is_a_device() -> None:
    assert plugin.device_count() == 1
    assert CPU.name == "ur:0"
    assert CPU.description.endswith(" (OpenCL)")
    library = plugin.library()
    assert library.name == "libur_loader.so.0"
    assert library.version.startswith("0.1")
    assert "OpenCL" in library.version


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
        registers = hasattr(ctypes.CDLL(SONAME), "urUSMHostAllocRegisterExp")
        whose = "its adapter" if registers else "this release of the loader"
        assert f"{whose} has no urUSMHostAllocRegisterExp" in error.advice
    assert CPU.is_pinned_ptr(memory.ptr + 3) is None
    assert locked_pages(memory.ptr, memory.ptr + PAGE) == set()
    assert not CPU.can_lock
    assert pinning.default_device() is not CPU


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


# ---- memory and queues ----


def test_work_is_done_in_order_and_events_tell_when() -> None:
    size = 64 << 20
    here, there, queue = CPU.allocate(size, MemoryKind.HOST), CPU.allocate(size), CPU.make_queue()
    before = queue.record()
    queue.fill(there, b"\1\2\3\xfc", size // 4)
    queue.copy(here, there, size)
    queue.copy_2d(here, 8, there + 1, 16, 4, 2)
    after = queue.record()
    after.wait()
    assert after.done()
    assert after.seconds_since(before) > 0
    assert queue.done()
    assert ctypes.string_at(here, 16) == b"\2\3\xfc\1\1\2\3\xfc" * 2
    assert ctypes.string_at(here + size - 4, 4) == b"\1\2\3\xfc"
    queue.close()
    CPU.free(there)
    CPU.free(here, MemoryKind.HOST)


def test_a_queue_that_is_busy_is_not_done_and_another_waits_for_its_event() -> None:
    size = 256 << 20
    one, two = CPU.allocate(size), CPU.allocate(size)
    first, second = CPU.make_queue(), CPU.make_queue()
    first.fill(one, b"\7", size)
    assert not first.done()
    second.wait(first.record())
    second.copy(two, one, size)
    CPU.synchronize()
    assert first.done()
    assert second.done()
    CPU.copy(two + 1, one, 8)
    word = ctypes.create_string_buffer(8)
    CPU.copy(ctypes.addressof(word), two + size - 8, 8)
    assert word.raw == b"\7" * 8
    first.close()
    second.close()
    CPU.free(one)
    CPU.free(two)


def test_what_the_cpu_has_not_it_says() -> None:
    queue = CPU.make_queue()
    with pytest.raises(PinningError, match="queues of ur:0 cannot call functions of the host"):
        queue.call(0, 0)
    with pytest.raises(PinningError, match="queues of ur:0 cannot wait for values"):
        queue.wait_value(0, 0)
    queue.close()


def test_programs_allocate_copy_and_use_pools_on_it() -> None:
    size = (9 << 20) + 5
    array = numpy.random.default_rng(1).integers(0, 256, size, dtype=numpy.uint8)
    back = numpy.zeros_like(array)
    with (
        pinning.Context(CPU) as context,
        pinning.Pool(context, MemoryKind.DEVICE) as pool,
        pinning.Queue(CPU) as queue,
    ):
        there, ready = queue.alloc(size, pool=pool)
        up = pinning.copy_async(there, array, queue=queue, wait_for=[ready])
        pinning.copy_async(back, there, queue=queue).wait()
        assert up.path == "plain"
        with pinning.alloc(size, MemoryKind.HOST, device=CPU) as pinned:
            assert pinning.copy(pinned, there, queue=queue).path == "direct"
            assert (numpy.asarray(pinned) == array).all()
        queue.free(there)
        again, _ = queue.alloc(size, pool=pool)
        assert again.ptr == there.ptr
        queue.free(again)
    assert (back == array).all()
    pinning.pinned_map(CPU).close()

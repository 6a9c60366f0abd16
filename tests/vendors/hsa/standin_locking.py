# SPDX-License-Identifier: Apache-2.0
"""Locking and unlocking through `HsaDevice`: results, calls, refusals."""

from __future__ import annotations

import ctypes
from functools import partial

import pytest

import pinning
from fake_device import Background
from mapped_memory import PAGE, Memory
from pinning.errors import AlreadyPinnedError, VendorError
from pinning.plugin import MemoryKind
from pinning_hsa import plugin
from standins.standin import StandIn

SHIFT = 1 << 47  # between the stand-in's host and agent addresses of locked memory

DEVICE = plugin.device(0)
OTHER = plugin.device(1)


FINE_GRAINED, COARSE_GRAINED = 2, 4  # HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_...


class PointerInfo(ctypes.Structure):
    """hsa_amd_pointer_info_t."""

    _fields_ = (
        *(("size", ctypes.c_uint32), ("type", ctypes.c_int), ("agent_base", ctypes.c_void_p)),
        *(("host_base", ctypes.c_void_p), ("size_in_bytes", ctypes.c_size_t), ("user_data", ctypes.c_void_p)),
        *(("owner", ctypes.c_uint64), ("global_flags", ctypes.c_uint32)),
    )


def global_flags(ptr: int) -> int:
    """The flags with which the runtime has locked the memory at `ptr`."""
    hsa, info = ctypes.CDLL("libhsa-runtime64.so.1"), PointerInfo(size=ctypes.sizeof(PointerInfo))
    assert hsa.hsa_amd_pointer_info(ctypes.c_void_p(ptr), ctypes.byref(info), None, None, None) == 0
    flags: int = info.global_flags
    return flags


@pytest.mark.parametrize("read_only", [False, None, True])
def test_a_lock_is_for_all_gpus_and_coherent_whatever_the_buffer_says(standin: StandIn, read_only: bool | None) -> None:
    memory = Memory(1)
    DEVICE.data_lock(memory.ptr, PAGE, read_only)
    (call,) = standin.calls("hsa_amd_memory_lock_to_pool")
    assert call.split()[2:4] == [str(PAGE), "4"]
    assert global_flags(memory.ptr) == FINE_GRAINED  # not the pool for kernel arguments
    assert standin.calls("hsa_amd_memory_lock") == []
    DEVICE.data_unlock(memory.ptr)


def test_where_coherence_is_not_asked_for_a_lock_is_coarse_grained(standin: StandIn) -> None:
    memory = Memory(1)
    assert DEVICE.data_lock(memory.ptr, PAGE, None, coherent=False) == memory.ptr + SHIFT
    assert global_flags(memory.ptr) == COARSE_GRAINED
    DEVICE.data_unlock(memory.ptr)


@pytest.mark.parametrize(("offset", "size"), [(0, 1000), (-10, 20), (990, 20)])
def test_memory_that_another_library_has_locked_is_said_to_be(standin: StandIn, offset: int, size: int) -> None:
    memory = Memory(2)
    base, out = memory.ptr + 100, ctypes.c_void_p()
    hsa = ctypes.CDLL("libhsa-runtime64.so.1")  # behind the plugin's back, with prototypes of its own
    assert hsa.hsa_amd_memory_lock(ctypes.c_void_p(base), ctypes.c_size_t(1000), None, 0, ctypes.byref(out)) == 0
    with pytest.raises(AlreadyPinnedError, match="HSA_EXT_POINTER_TYPE_LOCKED"):
        DEVICE.data_lock(base + offset, size, None)
    assert DEVICE.is_pinned_ptr(base + 999) == (base, 1000, out.value)
    with pinning.lock((base + 10, 10), device=DEVICE) as lock:
        assert lock.region is not None
        assert (lock.region.start, lock.region.size, lock.region.external) == (base, 1000, True)
        assert lock.device_ptr == (out.value or 0) + 10
    assert standin.registrations() == {(base, 1000)}
    hsa.hsa_amd_memory_unlock(ctypes.c_void_p(base))


def test_allocated_memory_cannot_be_locked(standin: StandIn) -> None:
    there, here = DEVICE.allocate(PAGE), DEVICE.allocate(PAGE, MemoryKind.HOST)
    with pytest.raises(AlreadyPinnedError, match=r"HSA_EXT_POINTER_TYPE_HSA.*would lock it twice"):
        DEVICE.data_lock(here, PAGE, None)
    DEVICE.free(here, MemoryKind.HOST)
    with pytest.raises(VendorError) as raised:
        DEVICE.data_lock(there, PAGE, None)
    assert not isinstance(raised.value, AlreadyPinnedError)
    DEVICE.free(there)


def test_memory_that_is_being_locked_cannot_be_locked_meanwhile(standin: StandIn) -> None:
    memory = Memory(1)
    standin.configure("delay=hsa_amd_memory_lock_to_pool:60000")
    locking = Background(partial(DEVICE.data_lock, memory.ptr, memory.size, False))
    standin.wait_for("hsa_amd_memory_lock_to_pool")
    assert DEVICE.is_pinned_ptr(memory.ptr) is None
    for part in (memory.ptr, memory.ptr + memory.size - 1):
        with pytest.raises(AlreadyPinnedError):
            OTHER.data_lock(part, 1, False)
    standin.configure()
    locking.result()
    assert standin.registrations() == {(memory.ptr, memory.size)}
    DEVICE.data_unlock(memory.ptr)

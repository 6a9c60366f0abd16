# SPDX-License-Identifier: Apache-2.0
"""Locking and unlocking through `HsaDevice`: results, calls, refusals."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path

import pytest

import pinning
from mapped_memory import PAGE, Memory
from pinning.errors import AlreadyPinnedError, NotLockedError, VendorError
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


def locked_memory() -> int:
    """Bytes of this process that the kernel keeps locked."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmLck"))


def test_a_lock_locks_exactly_its_bytes_and_gives_their_agent_address(standin: StandIn) -> None:
    memory = Memory(2)
    before = locked_memory()
    assert DEVICE.data_lock(memory.ptr + 13, 5000, None) == memory.ptr + 13 + SHIFT
    assert standin.registrations() == {(memory.ptr + 13, 5000)}
    assert locked_memory() - before == 2 * PAGE
    DEVICE.data_unlock(memory.ptr + 13)
    assert standin.registrations() == set()
    assert locked_memory() == before


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


def test_unlocking_gives_the_runtime_the_host_pointer(standin: StandIn) -> None:
    memory = Memory(1)
    DEVICE.data_lock(memory.ptr, PAGE, None)
    DEVICE.data_unlock(memory.ptr)
    assert standin.calls("hsa_amd_memory_unlock") == [f"hsa_amd_memory_unlock {memory.ptr:#x}"]


@pytest.mark.parametrize("configuration", ["", "svm"], ids=["userptr", "svm"])
@pytest.mark.parametrize(("offset", "size"), [(0, 8192), (100, 50), (8000, 1000), (-100, 101), (-100, 9000), (0, 1)])
def test_memory_that_another_device_has_locked_is_said_to_be(
    standin: StandIn, offset: int, size: int, configuration: str
) -> None:
    memory = Memory(4)
    base = memory.ptr + PAGE
    standin.configure(configuration)
    DEVICE.data_lock(base, 8192, None)
    for device in (DEVICE, OTHER):
        with pytest.raises(AlreadyPinnedError, match="would lock it twice") as raised:
            device.data_lock(base + offset, size, None)
        assert raised.value.name == "HSA_EXT_POINTER_TYPE_LOCKED"
    assert standin.registrations() == {(base, 8192)}
    assert len(standin.calls("hsa_amd_memory_lock_to_pool")) == 1
    for neighbour in (base - 1, base + 8192):
        OTHER.data_lock(neighbour, 1, None)
        OTHER.data_unlock(neighbour)
    DEVICE.data_unlock(base)


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


def test_two_devices_share_one_lock(standin: StandIn) -> None:
    buffer = bytearray(10_000)
    with pinning.lock(buffer, device=DEVICE) as first, pinning.lock(buffer, device=OTHER) as second:
        assert second.device_ptr == first.device_ptr
        assert first.region is not None
        assert second.region is not None
        assert (first.region.external, second.region.external) == (False, False)
        assert len(standin.calls("hsa_amd_memory_lock_to_pool")) == 1
        first.unlock()
        assert standin.calls("hsa_amd_memory_unlock") == [], "the other has it still"
    assert len(standin.calls("hsa_amd_memory_unlock")) == 1


def test_unlocking_what_is_not_locked_is_an_error_although_the_runtime_has_none(standin: StandIn) -> None:
    memory = Memory(1)
    DEVICE.data_lock(memory.ptr, PAGE, None)
    for ptr in (memory.ptr - 1, memory.ptr + 1, memory.ptr + PAGE):
        with pytest.raises(NotLockedError, match=f"{ptr:#x}.*hsa:0"):
            DEVICE.data_unlock(ptr)
    assert standin.calls("hsa_amd_memory_unlock") == []
    DEVICE.data_unlock(memory.ptr)
    with pytest.raises(NotLockedError):
        DEVICE.data_unlock(memory.ptr)


def test_memory_that_cannot_be_locked(standin: StandIn) -> None:
    memory = Memory(3)
    memory.unmap(1)
    with pytest.raises(VendorError, match=r"not mapped.*ACCESS_COPY") as raised:
        DEVICE.data_lock(memory.ptr, memory.size, None)
    assert (raised.value.call, raised.value.code, raised.value.name) == (
        "hsa_amd_memory_lock_to_pool",
        0x1000,
        "HSA_STATUS_ERROR",
    )
    DEVICE.data_lock(memory.ptr, PAGE, None)  # the failure has left nothing behind
    DEVICE.data_unlock(memory.ptr)


def test_device_memory_cannot_be_locked(standin: StandIn) -> None:
    there = DEVICE.allocate(PAGE)
    with pytest.raises(VendorError) as raised:
        DEVICE.data_lock(there, PAGE, None)
    assert not isinstance(raised.value, AlreadyPinnedError)
    DEVICE.free(there)


def test_the_interpreter_runs_on_while_the_runtime_locks(standin: StandIn) -> None:
    memory = Memory(1)
    standin.configure("delay=hsa_amd_memory_lock_to_pool:60000")
    locking = threading.Thread(target=DEVICE.data_lock, args=(memory.ptr, memory.size, False))
    locking.start()
    while not standin.calls("hsa_amd_memory_lock_to_pool"):
        time.sleep(0.001)
    assert standin.registrations() == set()  # this runs while the call is in progress
    assert DEVICE.is_pinned_ptr(memory.ptr) is None
    with pytest.raises(AlreadyPinnedError):
        OTHER.data_lock(memory.ptr, 1, False)
    standin.configure()
    locking.join()
    assert standin.registrations() == {(memory.ptr, memory.size)}
    DEVICE.data_unlock(memory.ptr)


def test_ctrl_c_during_a_lock_leaves_nothing_locked(standin: StandIn) -> None:
    memory = Memory(1)
    standin.configure("delay=hsa_amd_memory_lock_to_pool:60000")

    def interrupt() -> None:
        while not standin.calls("hsa_amd_memory_lock_to_pool"):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
        standin.configure()

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        DEVICE.data_lock(memory.ptr, memory.size, False)
    interrupting.join()
    assert standin.registrations() == set()
    assert standin.calls("hsa_amd_memory_unlock"), "the lock took place, and was undone"
    DEVICE.data_lock(memory.ptr, memory.size, False)
    DEVICE.data_unlock(memory.ptr)

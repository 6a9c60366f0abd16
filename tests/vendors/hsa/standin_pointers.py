# SPDX-License-Identifier: Apache-2.0
"""`HsaDevice.is_pinned_ptr` for every kind of pointer."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapped_memory import Memory
from pinning.errors import AlreadyPinnedError, NotLockedError
from pinning.plugin import PinnedInfo
from pinning_hsa import plugin
from standins.standin import StandIn

SHIFT = 1 << 47  # between the stand-in's host and agent addresses of locked memory
PAGES = 4

DEVICE = plugin.device(0)
MEMORY = Memory(PAGES)


@pytest.fixture
def host_ptr(standin: StandIn) -> Iterator[int]:
    """1000 bytes of host memory allocated by the runtime, as for hipHostMalloc."""
    hsa, ptr = ctypes.CDLL("libhsa-runtime64.so.1"), ctypes.c_void_p()
    pool, size = ctypes.c_uint64(0xC02), ctypes.c_size_t(1000)
    assert hsa.hsa_amd_memory_pool_allocate(pool, size, 0, ctypes.byref(ptr)) == 0
    assert ptr.value
    yield ptr.value
    assert hsa.hsa_amd_memory_pool_free(ptr) == 0


@pytest.mark.parametrize("configuration", ["", "svm"], ids=["userptr", "svm"])
@settings(max_examples=100, deadline=None)
@given(requests=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20), st.booleans()), max_size=12))
def test_the_bytes_locked_are_pinned_and_no_others(configuration: str, requests: list[tuple[int, int, bool]]) -> None:
    """Against a model, a set of disjoint ranges. Every request, a lock or an unlock, is made."""
    hsa = ctypes.CDLL("libhsa-runtime64.so.1")
    hsa.standin_configure(configuration.encode())
    shift = 0 if configuration else SHIFT
    model: dict[int, int] = {}
    try:
        for start, size, unlock in requests:
            ptr = MEMORY.ptr + start
            if unlock:
                if ptr in model:
                    DEVICE.data_unlock(ptr)
                    del model[ptr]
                else:
                    with pytest.raises(NotLockedError):
                        DEVICE.data_unlock(ptr)
            elif any(ptr < other + length and other < ptr + size for other, length in model.items()):
                with pytest.raises(AlreadyPinnedError):
                    DEVICE.data_lock(ptr, size, None)
            else:
                assert DEVICE.data_lock(ptr, size, None) == ptr + shift
                model[ptr] = size
            for address in range(MEMORY.ptr - 1, MEMORY.ptr + 82):
                around = [PinnedInfo(b, n, b + shift) for b, n in model.items() if b <= address < b + n]
                assert DEVICE.is_pinned_ptr(address) == (around[0] if around else None)
    finally:
        for ptr in model:
            DEVICE.data_unlock(ptr)
        hsa.standin_configure(b"")


def test_the_agent_address_of_a_lock_is_no_host_address(standin: StandIn) -> None:
    assert DEVICE.is_pinned_ptr(DEVICE.data_lock(MEMORY.ptr, 100, False)) is None
    DEVICE.data_unlock(MEMORY.ptr)


def test_host_memory_of_the_runtimes_own_making_is_pinned(host_ptr: int) -> None:
    assert DEVICE.is_pinned_ptr(host_ptr + 999) == PinnedInfo(host_ptr, 1000, host_ptr)
    assert DEVICE.is_pinned_ptr(host_ptr + 1000) is None
    for ptr, size in ((host_ptr, 1000), (host_ptr + 1, 10), (host_ptr - 10, 20), (host_ptr + 990, 20)):
        with pytest.raises(AlreadyPinnedError, match="HSA_EXT_POINTER_TYPE_HSA"):
            DEVICE.data_lock(ptr, size, False)


def test_asking_works_for_all_devices(standin: StandIn) -> None:
    DEVICE.data_lock(MEMORY.ptr, 100, False)
    assert plugin.device(3).is_pinned_ptr(MEMORY.ptr + 7) == PinnedInfo(MEMORY.ptr, 100, MEMORY.ptr + SHIFT)
    DEVICE.data_unlock(MEMORY.ptr)

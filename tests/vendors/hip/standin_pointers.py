# SPDX-License-Identifier: Apache-2.0
"""`HipDevice.is_pinned_ptr`: what it says of every kind of pointer.

A stand-in checks the ABI and the sequence of calls, not a real runtime's semantics.
"""

from __future__ import annotations

import mmap
import threading

import pytest
from hip import hip
from hypothesis import given, settings
from hypothesis import strategies as st

from mapped_memory import PAGE, Memory
from pinning.errors import AlreadyPinnedError
from pinning.plugin import PinnedInfo
from pinning_hip import plugin
from standins.standin import StandIn

SHIFT = 1 << 47  # between the stand-in's host and device addresses of registered memory, on its first device
PAGES = 4

DEVICE = plugin.device(0)
MEMORY = Memory(PAGES)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, PAGE)), max_size=2 * PAGES - 1), st.data())
def test_every_byte_of_a_lock_and_no_other_is_pinned(pieces: list[tuple[bool, int]], data: st.DataObject) -> None:
    locks: list[tuple[int, int]] = []
    end = MEMORY.ptr
    for locked, size in pieces:
        size = min(size, MEMORY.ptr + MEMORY.size - end)
        if locked and size:
            DEVICE.data_lock(end, size, False)
            locks.append((end, size))
        end += size
    try:
        borders = [border for ptr, size in locks for border in (ptr - 1, ptr, ptr + size - 1, ptr + size)]
        inside = st.integers(MEMORY.ptr - 1, MEMORY.ptr + MEMORY.size)
        for address in [*borders, *data.draw(st.lists(inside, max_size=5))]:
            expected = [PinnedInfo(ptr, size, ptr + SHIFT) for ptr, size in locks if ptr <= address < ptr + size]
            assert DEVICE.is_pinned_ptr(address) == (expected[0] if expected else None)
    finally:
        for ptr, _ in locks:
            DEVICE.data_unlock(ptr)


def test_a_device_address_is_no_address_of_the_host(standin: StandIn) -> None:
    assert DEVICE.is_pinned_ptr(DEVICE.data_lock(MEMORY.ptr, 100, None)) is None
    DEVICE.data_unlock(MEMORY.ptr)


def test_a_size_of_more_than_32_bits(standin: StandIn) -> None:
    size = (5 << 30) + 3
    reserved = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    large = Memory(size // PAGE + 1, prot=0, flags=reserved)  # PROT_NONE: the kernel brings none of it into memory
    DEVICE.data_lock(large.ptr, size, None)
    assert DEVICE.is_pinned_ptr(large.ptr + size - 1) == PinnedInfo(large.ptr, size, large.ptr + SHIFT)
    DEVICE.data_unlock(large.ptr)


def test_memory_of_the_runtimes_own_making(standin: StandIn) -> None:
    device = DEVICE.allocate(PAGE)
    host = int(hip.hipHostMalloc(1000, 0)[1])
    managed = int(hip.hipMallocManaged(1000, 1)[1])

    assert DEVICE.is_pinned_ptr(host + 999) == PinnedInfo(host, 1000, host)
    assert DEVICE.is_pinned_ptr(host + 1000) is None
    assert DEVICE.is_pinned_ptr(managed) is None
    assert DEVICE.is_pinned_ptr(device) is None
    for release in ("", "silent_duplicates"):
        standin.configure(release)
        for ptr, size in ((host, 1000), (host + 1, 10), (host - 10, 20)):
            with pytest.raises(AlreadyPinnedError):
                DEVICE.data_lock(ptr, size, False)

    hip.hipHostFree(host)
    hip.hipFree(managed)
    DEVICE.free(device)


def test_each_device_tells_its_own_address(standin: StandIn) -> None:
    locked = plugin.device(2).data_lock(MEMORY.ptr, 100, None)
    told = [plugin.device(index).is_pinned_ptr(MEMORY.ptr + 7) for index in range(4)]
    assert told[2] == PinnedInfo(MEMORY.ptr, 100, locked)
    assert len({info.device_ptr for info in told if info}) == 4
    plugin.device(1).data_unlock(MEMORY.ptr)


def test_asking_works_in_any_thread(standin: StandIn) -> None:
    DEVICE.data_lock(MEMORY.ptr, 100, False)
    answers: list[PinnedInfo | None] = []
    thread = threading.Thread(target=lambda: answers.append(DEVICE.is_pinned_ptr(MEMORY.ptr + 7)))
    thread.start()
    thread.join()
    assert answers == [PinnedInfo(MEMORY.ptr, 100, MEMORY.ptr + SHIFT)]
    DEVICE.data_unlock(MEMORY.ptr)


@pytest.mark.parametrize("call", ["hipPointerGetAttribute:2", "hipPointerGetAttribute:3", "hipMemGetAddressRange:1"])
@pytest.mark.parametrize("code", [1, 17, 500])
def test_a_lock_that_goes_while_it_is_asked_about_is_not_pinned(standin: StandIn, call: str, code: int) -> None:
    DEVICE.data_lock(MEMORY.ptr, 100, False)
    standin.configure(f"fail={call}:{code}")
    assert DEVICE.is_pinned_ptr(MEMORY.ptr) is None
    DEVICE.data_unlock(MEMORY.ptr)

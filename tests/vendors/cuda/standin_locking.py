# SPDX-License-Identifier: Apache-2.0
"""Locking and unlocking through `CudaDevice`: results, flags, refusals."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path

import pytest

import pinning
from leaving import SIZE, pages, unmapped
from mapped_memory import PAGE, READ_WRITE, Memory
from pinning.errors import InvalidRangeError, VendorError
from pinning.map.pinned_map import watch_problem
from pinning_cuda import plugin
from standins.standin import StandIn

PORTABLE_AND_MAPPED = 1 | 2
READ_ONLY = 8
NORESERVE = 0x4000  # MAP_NORESERVE: no swap space is reserved

DEVICE = plugin.device(0)


def flags_of_lock(standin: StandIn, ptr: int, size: int, read_only: bool | None) -> int:
    """The flags that a lock of the range passes to the driver."""
    standin.configure()
    DEVICE.data_lock(ptr, size, read_only)
    DEVICE.data_unlock(ptr)
    (call,) = standin.calls("cuMemHostRegister")
    return int(call.split()[-1])


@pytest.mark.parametrize("read_only", [False, None, True])
def test_writable_memory_is_registered_for_writing_whatever_the_buffer_says(
    standin: StandIn, read_only: bool | None
) -> None:
    memory = Memory(1)
    assert flags_of_lock(standin, memory.ptr, memory.size, read_only) == PORTABLE_AND_MAPPED


def test_a_bytes_object_lies_in_writable_memory(standin: StandIn) -> None:
    data = bytes(100_000)
    address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
    assert address
    assert flags_of_lock(standin, address, len(data), True) == PORTABLE_AND_MAPPED


@pytest.mark.parametrize("read_only", [None, True])
def test_a_shared_read_only_mapping_is_registered_read_only(
    standin: StandIn, file_memory: Callable[[int, int], Memory], read_only: bool | None
) -> None:
    memory = file_memory(mmap.PROT_READ, mmap.MAP_SHARED)
    assert flags_of_lock(standin, memory.ptr, memory.size, read_only) == PORTABLE_AND_MAPPED | READ_ONLY


def test_one_read_only_mapping_among_several_makes_the_range_read_only(standin: StandIn) -> None:
    memory = Memory(3)
    memory.protect(1, mmap.PROT_READ)
    assert flags_of_lock(standin, memory.ptr, memory.size, None) == PORTABLE_AND_MAPPED | READ_ONLY
    assert flags_of_lock(standin, memory.ptr, PAGE, None) == PORTABLE_AND_MAPPED
    assert flags_of_lock(standin, memory.ptr, PAGE + 1, None) == PORTABLE_AND_MAPPED | READ_ONLY
    assert flags_of_lock(standin, memory.ptr + 2 * PAGE, PAGE, None) == PORTABLE_AND_MAPPED, "it lies behind that one"


def test_who_says_that_memory_is_writable_is_believed(
    standin: StandIn, file_memory: Callable[[int, int], Memory]
) -> None:
    memory = file_memory(mmap.PROT_READ, mmap.MAP_SHARED)
    assert flags_of_lock(standin, memory.ptr, memory.size, False) == PORTABLE_AND_MAPPED


@pytest.mark.parametrize("read_only", [None, True])
def test_a_private_read_only_file_is_refused_before_the_driver_hangs_on_it(
    standin: StandIn, file_memory: Callable[[int, int], Memory], read_only: bool | None
) -> None:
    memory = file_memory(mmap.PROT_READ, mmap.MAP_PRIVATE)
    with pytest.raises(InvalidRangeError, match=r"file of pages.*ACCESS_READ.*ACCESS_COPY"):
        DEVICE.data_lock(memory.ptr + 1, 10, read_only)
    assert standin.calls() == []


def test_a_private_writable_file_is_taken(standin: StandIn, file_memory: Callable[[int, int], Memory]) -> None:
    memory = file_memory(READ_WRITE, mmap.MAP_PRIVATE)
    assert flags_of_lock(standin, memory.ptr, memory.size, None) == PORTABLE_AND_MAPPED


def test_a_hole_in_the_range_is_named(standin: StandIn) -> None:
    memory = Memory(3)
    memory.unmap(1)
    for size in (memory.size, PAGE + 1):
        with pytest.raises(InvalidRangeError, match=f"no memory at {memory.ptr + PAGE:#x}"):
            DEVICE.data_lock(memory.ptr, size, None)
    assert standin.calls() == []


@pytest.mark.skipif(watch_problem() is not None, reason=f"the kernel does not tell of it: {watch_problem()}")
def test_memory_that_has_left_is_unregistered_before_what_is_there_now_is_registered(standin: StandIn) -> None:
    ptr = pages()
    old = pinning.lock((ptr, SIZE), device=DEVICE)
    ctypes.memset(pages(at=ptr), 2, SIZE)
    assert not old.held
    with pinning.lock((ptr, SIZE), device=DEVICE) as new:
        old.unlock()
        assert new.held
        assert standin.registrations() == {(ptr, SIZE)}
        assert ctypes.string_at(ptr, SIZE) == bytes([2]) * SIZE, "what is there now is as its owner left it"
    calls = [call.split()[0] for call in standin.calls() if call.startswith(("cuMemHostReg", "cuMemHostUnreg"))]
    assert calls == ["cuMemHostRegister", "cuMemHostUnregister"] * 2
    unmapped(ptr)


def test_advice_for_a_writable_shared_mapping_that_the_driver_refuses(
    standin: StandIn, file_memory: Callable[[int, int], Memory]
) -> None:
    memory = file_memory(READ_WRITE, mmap.MAP_SHARED)
    standin.configure("fail=cuMemHostRegister:1:1")
    with pytest.raises(VendorError, match=r"CUDA_ERROR_INVALID_VALUE \(1\).*file of pages.*ACCESS_READ.*/dev/shm"):
        DEVICE.data_lock(memory.ptr, memory.size, False)


def test_advice_for_read_only_memory_said_to_be_writable(standin: StandIn) -> None:
    memory = Memory(1, prot=mmap.PROT_READ)
    standin.configure("fail=cuMemHostRegister:1:1")
    with pytest.raises(VendorError, match="read_only=True"):
        DEVICE.data_lock(memory.ptr, memory.size, False)


@pytest.mark.parametrize(
    ("prot", "flags"), [(mmap.PROT_READ, mmap.MAP_SHARED), (READ_WRITE, mmap.MAP_PRIVATE)], ids=["shared", "private"]
)
def test_no_advice_where_none_is_known(
    standin: StandIn, file_memory: Callable[[int, int], Memory], prot: int, flags: int
) -> None:
    memory = file_memory(prot, flags)
    standin.configure("fail=cuMemHostRegister:1:1")
    with pytest.raises(VendorError, match=r"CUDA_ERROR_INVALID_VALUE \(1\)$"):
        DEVICE.data_lock(memory.ptr, memory.size, None)


def test_a_driver_that_takes_less_by_one_call(standin: StandIn) -> None:
    """Some kernels limit the bytes of one call; the limit is found once. No page is touched: a stand-in pins none."""
    gib = 1 << 30
    standin.configure(f"most_registered={2 * gib}")
    with mmap.mmap(-1, 9 * gib + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE) as memory:
        ptr = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        on = pinning.PinnedMap(plugin.device(0))
        for refused in (3, 0):  # 8, 4 and 9 GiB
            before = len(standin.calls("cuMemHostRegister"))
            on.lock(ptr, 9 * gib + PAGE)
            assert len(standin.calls("cuMemHostRegister")) - before == refused + 5
            assert standin.registrations() == {
                *((ptr + at * gib, 2 * gib) for at in range(0, 8, 2)),
                (ptr + 8 * gib, gib + PAGE),
            }
            region = on.find(ptr, 9 * gib + PAGE)
            assert region is not None
            assert (region.size, region.piece) == (9 * gib + PAGE, 2 * gib)
            on.unlock(ptr)
            assert standin.registrations() == set()
        standin.configure("most_registered=1000")
        with pytest.raises(pinning.OutOfMemoryError):
            on.lock(ptr, 5 * gib)
        assert (len(on), standin.registrations()) == (0, set())
        on.close()


def test_confidential_computing(standin: StandIn, tmp_path: Path) -> None:
    """The program's memory cannot be registered, but memory that the driver allocates is pinned."""
    assert plugin.warnings() == []
    standin.configure("confidential")
    told = [warning.partition(" (")[0] for warning in plugin.warnings()]
    assert told == [f"cuda:{i} registers no host memory" for i in range(4)]
    array = bytearray(range(256)) * (1 << 17)
    with pytest.raises(VendorError, match=r"confidential computing.*pinning\.alloc") as caught:
        pinning.lock(array, device=DEVICE)
    assert caught.value.code == 801
    with pinning.alloc(len(array), device=DEVICE) as there, pinning.Queue(DEVICE) as queue:
        copy = pinning.copy(there, array, queue=queue)
        assert copy.path == "staged"
        with pinning.alloc(len(array), pinning.MemoryKind.HOST, device=DEVICE) as pinned:
            assert pinning.copy(pinned, there, queue=queue).path == "direct"
            assert ctypes.string_at(pinned.ptr, pinned.size) == array
    (tmp_path / "a").write_bytes(array)
    with pinning.Queue(DEVICE) as queue, pinning.alloc(len(array), device=DEVICE) as there:
        assert pinning.copy_file(there, tmp_path / "a", 0, len(array), queue).path == "staged"
    assert not standin.registrations()

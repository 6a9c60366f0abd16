# SPDX-License-Identifier: Apache-2.0
"""What the native locker of CUDA keeps to besides, on the stand-in driver."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from ctypes import byref, c_int, c_size_t, c_void_p
from pathlib import Path

import pytest

import c_api
from mapped_memory import PAGE, READ_WRITE, Memory
from standins.libcuda import DRIVER
from standins.standin import StandIn

READ_ONLY = 8
FLAGS = 3


def flags(standin: StandIn) -> list[int]:
    return [int(call.split()[3]) for call in standin.calls("cuMemHostRegister")]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "pages"
    path.write_bytes(b"x" * 2 * PAGE)
    with path.open("r+b") as opened:
        yield opened.fileno()


def test_the_callers_context_stays(native: c_api.Map) -> None:
    cuda = ctypes.CDLL(DRIVER.soname)
    theirs, now = c_void_p(), c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(byref(theirs), c_int(0)) == 0
    memory = Memory(2)
    for context in (theirs, c_void_p()):
        assert cuda.cuCtxSetCurrent(context) == 0
        native.lock(memory.ptr, PAGE)
        with pytest.raises(c_api.StatusError):
            native.lock(memory.ptr + PAGE - 1, 2)
        native.unlock(memory.ptr)
        assert cuda.cuCtxGetCurrent(byref(now)) == 0
        assert now.value == context.value


def test_memory_that_the_driver_allocated(standin: StandIn, native: c_api.Map) -> None:
    cuda, context, ptr = ctypes.CDLL(DRIVER.soname), c_void_p(), c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(byref(context), c_int(0)) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    assert cuda.cuMemHostAlloc(byref(ptr), c_size_t(PAGE), 3) == 0
    assert ptr.value is not None
    assert native.lock(ptr.value + 8, 8) == ptr.value + 8
    region = native.find(ptr.value)
    assert region is not None and region.external and region.size == PAGE
    native.unlock(ptr.value)
    assert cuda.cuMemFreeHost(ptr) == 0
    assert cuda.cuCtxPopCurrent_v2(byref(context)) == 0


def test_read_only_memory_is_registered_read_only(standin: StandIn, native: c_api.Map, file: int) -> None:
    shared = Memory(2, mmap.PROT_READ, mmap.MAP_SHARED, file)
    anonymous = Memory(2)
    anonymous.protect(1, mmap.PROT_READ)
    for memory, first, expected in [
        (shared, 0, FLAGS | READ_ONLY),
        (anonymous, 0, FLAGS | READ_ONLY),
        (anonymous, 0, FLAGS),
    ]:
        standin.configure()
        native.lock(memory.ptr + first, PAGE if expected == FLAGS else 2 * PAGE)
        assert flags(standin) == [expected]
        native.unlock(memory.ptr)


def test_the_mapping_that_the_driver_hangs_on_never_reaches_it(standin: StandIn, native: c_api.Map, file: int) -> None:
    private = Memory(2, mmap.PROT_READ, mmap.MAP_PRIVATE, file)
    with pytest.raises(c_api.StatusError, match=r"private read-only mapping of .*/pages, on which") as refused:
        native.lock(private.ptr, 2 * PAGE)
    assert refused.value.status == "PINNING_INVALID_RANGE"
    assert native.lock_mapped(private.ptr, PAGE, c_api.ON) == 0
    native.unlock_unmapped(private.ptr)
    assert flags(standin) == []
    writable = Memory(2, READ_WRITE, mmap.MAP_PRIVATE, file)
    native.lock(writable.ptr, PAGE)
    native.unlock(writable.ptr)


def test_more_than_one_call_can_take_is_locked_in_pieces(standin: StandIn, native: c_api.Map) -> None:
    half = 256 << 30
    huge = Memory((half + PAGE) // PAGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
    native.lock(huge.ptr, huge.size)
    region = native.find(huge.ptr, huge.size)
    assert region is not None and region.piece == half
    assert [int(call.split()[2]) for call in standin.calls("cuMemHostRegister")] == [half, PAGE]
    native.unlock(huge.ptr)
    for page in (0, half // PAGE):
        huge.unmap(page)


def test_advice_for_a_file_that_the_driver_refuses(standin: StandIn, native: c_api.Map, file: int) -> None:
    shared = Memory(2, READ_WRITE, mmap.MAP_SHARED, file)
    standin.configure("fail=cuMemHostRegister:1:1")
    with pytest.raises(c_api.StatusError, match=r"writable shared mapping of .*/pages.* under /dev/shm"):
        native.lock(shared.ptr, PAGE)

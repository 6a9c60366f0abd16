# SPDX-License-Identifier: Apache-2.0
"""Memory that keeps its addresses while it sleeps, by the C functions for torch's allocator, on stand-in GPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from ctypes import c_int, c_size_t, c_ssize_t, c_void_p
from functools import partial

import numpy
import pytest

import pinning
from c_api import LIBRARY
from noise import noise
from pinning import InvalidRangeError, OutOfMemoryError
from pinning.conformance.faults import each_failure
from pinning_cuda import CudaDevice, plugin
from standins.libcuda import DRIVER, FAULTS
from standins.standin import StandIn

MIB = 1 << 20
_lib = ctypes.CDLL(str(LIBRARY))
_lib.pinning_sleepable_alloc.argtypes, _lib.pinning_sleepable_alloc.restype = [c_ssize_t, c_int, c_void_p], c_void_p
_lib.pinning_sleepable_free.argtypes = [c_void_p, c_size_t, c_int, c_void_p]
_lib.pinning_last_error.restype = ctypes.c_char_p
for each in (_lib.pinning_sleep, _lib.pinning_wake):
    each.argtypes = [c_void_p, c_int]
GPU: CudaDevice = plugin.device(1)


def live(what: str) -> int:
    count: Callable[[bytes], int] = ctypes.CDLL(DRIVER.soname).standin_virtual
    return count(what.encode())


@pytest.fixture(autouse=True)
def nothing_is_left(standin: StandIn) -> Iterator[None]:
    yield
    standin.configure()
    assert live("reserved") == live("memory") == 0


def alloc(size: int) -> int | None:
    return _lib.pinning_sleepable_alloc(size, 1, None)  # type: ignore[no-any-return]


def free(ptr: int) -> None:
    _lib.pinning_sleepable_free(ptr, 0, 1, None)


def test_it_wakes_at_its_address_and_its_memory_is_given_back_in_between() -> None:
    data, back = noise(3 * MIB), numpy.zeros(3 * MIB, numpy.uint8)
    ptr = alloc(data.size)
    assert ptr and pinning.memory_info(ptr).device is GPU  # type: ignore[union-attr]
    with pinning.Queue(GPU) as queue:
        for _ in range(2):
            pinning.copy(ptr, data, data.size, queue=queue)
            assert _lib.pinning_sleep(ptr, 1) == 0 == _lib.pinning_sleep(ptr, 1)
            assert live("memory") == 0 and live("reserved") == 1
            assert pinning.memory_info(ptr) is None
            assert _lib.pinning_wake(ptr, 1) == 0 == _lib.pinning_wake(ptr, 1)
            assert live("memory") == 1
            pinning.copy(ptr, data, data.size, queue=queue)
            pinning.copy(back, ptr, data.size, queue=queue)
            assert (back == data).all()
    free(ptr)


@pytest.mark.parametrize("awake", [True, False])
def test_it_is_freed_awake_and_asleep_after_all_work(standin: StandIn, awake: bool) -> None:
    ptr = alloc(1)
    assert ptr
    GPU.set_awake(ptr, awake)
    with pinning.Queue(GPU) as queue, pinning.alloc(8, device=GPU) as other:
        before = queue.call(lambda: None)
        pinning.copy_async(other, numpy.zeros(8, numpy.uint8), queue=queue)
        free(ptr)
        assert before.done() and queue.poll()


def test_other_gpus_that_the_process_uses_have_access(standin: StandIn) -> None:
    GPU.synchronize()
    plugin.device(3).synchronize()
    ptr = alloc(1)
    assert ptr and int(standin.calls("cuMemSetAccess")[0].split()[-1]) >= 2
    free(ptr)


def test_every_failure_leaves_everything_as_it_was(standin: StandIn) -> None:
    for n in range(1, 40):
        FAULTS.begin(fail=n)
        made = alloc(5)
        FAULTS.begin()
        assert live("reserved") == live("memory") == bool(made), n
        if made:
            free(made)
    ptr = alloc(5)
    assert ptr
    for awake in (False, True):
        GPU.set_awake(ptr, not awake)
        there, back = (partial(GPU.set_awake, ptr, each) for each in (awake, not awake))
        for failed, error in each_failure(FAULTS, there, back):
            assert live("memory") == (not awake), (failed, error)
    GPU.set_awake(ptr, False)
    standin.configure("fail=cuMemCreate:1:2")
    with pytest.raises(OutOfMemoryError):
        GPU.set_awake(ptr, True)
    GPU.set_awake(ptr, True)
    standin.configure("fail=cuMemUnmap:1:999;fail=cuMemAddressFree:1:999")
    free(ptr)
    assert live("memory") == 1
    free(ptr)
    assert live("memory") == 0 and live("reserved") == 1
    free(ptr)


def test_what_is_refused() -> None:
    for size in (0, -1, 1 << 62):
        assert not alloc(size)
    assert not _lib.pinning_sleepable_alloc(5, 99, None)
    for awake in (True, False):
        with pytest.raises(InvalidRangeError, match="no sleepable memory"):
            GPU.set_awake(MIB, awake)
    with pytest.raises(pinning.PinningError, match="NVIDIA GPUs have it"):
        pinning.device("host:0").set_awake(MIB, True)  # type: ignore[attr-defined]

# SPDX-License-Identifier: Apache-2.0
"""Several GPUs: one map and one registration for all of them, in any order of locks and unlocks."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy
import pytest

import c_api
import pinning
from pinning import NotLockedError, PartialOverlapError, StillLockedError, VendorError
from pinning.cli.status import status_of
from standins.standin import StandIn

NAMES = ["cuda:0", "cuda:1", "cuda:2"]
UNIT = 4096


def test_a_copy_to_each_of_several_devices_is_direct(standin: StandIn) -> None:
    array = numpy.arange(UNIT, dtype="u4")
    with (
        pinning.alloc(array.nbytes, device="cuda:0") as first,
        pinning.alloc(array.nbytes, device="cuda:1") as second,
        pinning.alloc(array.nbytes, device="cuda:2") as third,  # for which it is not locked
        pinning.locked(array, device="cuda:0"),
        pinning.locked(array, device="cuda:1"),
    ):
        copies = [pinning.copy_async(there, array) for there in (first, second, third)]
        assert [copy.path for copy in copies] == ["direct"] * 3
        for copy in copies:
            copy.wait()
    for name in NAMES:
        pinning.queues.default_queue(pinning.device(name)).close()


@pytest.mark.parametrize("size", [12 * UNIT, 4 << 20], ids=["small", "large"])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("way", ["copy", "rows", "batch"])
def test_copies_across_the_border_of_what_another_device_has_locked(
    standin: StandIn, size: int, several: bool, way: str
) -> None:
    """The driver refuses a single copy of memory of which a part is registered, for whichever device."""
    array, back, third = numpy.arange(size, dtype="u4").view("u1")[:size], numpy.zeros(size, "u1"), size // 3
    with pinning.Queue("cuda:1") as queue, pinning.alloc(size, device="cuda:1") as there:
        locks = [pinning.lock(each[third : 2 * third], device="cuda:0") for each in (array, back)]
        if several:
            locks += [pinning.lock(each[: third - UNIT], device="cuda:2") for each in (array, back)]
        for dst, src in ((there, array), (back, there)):
            if way == "copy":
                pinning.copy(dst, src, queue=queue)
            elif way == "rows":
                pinning.copy_2d(dst, 1024, src, 1024, 1024, size // 1024, queue)
            else:
                pinning.copy_batch([dst], [src], queue=queue)
        assert (back == array).all()
        for lock in locks:
            lock.unlock()


def test_what_one_device_has_locked_is_locked_for_all(standin: StandIn) -> None:
    array, used = numpy.zeros(4 * UNIT, "u1"), pinning.budget().used
    with pinning.locked(array, device="cuda:1"):
        for name in NAMES:
            region = pinning.find(array[UNIT:], device=name)
            assert region is not None
            assert (region.size, region.references, region.device.name) == (array.nbytes, 1, name)
            assert [each.start for each in pinning.regions(name)] == [region.start]
        assert len(pinning.regions()) == 1
        other = pinning.lock(array[UNIT : 2 * UNIT], device="cuda:2")
        with pytest.raises(PartialOverlapError):
            pinning.lock((array.ctypes.data - 1, 10), device="cuda:0")
        assert pinning.budget().used == used + array.nbytes
    assert other.held
    assert len(standin.registrations()) == 1
    with pytest.raises(NotLockedError):
        pinning.unlock(array, device="cuda:1")  # which has no lock of its own
    pinning.unlock(array)
    assert not other.held
    assert not pinning.is_locked(array, device="cuda:1")


def test_host_memory_of_a_context_of_several_devices(standin: StandIn) -> None:
    with pinning.Context([pinning.device(name) for name in NAMES]) as context:
        memory = context.alloc(UNIT, "host")
        for name in NAMES:
            region = pinning.find(memory, device=name)
            assert region is not None
            assert region.registered
        address = memory.ptr
        memory.free()
        assert not any(pinning.is_locked(address, device=name) for name in NAMES)


def mapped(name: str, array: numpy.ndarray) -> Callable[[], object]:
    pinned_map = pinning.pinned_map(name)
    pinned_map.lock_mapped(array.ctypes.data, array.nbytes, "mandatory")
    return lambda: pinned_map.unlock_unmapped(array.ctypes.data)


def of_c(name: str, array: numpy.ndarray) -> Callable[[], object]:
    c_map = c_api.Map(name)
    c_map.lock(array.ctypes.data, array.nbytes)
    return lambda: c_map.unlock(array.ctypes.data)


def mapped_of_c(name: str, array: numpy.ndarray) -> Callable[[], object]:
    c_map = c_api.Map(name)
    c_map.lock_mapped(array.ctypes.data, array.nbytes, c_api.MANDATORY)
    return lambda: c_map.unlock_unmapped(array.ctypes.data)


@pytest.mark.parametrize(
    "lock",
    [
        lambda name, array: pinning.lock(array, device=name).unlock,
        lambda name, array: pinning.lock(array, device=name, piece=UNIT).unlock,
        lambda name, array: pinning.lock_async(array, device=name).wait(timeout=60).unlock,
        mapped,
        of_c,
        mapped_of_c,
    ],
    ids=["whole", "in pieces", "in the background", "mapped", "C", "mapped by C"],
)
def test_the_device_that_is_named_locks_and_unlocks(
    standin: StandIn, lock: Callable[[str, numpy.ndarray], Callable[[], object]]
) -> None:
    array, contexts = numpy.zeros(4 * UNIT, "u1"), []
    for name in NAMES:
        unlock = lock(name, array)
        contexts.append(standin.calls("cuCtxPushCurrent")[-1])
        unlock()
        assert standin.calls("cuCtxPushCurrent")[-1] == contexts[-1]
    assert len(set(contexts)) == len(NAMES)


def test_what_is_left_of_an_unlock_that_was_refused_half_way(standin: StandIn) -> None:
    """No device can lock there, and any of them can try the unlock again."""
    array = numpy.zeros(4 * UNIT, "u1")
    lock = pinning.lock(array, device="cuda:1", piece=UNIT)
    standin.configure("fail=cuMemHostUnregister:2:4242")
    with pytest.raises(VendorError, match="4242"):
        lock.unlock()
    standin.configure("")
    for name in NAMES:
        with pytest.raises(StillLockedError):
            pinning.lock(array, device=name)
    pinning.pinned_map("cuda:2").unlock(array.ctypes.data)
    assert standin.registrations() == set()
    assert not lock.held


def test_what_is_idle_for_one_vendor_is_locked_for_another(standin: StandIn) -> None:
    array = numpy.zeros(UNIT, "u1")
    pinning.budget(idle=True)
    with pinning.lock(array, device="host"):
        pinning.lock(array, device="cuda:0").unlock()
        ranges = status_of(os.getpid()).ranges
    pinning.budget(idle=False)
    listed = {each.device: each.idle for each in ranges if each.start == array.ctypes.data}
    assert listed == {"cuda:0": True, "host:0": False}


def test_in_the_background_on_two_devices_at_once(standin: StandIn) -> None:
    array = numpy.zeros(64 << 20, "u1")
    pending = [pinning.lock_async(array, device=name, unit=UNIT) for name in NAMES[:2]]
    locks = [each.wait(timeout=60) for each in pending]
    pieces = standin.registrations()
    assert sum(size for _, size in pieces) == array.nbytes
    borders = [pinning.regions(name)[0].borders for name in NAMES[:2]]
    assert borders[0] == borders[1]
    locks[0].unlock()
    assert standin.registrations() == pieces
    locks[1].unlock()

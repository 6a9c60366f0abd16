# SPDX-License-Identifier: Apache-2.0
"""Several GPUs: one registration for all of them, in any order of locks and unlocks."""

from __future__ import annotations

import os

import numpy
import pytest

import pinning
from pinning import VendorError
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


def test_beside_what_is_left_of_an_unlock_that_was_refused_half_way(standin: StandIn) -> None:
    """What has been unregistered, up to its first byte, can be locked for another device."""
    array = numpy.zeros(4 * UNIT, "u1")
    lock = pinning.lock(array, device="cuda:0", piece=UNIT)
    standin.configure("fail=cuMemHostUnregister:2:4242")
    with pytest.raises(VendorError, match="4242"):
        lock.unlock()
    standin.configure("")
    left = sorted(start - array.ctypes.data for start, _ in standin.registrations())
    gone = [at for at in range(0, array.nbytes, UNIT) if at not in left]
    assert gone
    for at in gone:
        with pinning.locked(array[at : at + UNIT], device="cuda:1"):
            assert len(standin.registrations()) == len(left) + 1
    lock.unlock()
    assert standin.registrations() == set()


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

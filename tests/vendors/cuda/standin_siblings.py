# SPDX-License-Identifier: Apache-2.0
"""Several GPUs: one registration for all of them, in any order of locks and unlocks."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import pinning
from c_api import Map
from child_process import run_in_child
from pinning import Lock, PartialOverlapError, PinnedMap, PinningError, VendorError
from standins.libcuda import DRIVER
from standins.standin import StandIn

NAMES = ["cuda:0", "cuda:1", "cuda:2"]
SHIFT = 1 << 47  # between the stand-in's host and device addresses of registered memory
UNIT = 4096


def range_of(array: numpy.ndarray) -> tuple[int, int]:
    return array.ctypes.data, array.nbytes


def test_a_copy_to_each_of_two_devices_is_direct(standin: StandIn) -> None:
    array = numpy.arange(UNIT, dtype="u4")
    with (
        pinning.alloc(array.nbytes, device="cuda:0") as first,
        pinning.alloc(array.nbytes, device="cuda:1") as second,
        pinning.locked(array, device="cuda:0"),
        pinning.locked(array, device="cuda:1"),
    ):
        copies = [pinning.copy_async(there, array) for there in (first, second)]
        assert [copy.path for copy in copies] == ["direct", "direct"]
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


def test_locked_from_c_too(standin: StandIn) -> None:
    array = numpy.zeros(5 * UNIT, "u1")
    native = Map("cuda:1")
    lock = pinning.lock(array, device="cuda:0")
    assert native.lock(array.ctypes.data + 10, 20) == array.ctypes.data + 10 + SHIFT
    lock.unlock()
    assert standin.registrations() == {range_of(array)}
    native.unlock(array.ctypes.data)
    assert standin.registrations() == set()


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


def test_what_is_idle_moves_to_the_device_that_wants_it(standin: StandIn) -> None:
    array = numpy.zeros(5 * UNIT, "u1")
    pinning.budget(idle=True)
    try:
        for name in NAMES * 2:
            pinning.lock(array, device=name).unlock()
            assert pinning.budget().idle == array.nbytes
        assert len(standin.calls("cuMemHostRegister")) == 1
    finally:
        pinning.budget(1.0, idle=False)
    assert standin.registrations() == set()


def test_a_child_has_none_of_it(standin: StandIn) -> None:
    array = numpy.zeros(5 * UNIT, "u1")

    def child() -> None:
        assert [pinning.regions(name) for name in NAMES] == [[], [], []]
        for name in NAMES:
            with pytest.raises(PinningError):  # CUDA cannot be used in a fork
                pinning.lock(array, device=name)

    with pinning.locked(array, device="cuda:0"), pinning.locked(array, device="cuda:1"):
        run_in_child(child)
        assert standin.registrations() == {range_of(array)}


class SiblingsMachine(RuleBasedStateMachine):
    """Random locks through the maps of three devices and short-lived maps, against the expected registrations."""

    def __init__(self) -> None:
        super().__init__()
        self.standin = DRIVER.standin(Path())
        self.arrays = [numpy.zeros((1 + index) * UNIT, "u1") for index in range(3)]
        self.locks: list[tuple[Lock, int, str]] = []
        self.maps: list[tuple[PinnedMap, int]] = []
        self.used = pinning.budget().used

    def teardown(self) -> None:
        for lock, _, _ in self.locks:
            lock.unlock()
        for own, _ in self.maps:
            own.close()
        assert self.standin.registrations() == set()
        assert pinning.budget().used == self.used

    def registered(self) -> set[int]:
        return {array for _, array, _ in self.locks} | {array for _, array in self.maps}

    @rule(name=st.sampled_from(NAMES), array=st.integers(0, 2), at=st.integers(0, 99), size=st.integers(1, 100))
    def lock(self, name: str, array: int, at: int, size: int) -> None:
        whole = self.arrays[array]
        view = whole[at : at + size] if array in self.registered() else whole
        self.locks.append((pinning.lock(view, device=name), array, name))

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        lock, _, _ = self.locks.pop(data.draw(st.integers(0, len(self.locks) - 1)))
        assert lock.held
        lock.unlock()

    @rule(name=st.sampled_from(NAMES), array=st.integers(0, 2))
    def a_map_of_its_own(self, name: str, array: int) -> None:
        own = PinnedMap(pinning.device(name))
        own.lock(*range_of(self.arrays[array]))
        self.maps.append((own, array))

    @precondition(lambda self: self.maps)
    @rule()
    def that_goes(self) -> None:
        own, _ = self.maps.pop()
        own.close()

    @rule(name=st.sampled_from(NAMES), array=st.integers(0, 2))
    def across(self, name: str, array: int) -> None:
        if array in self.registered():
            ptr, size = range_of(self.arrays[array])
            with pytest.raises(PartialOverlapError):
                pinning.lock((ptr + 1, size), device=name)

    @invariant()
    def as_it_should_be(self) -> None:
        arrays = [self.arrays[array] for array in self.registered()]
        assert self.standin.registrations() == {range_of(array) for array in arrays}
        assert pinning.budget().used == self.used + sum(array.nbytes for array in arrays)
        for name in NAMES:
            held = {self.arrays[array].ctypes.data for _, array, device in self.locks if device == name}
            assert {region.start for region in pinning.regions(name)} == held
            assert not any(region.external for region in pinning.regions(name))


SiblingsMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSiblings = SiblingsMachine.TestCase

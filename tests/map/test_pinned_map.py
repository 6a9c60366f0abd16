# SPDX-License-Identifier: Apache-2.0
"""PinnedMap on a device that records its calls: every rule, every refusal, and threads that meet in the map."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from fake_device import FOREIGN_OFFSET, LOCKED_OFFSET, WAIT, Background, Call, CoarseFakeDevice, FakeDevice
from pinning import (
    AlreadyPinnedError,
    InvalidRangeError,
    NotLockedError,
    PartialOverlapError,
    PinnedMap,
    PinningError,
    StillLockedError,
    VendorError,
)
from pinning.map.pinned_map import Hold

BASE, SIZE = 0x10000, 0x1000
TOP = 1 << 64


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    device = FakeDevice()
    yield device
    assert device.wrong == []


@pytest.fixture
def pinned(device: FakeDevice) -> PinnedMap:
    return PinnedMap(device)


def refusal() -> VendorError:
    return VendorError("fakeCall", 999, "FAKE_UNKNOWN", "ask the vendor")


def let_others_run() -> None:
    """Give a thread time to reach its wait. Too short a time may hide a fault, but never causes a failure."""
    time.sleep(0.05)


# ---- the rules, alone ----


def test_a_new_range_is_locked_by_the_vendor_and_found(device: FakeDevice, pinned: PinnedMap) -> None:
    assert pinned.lock(BASE, SIZE, read_only=True) == BASE + LOCKED_OFFSET
    assert device.calls == [Call("data_lock", BASE, SIZE, True)]
    region = pinned.find(BASE, SIZE)
    assert region is not None
    assert (region.start, region.end, region.size) == (BASE, BASE + SIZE, SIZE)
    assert (region.device_ptr, region.references, region.external) == (BASE + LOCKED_OFFSET, 1, False)
    assert (region.piece, region.borders, region.device) == (SIZE, (), device)
    assert list(pinned) == [region]
    assert len(pinned) == 1


@pytest.mark.parametrize("read_only", [None, True, False])
def test_read_only_is_passed_to_the_vendor(device: FakeDevice, pinned: PinnedMap, read_only: bool | None) -> None:
    pinned.lock(BASE, SIZE, read_only)
    assert device.calls[0].read_only is read_only


@pytest.mark.parametrize(("offset", "size"), [(0, SIZE), (0, 1), (SIZE - 1, 1), (5, SIZE - 5), (1, SIZE - 2)])
def test_a_range_inside_is_counted_without_a_vendor_call(
    device: FakeDevice, pinned: PinnedMap, offset: int, size: int
) -> None:
    pinned.lock(BASE, SIZE)
    assert pinned.lock(BASE + offset, size) == BASE + offset + LOCKED_OFFSET
    assert next(iter(pinned)).references == 2
    pinned.unlock(BASE + SIZE - 1)
    assert next(iter(pinned)).references == 1
    assert len(device.calls) == 1
    pinned.unlock(BASE + 7)
    assert device.calls[1:] == [Call("data_unlock", BASE)]
    assert len(pinned) == 0


OVERLAPS = [(-1, 2), (SIZE - 1, 2), (-1, SIZE + 2), (0, SIZE + 1), (-1, SIZE + 1), (-SIZE, SIZE + 1)]


@pytest.mark.parametrize(("offset", "size"), OVERLAPS)
def test_a_partial_overlap_is_refused_before_the_vendor_is_called(
    device: FakeDevice, pinned: PinnedMap, offset: int, size: int
) -> None:
    pinned.lock(BASE, SIZE)
    before = list(pinned)
    for attempt in (lambda: pinned.lock(BASE + offset, size), lambda: pinned.register(BASE + offset, size, 1)):
        with pytest.raises(PartialOverlapError) as caught:
            attempt()
        for number in (BASE + offset, BASE + offset + size, BASE, BASE + SIZE):
            assert f"{number:#x}" in str(caught.value)
        assert isinstance(caught.value, InvalidRangeError)
        assert isinstance(caught.value, ValueError)
    assert list(pinned) == before
    assert len(device.calls) == 1


def test_adjacent_ranges_are_two_regions(device: FakeDevice, pinned: PinnedMap) -> None:
    for start in (BASE, BASE - SIZE, BASE + SIZE):
        pinned.lock(start, SIZE)
    assert [region.start for region in pinned] == [BASE - SIZE, BASE, BASE + SIZE]
    assert pinned.find(BASE + SIZE - 1, 2) is None, "no region holds a range across a border"
    assert device.count("data_lock") == 3


@pytest.mark.parametrize(
    ("ptr", "size", "says"),
    [
        (0, 1, "null"),
        (BASE, 0, f"{BASE:#x}"),
        (-BASE, 1, f"{-BASE}"),
        (BASE, -1, "-1"),
        (TOP, 1, f"{TOP}"),
        (BASE, TOP, f"{TOP}"),
        (TOP - 1, 2, f"{TOP - 1:#x}"),
        (BASE, TOP - BASE + 1, f"{BASE:#x}"),
    ],
)
def test_what_is_no_range_is_refused(device: FakeDevice, pinned: PinnedMap, ptr: int, size: int, says: str) -> None:
    for attempt in (lambda: pinned.lock(ptr, size), lambda: pinned.register(ptr, size, 1)):
        with pytest.raises(InvalidRangeError, match=says):
            attempt()
    assert pinned.find(ptr, size) is None
    assert device.calls == []
    assert len(pinned) == 0


@pytest.mark.parametrize("bad", [None, 1.0, 4096.5, "4096", b"x", [1], np.float64(3)])
def test_what_is_no_integer_is_a_type_error(device: FakeDevice, pinned: PinnedMap, bad: object) -> None:
    attempts = [
        lambda: pinned.lock(bad, 1),  # type: ignore[arg-type]
        lambda: pinned.lock(BASE, bad),  # type: ignore[arg-type]
        lambda: pinned.unlock(bad),  # type: ignore[arg-type]
        lambda: pinned.register(bad, 1, 1),  # type: ignore[arg-type]
        lambda: pinned.register(BASE, 1, bad),  # type: ignore[arg-type]
        lambda: pinned.unregister(bad),  # type: ignore[arg-type]
        lambda: pinned.find(bad),  # type: ignore[arg-type]
        lambda: pinned.find(BASE, bad),  # type: ignore[arg-type]
        lambda: bad in pinned,  # type: ignore[operator]
    ]
    for attempt in attempts:
        with pytest.raises(TypeError):
            attempt()
    assert device.calls == []
    assert len(pinned) == 0


@pytest.mark.parametrize("integer", [np.uint64, np.int64, np.uint32])
def test_the_integers_of_numpy_are_integers(pinned: PinnedMap, integer: type[np.integer]) -> None:
    pinned.lock(integer(BASE), integer(SIZE), piece=integer(SIZE // 2))
    assert integer(BASE) in pinned
    region = pinned.find(integer(BASE), integer(SIZE))
    assert region is not None
    assert integer(BASE) in region
    pinned.unlock(integer(BASE))
    assert len(pinned) == 0


def test_the_last_byte_of_the_address_space(device: FakeDevice, pinned: PinnedMap) -> None:
    pinned.register(TOP - SIZE, SIZE, BASE)
    region = pinned.find(TOP - 1)
    assert region is not None
    assert (region.end, region.borders, region.device_ptr_of(TOP - 1)) == (TOP, (), BASE + SIZE - 1)
    assert pinned.find(TOP - 1, 2) is None
    assert TOP not in pinned
    assert -1 not in pinned


def test_unlock_of_what_is_not_locked(device: FakeDevice, pinned: PinnedMap) -> None:
    pinned.lock(BASE, SIZE)
    for ptr in (BASE - 1, BASE + SIZE, 0, TOP - 1):
        with pytest.raises(NotLockedError, match=f"{ptr:x}") as caught:
            pinned.unlock(ptr)
        assert isinstance(caught.value, LookupError)
    assert next(iter(pinned)).references == 1
    pinned.unlock(BASE)
    with pytest.raises(NotLockedError):
        pinned.unlock(BASE)
    assert device.count("data_unlock") == 1


def test_find_wants_every_byte(pinned: PinnedMap) -> None:
    pinned.lock(BASE, SIZE)
    assert pinned.find(BASE + SIZE - 1, 1) is not None
    for ptr, size in [(BASE, SIZE + 1), (BASE - 1, 2), (BASE + SIZE, 1), (BASE, 0), (BASE + 1, TOP - 1), (BASE, -1)]:
        assert pinned.find(ptr, size) is None


def test_a_registration_is_not_a_lock(device: FakeDevice, pinned: PinnedMap) -> None:
    pinned.register(BASE, SIZE, 0x77000)
    (region,) = pinned
    assert (region.device_ptr, region.references, region.external, region.registered) == (0x77000, 0, True, True)
    with pytest.raises(NotLockedError):
        pinned.unlock(BASE)
    assert pinned.lock(BASE + 5, 10) == 0x77005
    with pytest.raises(StillLockedError, match=f"{BASE:#x}"):
        pinned.unregister(BASE + SIZE - 1)
    assert next(iter(pinned)).references == 1
    pinned.unlock(BASE)
    with pytest.raises(NotLockedError):
        pinned.unlock(BASE)
    pinned.unregister(BASE + 9)
    assert len(pinned) == 0
    assert device.calls == [], "registered memory is never locked nor unlocked by the vendor"


def test_only_a_registration_can_be_unregistered(pinned: PinnedMap) -> None:
    pinned.lock(BASE, SIZE)
    for ptr in (BASE, BASE - 1):
        with pytest.raises(NotLockedError, match=f"{ptr:x}"):
            pinned.unregister(ptr)
    assert len(pinned) == 1


def test_registering_what_is_registered_is_an_overlap(pinned: PinnedMap) -> None:
    pinned.register(BASE, SIZE, 1)
    with pytest.raises(PartialOverlapError):
        pinned.register(BASE, SIZE, 1)


@pytest.mark.parametrize("missing", ["data_lock", "data_unlock", "is_pinned_ptr"])
def test_a_device_needs_its_three_methods(missing: str) -> None:
    methods = {name: print for name in ("data_lock", "data_unlock", "is_pinned_ptr") if name != missing}
    with pytest.raises(TypeError, match=missing):
        PinnedMap(type("Half", (), methods)())  # type: ignore[arg-type]


# ---- what the device raises ----


class OwnError(Exception):
    pass


@pytest.mark.parametrize("error", [refusal(), OwnError("x"), KeyboardInterrupt(), MemoryError(), SystemExit(3)])
def test_what_data_lock_raises_reaches_the_caller(device: FakeDevice, pinned: PinnedMap, error: BaseException) -> None:
    device.fail(error)
    with pytest.raises(type(error)) as caught:
        pinned.lock(BASE, SIZE)
    assert caught.value is error
    assert len(pinned) == 0
    assert pinned.find(BASE) is None
    assert pinned.lock(BASE, SIZE) == BASE + LOCKED_OFFSET, "and it can be tried again"


@pytest.mark.parametrize("error", [refusal(), OwnError("x"), MemoryError()])
def test_error_of_data_unlock_reaches_the_caller_and_the_lock_stays(
    device: FakeDevice, pinned: PinnedMap, error: BaseException
) -> None:
    pinned.lock(BASE, SIZE)
    before = list(pinned)
    device.fail(error)
    with pytest.raises(type(error)) as caught:
        pinned.unlock(BASE)
    assert caught.value is error
    assert list(pinned) == before
    assert len(pinned) == 1
    assert device.locked == {BASE: SIZE}
    pinned.unlock(BASE)
    assert device.locked == {}


def test_a_vendor_error_keeps_call_code_and_name(device: FakeDevice, pinned: PinnedMap) -> None:
    device.fail(refusal())
    with pytest.raises(VendorError, match=r"fakeCall failed: FAKE_UNKNOWN \(999\); ask the vendor") as caught:
        pinned.lock(BASE, SIZE)
    assert (caught.value.call, caught.value.code, caught.value.name) == ("fakeCall", 999, "FAKE_UNKNOWN")


@pytest.mark.parametrize("locked_first", [False, True], ids=["before the call", "after the call"])
def test_ctrl_c_inside_data_unlock_leaves_nothing_locked(locked_first: bool) -> None:
    class Interrupted(FakeDevice):
        def data_unlock(self, ptr: int) -> None:
            interrupt, self.interrupts = self.interrupts, False
            if interrupt and not locked_first:
                raise KeyboardInterrupt
            if ptr not in self.locked:
                raise refusal()
            super().data_unlock(ptr)
            if interrupt:
                raise KeyboardInterrupt

        interrupts = True

    def unlock() -> None:
        with pytest.raises(KeyboardInterrupt):
            pinned.unlock(BASE)
            for _ in range(100):
                time.sleep(0.01)

    device = Interrupted()
    pinned = PinnedMap(device)
    for run in (unlock, in_another_thread(unlock)):  # Ctrl-C is raised in the thread that it interrupted
        device.interrupts = True
        pinned.lock(BASE, SIZE)
        run()
        assert device.locked == {}
        assert len(pinned) == 0


def in_another_thread(function: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(function).result()

    return run


@pytest.mark.parametrize("answer", [None, "0x10", 1.5, -1, TOP])
def test_a_device_pointer_that_is_none_is_an_error(answer: object) -> None:
    device = FakeDevice()
    device.data_lock = lambda ptr, size, read_only: answer  # type: ignore[method-assign,assignment,return-value]
    pinned = PinnedMap(device)
    with pytest.raises((TypeError, OverflowError)):
        pinned.lock(BASE, SIZE)
    assert len(pinned) == 0


# ---- memory that other code has pinned ----


def test_external_region_is_entered_whole_and_never_unlocked(device: FakeDevice, pinned: PinnedMap) -> None:
    device.foreign = {BASE: SIZE}
    assert pinned.lock(BASE + 16, 32) == BASE + 16 + FOREIGN_OFFSET
    (region,) = pinned
    assert (region.start, region.size, region.references) == (BASE, SIZE, 1)
    assert (region.external, region.registered) == (True, False)
    assert pinned.lock(BASE, SIZE) == BASE + FOREIGN_OFFSET
    assert device.count("data_lock") == 1
    pinned.unlock(BASE + 16)
    assert len(pinned) == 1
    pinned.unlock(BASE + 16)
    assert len(pinned) == 0
    assert device.count("data_unlock") == 0


@pytest.mark.parametrize(("offset", "size"), OVERLAPS[:2] + OVERLAPS[3:])
def test_reaching_out_of_what_someone_else_has_pinned(
    device: FakeDevice, pinned: PinnedMap, offset: int, size: int
) -> None:
    device.foreign = {BASE: SIZE}
    with pytest.raises(PartialOverlapError) as caught:
        pinned.lock(BASE + offset, size)
    for number in (BASE + offset, BASE + offset + size, BASE, BASE + SIZE):
        assert f"{number:#x}" in str(caught.value)
    assert len(pinned) == 0


def test_pinned_by_someone_that_the_vendor_cannot_name(device: FakeDevice, pinned: PinnedMap) -> None:
    device.foreign, device.tells_foreign = {BASE: SIZE}, False
    error = AlreadyPinnedError("fakeRegister", 5, "FAKE")
    device.fail(error)
    with pytest.raises(AlreadyPinnedError) as caught:
        pinned.lock(BASE, SIZE)
    assert caught.value is error
    assert len(pinned) == 0


def test_the_vendor_fails_to_say_who_has_pinned_it(device: FakeDevice, pinned: PinnedMap) -> None:
    device.foreign = {BASE: SIZE}
    error = refusal()
    device.fail(error, calls_before=1)
    with pytest.raises(VendorError) as caught:
        pinned.lock(BASE, SIZE)
    assert caught.value is error
    assert len(pinned) == 0
    assert pinned.lock(BASE, SIZE) == BASE + FOREIGN_OFFSET


def test_external_range_overlapping_a_region_is_refused(device: FakeDevice, pinned: PinnedMap) -> None:
    pinned.lock(BASE, SIZE)
    device.foreign = {BASE: 2 * SIZE}
    with pytest.raises(PartialOverlapError, match=f"{BASE:#x}"):
        pinned.lock(BASE + SIZE, SIZE)
    assert [region.external for region in pinned] == [False]


def test_pinned_by_someone_else_in_the_middle(device: FakeDevice, pinned: PinnedMap) -> None:
    """Only the two ends are queried. Neither is pinned, so the pinned range in between is not found."""
    device.foreign = {BASE + 10: 10}
    with pytest.raises(AlreadyPinnedError):
        pinned.lock(BASE, SIZE)
    assert device.calls[1:] == [Call("is_pinned_ptr", BASE), Call("is_pinned_ptr", BASE + SIZE - 1)]
    assert len(pinned) == 0


# ---- memory that other code has pinned, and unpins ----


def hold(pinned: PinnedMap, ptr: int, size: int) -> Hold:
    return Hold(pinned, ptr, size, None, None, None)


def test_a_lock_in_what_someone_else_has_pinned_asks_again(device: FakeDevice, pinned: PinnedMap) -> None:
    device.foreign = {BASE: SIZE}
    pinned.lock(BASE + 16, 32)
    device.calls.clear()
    assert pinned.lock(BASE + 8, 8) == BASE + 8 + FOREIGN_OFFSET
    assert device.calls == [Call("is_pinned_ptr", BASE)]
    assert next(iter(pinned)).references == 2


def test_a_lock_in_a_registration_asks_nobody(device: FakeDevice, pinned: PinnedMap) -> None:
    pinned.register(BASE, SIZE, 0x77000)
    pinned.lock(BASE, SIZE)
    assert device.calls == []


@pytest.mark.parametrize(("lower", "upper"), [(-64, 64), (0, -32), (0, 64), (32, 0), (-64, 0), (8, -8)])
def test_someone_else_has_pinned_it_anew_with_other_bounds(
    device: FakeDevice, pinned: PinnedMap, lower: int, upper: int
) -> None:
    device.foreign = {BASE: SIZE}
    before = hold(pinned, BASE, SIZE)
    start, size = BASE + lower, SIZE + upper - lower
    device.foreign = {start: size}
    inside = BASE + SIZE // 2
    assert pinned.lock(inside, 8) == inside + FOREIGN_OFFSET
    (region,) = pinned
    assert (region.start, region.size, region.references) == (start, size, 1)
    assert not before.held
    assert before.unlock()
    assert next(iter(pinned)).references == 1, "the old lock has taken the new one's count"


def test_unpinned_external_region_is_locked_by_the_vendor(device: FakeDevice, pinned: PinnedMap) -> None:
    device.foreign = {BASE: SIZE}
    before = [hold(pinned, BASE, SIZE) for _ in range(2)]
    device.foreign.clear()
    assert pinned.find(BASE) is not None, "nobody has asked yet"
    assert pinned.lock(BASE + 8, 8) == BASE + 8 + LOCKED_OFFSET
    for each in before:
        assert not each.held
        each.unlock()
    (region,) = pinned
    assert (region.start, region.size, region.references, region.external) == (BASE + 8, 8, 1, False)
    assert device.locked == {BASE + 8: 8}


@pytest.mark.parametrize(("offset", "size"), OVERLAPS)
def test_unpinned_external_region_is_not_an_overlap(
    device: FakeDevice, pinned: PinnedMap, offset: int, size: int
) -> None:
    device.foreign = {BASE: SIZE}
    pinned.lock(BASE, SIZE)
    with pytest.raises(PartialOverlapError, match="someone else"):
        pinned.lock(BASE + offset, size)
    assert len(pinned) == 1
    device.foreign.clear()
    assert pinned.lock(BASE + offset, size) == BASE + offset + LOCKED_OFFSET
    assert [region.start for region in pinned] == [BASE + offset]


def test_a_stale_region_counts_down_by_address(device: FakeDevice, pinned: PinnedMap) -> None:
    device.foreign = {BASE: SIZE}
    pinned.lock(BASE, SIZE)
    device.foreign.clear()
    device.calls.clear()
    pinned.unlock(BASE + 5)
    assert device.calls == []
    assert len(pinned) == 0
    with pytest.raises(NotLockedError):
        pinned.unlock(BASE + 5)


def test_the_vendor_fails_to_say_whether_it_is_still_pinned(device: FakeDevice, pinned: PinnedMap) -> None:
    device.foreign = {BASE: SIZE}
    pinned.lock(BASE, SIZE)
    before = list(pinned)
    for attempt in (lambda: pinned.lock(BASE, 1), pinned.refresh):
        error = refusal()
        device.fail(error)
        with pytest.raises(VendorError) as caught:
            attempt()  # type: ignore[operator]
        assert caught.value is error
        assert list(pinned) == before


def test_refresh_forgets_what_others_have_unpinned(device: FakeDevice, pinned: PinnedMap) -> None:
    device.foreign = {BASE: SIZE, BASE + SIZE: SIZE, BASE + 2 * SIZE: SIZE}
    locks = [hold(pinned, base, 8) for base in device.foreign]
    pinned.register(BASE + 3 * SIZE, SIZE, 1)
    pinned.lock(BASE + 4 * SIZE, SIZE)
    assert pinned.refresh() == []
    del device.foreign[BASE]
    device.foreign[BASE + SIZE] = SIZE // 2
    expected = list(pinned)[:2]
    assert pinned.refresh() == expected
    assert [region.start for region in pinned] == [BASE + at * SIZE for at in (2, 3, 4)]
    assert [each.held for each in locks] == [False, False, True]
    assert pinned.refresh() == []


def test_refresh_changes_nothing_when_the_vendor_fails_half_way(device: FakeDevice, pinned: PinnedMap) -> None:
    device.foreign = {BASE: SIZE, BASE + SIZE: SIZE}
    for base in device.foreign:
        pinned.lock(base, 8)
    before = list(pinned)
    device.foreign.clear()
    device.fail(refusal(), calls_before=1)
    with pytest.raises(VendorError):
        pinned.refresh()
    assert list(pinned) == before
    assert pinned.refresh() == before


@pytest.mark.parametrize("asks", ["refresh", "lock"])
def test_region_entered_again_during_a_query_stays(device: FakeDevice, pinned: PinnedMap, asks: str) -> None:
    device.foreign = {BASE: SIZE}
    pinned.lock(BASE, SIZE)
    device.foreign.clear()
    with device.stopping("is_pinned_ptr", BASE) as gate:
        asking = Background(pinned.refresh if asks == "refresh" else lambda: pinned.lock(BASE, SIZE))
        assert gate.reached.wait(WAIT)
        pinned.unlock(BASE)  # removes the old region without waiting for the vendor
        with device.stopping("data_lock", BASE) as locking_gate:
            locking = Background(lambda: pinned.lock(BASE, SIZE))
            assert locking_gate.reached.wait(WAIT)
        locking.result()
        gate.open()
    assert asking.result() == ([] if asks == "refresh" else BASE + LOCKED_OFFSET)
    (region,) = pinned
    assert (region.external, region.references) == (False, 1 if asks == "refresh" else 2)


def test_asking_whether_it_is_still_pinned_delays_nothing(device: FakeDevice, pinned: PinnedMap) -> None:
    device.foreign = {BASE: SIZE}
    pinned.lock(BASE, SIZE)
    with device.stopping("is_pinned_ptr", BASE) as gate:
        asking = Background(lambda: pinned.lock(BASE, 8))
        assert gate.reached.wait(WAIT)

        def the_rest() -> None:
            assert pinned.find(BASE) is not None
            assert pinned.lock(BASE, 16) == BASE + FOREIGN_OFFSET
            pinned.unlock(BASE)
            pinned.lock(BASE + SIZE, SIZE)
            pinned.unlock(BASE + SIZE)

        Background(the_rest).result()
        assert asking.is_alive()
    asking.result()
    assert next(iter(pinned)).references == 2


def test_threads_that_lock_parts_of_what_someone_else_has_pinned_anew(device: FakeDevice, pinned: PinnedMap) -> None:
    device.foreign = {BASE: SIZE // 2}
    old = hold(pinned, BASE, 64)
    device.foreign = {BASE: SIZE}
    parts = [BASE + part * SIZE // 8 for part in range(8)]
    with device.stopping("is_pinned_ptr", BASE) as gate:
        threads = [Background(lambda ptr=ptr: pinned.lock(ptr, 64)) for ptr in parts]  # type: ignore[misc]
        assert gate.reached.wait(WAIT)
        let_others_run()
    assert [thread.result() for thread in threads] == [ptr + FOREIGN_OFFSET for ptr in parts]
    old.unlock()
    (region,) = pinned
    assert (region.start, region.size, region.references) == (BASE, SIZE, len(parts))


def test_a_hold_gives_up_its_own_lock_only(device: FakeDevice, pinned: PinnedMap) -> None:
    first = hold(pinned, BASE, SIZE)
    pinned.unlock(BASE)  # takes the count of `first`
    assert not first.held
    pinned.lock(BASE, SIZE)
    assert first.unlock()
    assert not first.unlock()
    assert next(iter(pinned)).references == 1


# ---- coherence ----

FINE_AND_COARSE = (True, False)


@pytest.mark.parametrize(
    ("offered", "wish", "passed", "got"),
    [
        ((), None, True, None),
        ((), False, True, None),
        ((True,), None, True, True),
        ((True,), True, True, True),
        ((True,), False, True, True),
        ((False,), None, False, False),
        ((False,), False, False, False),
        (FINE_AND_COARSE, None, True, True),
        (FINE_AND_COARSE, True, True, True),
        (FINE_AND_COARSE, False, False, False),
    ],
)
def test_coherence_as_the_vendor_has_it(
    offered: tuple[bool, ...], wish: bool | None, passed: bool, got: bool | None
) -> None:
    device = CoarseFakeDevice(*offered)
    pinned = PinnedMap(device)
    pinned.lock(BASE, 10, piece=4, coherent=wish)
    assert [call.coherent for call in device.calls] == [passed] * 3
    assert [region.coherent for region in pinned] == [got]
    assert f"coherent={got}" in repr(next(iter(pinned)))
    assert device.wrong == []


@pytest.mark.parametrize("device", [FakeDevice(), CoarseFakeDevice(), CoarseFakeDevice(False)])
def test_coherence_that_is_required_and_cannot_be_had(device: FakeDevice) -> None:
    pinned = PinnedMap(device)
    pinned.lock(BASE, SIZE)
    for ptr, size in ((BASE, SIZE), (BASE + SIZE, 1), (BASE - 1, 2)):
        with pytest.raises(PinningError, match=r"coherent=True.*does not promise.*coherent=None") as caught:
            pinned.lock(ptr, size, coherent=True)
        assert type(caught.value) is PinningError
    assert len(pinned) == len(device.calls) == 1


def test_a_device_that_does_not_say_is_asked_with_three_arguments(device: FakeDevice, pinned: PinnedMap) -> None:
    for at, wish in enumerate((None, False)):
        pinned.lock(BASE + at, 1, coherent=wish)
    assert [region.coherent for region in pinned] == [None, None]


def test_a_coherent_lock_in_a_coarse_region() -> None:
    device = CoarseFakeDevice(*FINE_AND_COARSE)
    pinned = PinnedMap(device)
    pinned.lock(BASE, SIZE, coherent=False)
    with pytest.raises(StillLockedError, match=rf"{BASE:#x}.*coarse-grained.*coherent=None"):
        pinned.lock(BASE + 8, 8, coherent=True)
    assert next(iter(pinned)).references == 1
    for wish in (None, False):
        pinned.lock(BASE + 8, 8, coherent=wish)
    assert len(device.calls) == 1


def test_any_lock_in_a_coherent_region() -> None:
    device = CoarseFakeDevice(*FINE_AND_COARSE)
    pinned = PinnedMap(device)
    for wish in (None, True, False):
        pinned.lock(BASE, SIZE, coherent=wish)
    (region,) = pinned
    assert (region.coherent, region.references, len(device.calls)) == (True, 3, 1)


@pytest.mark.parametrize("registered", [False, True])
def test_nobody_knows_how_coherent_others_memory_is(registered: bool) -> None:
    device = CoarseFakeDevice(*FINE_AND_COARSE)
    pinned = PinnedMap(device)
    if registered:
        pinned.register(BASE, SIZE, 1)
    else:
        device.foreign = {BASE: SIZE}
        with pytest.raises(StillLockedError, match=rf"{BASE:#x}.*nobody knows.*coherent=None"):
            pinned.lock(BASE + 8, 8, coherent=True)
        assert len(pinned) == 0
        pinned.lock(BASE, SIZE)
    (before,) = pinned
    assert before.coherent is None
    with pytest.raises(StillLockedError, match=rf"{BASE:#x}.*nobody knows.*coherent=None"):
        pinned.lock(BASE + 8, 8, coherent=True)
    assert list(pinned) == [before]
    for wish in (None, False):
        pinned.lock(BASE + 8, 8, coherent=wish)


@pytest.mark.parametrize("registered", [False, True])
def test_others_memory_is_as_coherent_as_all_of_the_vendors(registered: bool) -> None:
    device = CoarseFakeDevice(True)
    pinned = PinnedMap(device)
    if registered:
        pinned.register(BASE, SIZE, 1)
    else:
        device.foreign = {BASE: SIZE}
    pinned.lock(BASE, SIZE, coherent=True)
    assert next(iter(pinned)).coherent is True


# ---- pieces ----


def test_a_lock_in_pieces_is_one_region(device: FakeDevice, pinned: PinnedMap) -> None:
    assert pinned.lock(BASE, 10, piece=4) == BASE + LOCKED_OFFSET
    assert device.calls == [Call("data_lock", BASE + at, min(4, 10 - at)) for at in (0, 4, 8)]
    (region,) = pinned
    assert (region.size, region.piece, region.borders) == (10, 4, (BASE + 4, BASE + 8))
    assert pinned.find(BASE + 3, 2) == region
    pinned.unlock(BASE + 9)
    assert device.locked == {}


@pytest.mark.parametrize("piece", [10, 11, sys.maxsize])
def test_a_piece_as_large_as_the_lock_is_one_call(device: FakeDevice, pinned: PinnedMap, piece: int) -> None:
    pinned.lock(BASE, 10, piece=piece)
    assert device.calls == [Call("data_lock", BASE, 10)]
    assert next(iter(pinned)).borders == ()


@pytest.mark.parametrize("piece", [0, -1, TOP])
def test_a_piece_must_be_a_size(device: FakeDevice, pinned: PinnedMap, piece: int) -> None:
    with pytest.raises(InvalidRangeError, match=str(piece)):
        pinned.lock(BASE, SIZE, piece=piece)
    assert device.calls == []


@pytest.mark.parametrize(("piece", "taken"), [(None, 4), (100, 4), (3, 3)])
def test_largest_vendor_call_bounds_the_pieces(piece: int | None, taken: int) -> None:
    device = FakeDevice(largest_lock=4)
    pinned = PinnedMap(device)
    pinned.lock(BASE, 10, piece=piece)
    assert device.locked == {BASE + at: min(taken, 10 - at) for at in range(0, 10, taken)}
    assert device.wrong == []


@pytest.mark.parametrize("calls_before", range(3))
def test_a_refused_piece_undoes_those_before_it(device: FakeDevice, pinned: PinnedMap, calls_before: int) -> None:
    error = refusal()
    device.fail(error, calls_before)
    with pytest.raises(VendorError) as caught:
        pinned.lock(BASE, 10, piece=4)
    assert caught.value is error
    assert device.locked == {}
    assert len(pinned) == 0
    pinned.lock(BASE, 10)


def test_pieces_that_can_be_neither_locked_nor_undone_can_be_unlocked_later(
    device: FakeDevice, pinned: PinnedMap
) -> None:
    error = refusal()
    device.fail(error, calls_before=2)
    device.fail(OwnError(), calls_before=4)
    with pytest.raises(VendorError) as caught:
        pinned.lock(BASE, 12, piece=4)
    assert caught.value is error
    assert device.locked == {BASE: 4}
    assert (len(pinned), list(pinned), pinned.find(BASE)) == (0, [], None)
    with pytest.raises(StillLockedError, match=f"{BASE:#x}"):
        pinned.lock(BASE, 12)
    pinned.unlock(BASE)
    assert device.locked == {}
    pinned.lock(BASE, 12)


@pytest.mark.parametrize("calls_before", range(3))
def test_an_unlock_refused_at_a_piece_can_be_tried_again(
    device: FakeDevice, pinned: PinnedMap, calls_before: int
) -> None:
    pinned.lock(BASE, 10, piece=4)
    for _ in range(2):
        device.fail(refusal(), calls_before)
        with pytest.raises(VendorError):
            pinned.unlock(BASE + 9)
        calls_before = 0
    if len(device.locked) < 3:
        assert (len(pinned), list(pinned)) == (0, []), "a region of which some is unlocked is not locked"
        with pytest.raises(StillLockedError, match=f"{BASE:#x}"):
            pinned.lock(BASE, 10)
    else:
        assert len(pinned) == len(list(pinned)) == 1
    pinned.unlock(BASE + 9)
    assert device.locked == {}
    with pytest.raises(NotLockedError):
        pinned.unlock(BASE)


def test_pieces_whose_device_pointers_do_not_follow_one_another(device: FakeDevice, pinned: PinnedMap) -> None:
    scattered = device.data_lock
    device.data_lock = lambda ptr, size, read_only: scattered(ptr, size, read_only) + ptr  # type: ignore[method-assign]
    with pytest.raises(PinningError, match="contiguous"):
        pinned.lock(BASE, 10, piece=4)
    assert device.locked == {}
    assert len(pinned) == 0


# ---- close ----


def test_close_unlocks_all_however_often_locked(device: FakeDevice) -> None:
    with PinnedMap(device) as pinned:
        for _ in range(3):
            pinned.lock(BASE, SIZE)
        pinned.lock(BASE + SIZE, 10, piece=3)
        pinned.register(BASE - SIZE, SIZE, 1)
        device.foreign = {BASE + 5 * SIZE: SIZE}
        pinned.lock(BASE + 5 * SIZE, 1)
    assert pinned.closed
    assert device.locked == {}
    assert len(pinned) == 0
    pinned.close()
    for attempt in (lambda: pinned.lock(BASE, SIZE), lambda: pinned.register(BASE, SIZE, 1)):
        with pytest.raises(PinningError, match="closed"):
            attempt()


def test_close_goes_on_when_the_vendor_refuses_and_can_be_tried_again(device: FakeDevice, pinned: PinnedMap) -> None:
    for start in (BASE, BASE + SIZE, BASE + 2 * SIZE):
        pinned.lock(start, SIZE)
    first = refusal()
    device.fail(first)
    device.fail(refusal(), calls_before=1)
    with pytest.raises(VendorError) as caught:
        pinned.close()
    assert caught.value is first
    assert not pinned.closed
    assert sorted(device.locked) == [region.start for region in pinned] == [BASE, BASE + SIZE]
    pinned.close()
    assert device.locked == {}


# ---- threads ----


def test_two_threads_that_lock_one_range_make_one_vendor_call(device: FakeDevice, pinned: PinnedMap) -> None:
    with device.stopping("data_lock", BASE) as gate:
        first = Background(lambda: pinned.lock(BASE, SIZE))
        assert gate.reached.wait(WAIT)
        second = Background(lambda: pinned.lock(BASE, SIZE))
        inside = Background(lambda: pinned.lock(BASE + 8, 8))
        let_others_run()
        assert second.is_alive()
        assert inside.is_alive()
        assert (pinned.find(BASE), len(pinned), list(pinned)) == (None, 0, [])
    assert [thread.result() for thread in (first, second, inside)] == [
        BASE + LOCKED_OFFSET,
        BASE + LOCKED_OFFSET,
        BASE + 8 + LOCKED_OFFSET,
    ]
    assert next(iter(pinned)).references == 3
    assert device.count("data_lock") == 1


@pytest.mark.parametrize("method", ["data_lock", "data_unlock"])
def test_a_slow_vendor_call_delays_nothing_else(device: FakeDevice, pinned: PinnedMap, method: str) -> None:
    other = BASE + 2 * SIZE
    pinned.lock(other, SIZE)
    if method == "data_unlock":
        pinned.lock(BASE, SIZE)
    with device.stopping(method, BASE) as gate:
        slow = Background(lambda: pinned.lock(BASE, SIZE) if method == "data_lock" else pinned.unlock(BASE))
        assert gate.reached.wait(WAIT)

        def the_rest() -> None:
            assert pinned.find(other) is not None
            assert pinned.find(BASE) is None
            pinned.lock(other, 1)
            pinned.unlock(other)
            pinned.unlock(other)
            pinned.lock(other, SIZE)
            pinned.register(BASE + SIZE, SIZE, 1)
            pinned.unregister(BASE + SIZE)
            assert len(pinned) == len(list(pinned)) == 1
            with pytest.raises(NotLockedError):
                pinned.unlock(BASE - 1)

        Background(the_rest).result()
        assert slow.is_alive()
    slow.result()


def test_who_waits_for_a_lock_that_fails_tries_it(device: FakeDevice, pinned: PinnedMap) -> None:
    with device.stopping("data_lock", BASE) as gate:
        first = Background(lambda: pinned.lock(BASE, SIZE))
        assert gate.reached.wait(WAIT)
        same = Background(lambda: pinned.lock(BASE, SIZE))
        let_others_run()
        gate.open(refusal())
    with pytest.raises(VendorError):
        first.result()
    assert same.result() == BASE + LOCKED_OFFSET
    assert device.count("data_lock") == 2
    assert next(iter(pinned)).references == 1


@pytest.mark.parametrize("fails", [True, False])
def test_an_overlap_waits_to_see_whether_it_is_one(device: FakeDevice, pinned: PinnedMap, fails: bool) -> None:
    with device.stopping("data_lock", BASE) as gate:
        first = Background(lambda: pinned.lock(BASE, SIZE))
        assert gate.reached.wait(WAIT)
        straddling = Background(lambda: pinned.lock(BASE + 1, SIZE))
        registering = Background(lambda: pinned.register(BASE - 1, 2, 1))
        let_others_run()
        assert straddling.is_alive()
        assert registering.is_alive()
        gate.open(refusal() if fails else None)
    if fails:
        with pytest.raises(VendorError):
            first.result()
        straddling.result()
        registering.result()
    else:
        first.result()
        for thread in (straddling, registering):
            with pytest.raises(PartialOverlapError):
                thread.result()
        assert device.count("data_lock") == 1


@pytest.mark.parametrize("fails", [True, False])
def test_lock_while_the_last_unlock_is_under_way(device: FakeDevice, pinned: PinnedMap, fails: bool) -> None:
    pinned.lock(BASE, SIZE)
    with device.stopping("data_unlock", BASE) as gate:
        unlocking = Background(lambda: pinned.unlock(BASE))
        assert gate.reached.wait(WAIT)
        locking = Background(lambda: pinned.lock(BASE, SIZE))
        let_others_run()
        assert locking.is_alive()
        gate.open(refusal() if fails else None)
    if fails:
        with pytest.raises(VendorError):
            unlocking.result()
    else:
        unlocking.result()
    assert locking.result() == BASE + LOCKED_OFFSET
    assert next(iter(pinned)).references == (2 if fails else 1)
    assert device.count("data_lock") == (1 if fails else 2)


@pytest.mark.parametrize("fails", [True, False])
def test_unlock_while_another_thread_unlocks(device: FakeDevice, pinned: PinnedMap, fails: bool) -> None:
    pinned.lock(BASE, SIZE)
    with device.stopping("data_unlock", BASE) as gate:
        first = Background(lambda: pinned.unlock(BASE))
        assert gate.reached.wait(WAIT)
        second = Background(lambda: pinned.unlock(BASE))
        let_others_run()
        assert second.is_alive()
        gate.open(refusal() if fails else None)
    with pytest.raises(VendorError if fails else NotLockedError):
        (first if fails else second).result()
    (second if fails else first).result()
    assert device.locked == {}
    assert device.count("data_unlock") == (2 if fails else 1)


@pytest.mark.parametrize("wait", [True, False])
def test_close_while_another_thread_locks(device: FakeDevice, pinned: PinnedMap, wait: bool) -> None:
    pinned.lock(BASE + SIZE, SIZE)
    with device.stopping("data_lock", BASE) as gate:
        locking = Background(lambda: pinned.lock(BASE, SIZE))
        assert gate.reached.wait(WAIT)
        closing = Background(lambda: pinned.close(wait=wait))
        if not wait:
            closing.result()
        let_others_run()
        assert closing.is_alive() == wait
    with pytest.raises(PinningError, match="closed"):
        locking.result()
    closing.result()
    assert device.locked == {}
    assert len(pinned) == 0


def test_lock_in_progress_during_close_is_undone(device: FakeDevice) -> None:
    class Closing:
        """A size that closes the map while it is converted."""

        def __init__(self, pinned: PinnedMap) -> None:
            self.pinned = pinned

        def __index__(self) -> int:
            self.pinned.close()
            return SIZE

    attempts: list[Callable[[PinnedMap, Any], object]] = [
        lambda pinned, size: pinned.lock(BASE, size),
        lambda pinned, size: pinned.lock(BASE, SIZE, piece=size),
        lambda pinned, size: pinned.register(BASE, size, 1),
    ]
    for attempt in attempts:
        pinned = PinnedMap(device)
        with pytest.raises(PinningError, match="closed"):
            attempt(pinned, Closing(pinned))
        assert len(pinned) == 0
    assert device.locked == {}


def test_threads_that_lock_parts_of_what_someone_else_has_pinned(device: FakeDevice, pinned: PinnedMap) -> None:
    device.foreign = {BASE: SIZE}
    parts = [BASE + part * 64 for part in range(8)]
    with device.stopping("data_lock", BASE) as gate, device.stopping("is_pinned_ptr", BASE + 64) as second_gate:
        threads = [Background(lambda ptr=ptr: pinned.lock(ptr, 64)) for ptr in parts]  # type: ignore[misc]
        assert gate.reached.wait(WAIT)
        assert second_gate.reached.wait(WAIT)
    assert [thread.result() for thread in threads] == [ptr + FOREIGN_OFFSET for ptr in parts]
    (region,) = pinned
    assert (region.start, region.size, region.references, region.external) == (BASE, SIZE, len(parts), True)
    for ptr in parts:
        pinned.unlock(ptr)
    assert len(pinned) == 0
    assert device.count("data_unlock") == 0


def test_no_thread_waits_for_the_interpreter_with_the_map_in_hand(device: FakeDevice, pinned: PinnedMap) -> None:
    """Device errors that the map drops (already pinned, the second of a close) are Python objects and need the GIL."""
    device.foreign = {BASE: SIZE}
    stop = threading.Event()

    def quick_calls() -> None:
        pinned.lock(BASE + 9 * SIZE, SIZE)
        while not stop.is_set():
            for _ in range(1000):
                pinned.lock(BASE + 9 * SIZE, 1)
                pinned.unlock(BASE + 9 * SIZE)

    def external() -> None:
        for _ in range(300):  # with many CPUs each may have to wait for the GIL, 5 ms at a time
            pinned.lock(BASE, 1)
            pinned.unlock(BASE)
            with pytest.raises(PartialOverlapError):
                pinned.lock(BASE - 1, 2)
            device.calls.clear()

    quick = Background(quick_calls)
    Background(external).result()
    stop.set()
    quick.result()


def test_lookups_while_others_lock_and_unlock(device: FakeDevice, pinned: PinnedMap) -> None:
    stop = threading.Event()
    sizes = (SIZE, SIZE // 2)

    def churn(start: int, size: int) -> None:
        while not stop.is_set():
            pinned.lock(start, size)
            found = pinned.find(start, size)
            assert found is not None
            assert found.device_ptr_of(start) == start + LOCKED_OFFSET
            pinned.unlock(start)
            device.calls.clear()

    threads = [Background(lambda i=i: churn(BASE + i * SIZE, sizes[i % 2])) for i in range(3)]  # type: ignore[misc]
    seen = look = 0
    end = time.monotonic() + 120
    while look < 30000 or (seen == 0 and time.monotonic() < end):
        look += 1
        region = pinned.find(BASE + look % (3 * SIZE))
        if region is not None:
            seen += 1
            assert region.device_ptr - region.start == LOCKED_OFFSET
            assert region.size == sizes[(region.start - BASE) // SIZE % 2]
            assert region.references == 1
        if look % 100 == 0:
            starts = [each.start for each in pinned]
            assert starts == sorted(set(starts))
    stop.set()
    for thread in threads:
        thread.result()
    assert seen > 0
    assert device.locked == {}


# ---- the garbage collector ----


def test_a_map_dropped_with_locks_held_unlocks() -> None:
    device = FakeDevice()
    PinnedMap(device).lock(BASE, SIZE)
    assert device.locked == {}
    alive = weakref.ref(device)
    del device
    assert alive() is None


def test_a_map_in_a_cycle_with_its_device_is_collected_and_unlocks() -> None:
    class Owner(FakeDevice):
        own_map: PinnedMap

    device = Owner()
    device.own_map = PinnedMap(device)
    device.own_map.lock(BASE, SIZE)
    alive, locked, wrong = weakref.ref(device), device.locked, device.wrong
    del device
    gc.collect()
    assert alive() is None
    assert locked == {}
    assert wrong == []


def test_a_map_dropped_while_its_vendor_refuses_is_silent_and_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: said.append(unraisable.exc_type))
    device = FakeDevice()
    pinned = PinnedMap(device)
    pinned.lock(BASE, SIZE)
    for call in range(5):
        device.fail(refusal(), call)
    with pytest.raises(OwnError, match="unharmed"):
        try:
            raise OwnError("unharmed")
        finally:
            del pinned
    assert said == []
    alive = weakref.ref(device)
    del device
    gc.collect()
    assert alive() is None


def test_regions_keep_their_device() -> None:
    pinned = PinnedMap(FakeDevice("fake:7"))
    pinned.lock(BASE, SIZE)
    (region,) = pinned
    del pinned
    assert region.device.name == "fake:7"
    assert len({region, region}) == 1

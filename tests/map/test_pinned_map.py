# SPDX-License-Identifier: Apache-2.0
"""PinnedMap on a device that records its calls: its arguments, the device's own errors, threads, and the collector.

Rules of ranges: the random machine beside this. More threads: tests/native/pinned_map_stress.cpp.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest

import pinning
from fake_device import FOREIGN_OFFSET, LOCKED_OFFSET, WAIT, Background, FakeDevice, in_threads
from mapped_memory import Memory
from pinning import (
    AlreadyPinnedError,
    InvalidRangeError,
    NotLockedError,
    PartialOverlapError,
    PinnedMap,
    PinningError,
    VendorError,
    pinned_map,
)
from pinning.map.pinned_map import Hold

POLICIES: tuple[Literal["off", "on", "mandatory"], ...] = ("off", "on", "mandatory")
BASE, SIZE = 0x10000, 0x1000
TOP = 1 << 64


@pytest.fixture
def pinned(device: FakeDevice) -> PinnedMap:
    return PinnedMap(device)


def refusal() -> VendorError:
    return VendorError("fakeCall", 999, "FAKE_UNKNOWN", "ask the vendor")


def let_others_run() -> None:
    """Give a thread time to reach its wait. Too short a time may hide a fault, but never causes a failure."""
    time.sleep(0.05)


# ---- the rules, alone ----


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
        (BASE + 1, TOP - 1, f"{BASE + 1:#x}"),
        (BASE, TOP - BASE + 1, f"{BASE:#x}"),
    ],
)
def test_what_is_no_range_is_refused(device: FakeDevice, pinned: PinnedMap, ptr: int, size: int, says: str) -> None:
    attempts: list[Callable[[], object]] = [
        partial(pinned.lock, ptr, size),
        partial(pinned.register, ptr, size, 1),
        *(partial(pinned.lock_mapped, ptr, size, policy) for policy in POLICIES),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidRangeError, match=says):
            attempt()
    assert pinned.find(ptr, size) is None
    assert device.calls == []
    assert len(pinned) == 0


@pytest.mark.parametrize("piece", [0, -1, TOP])
def test_a_piece_must_be_a_size(device: FakeDevice, pinned: PinnedMap, piece: int) -> None:
    with pytest.raises(InvalidRangeError, match=str(piece)):
        pinned.lock(BASE, SIZE, piece=piece)
    assert device.calls == []


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
    assert region is not None and integer(BASE) in region
    pinned.unlock(integer(BASE))
    assert len(pinned) == 0


def test_the_last_byte_of_the_address_space(device: FakeDevice, pinned: PinnedMap) -> None:
    pinned.register(TOP - SIZE, SIZE, BASE)
    region = pinned.find(TOP - 1)
    assert region is not None
    assert (region.end, region.borders, region.device_ptr_of(TOP - 1)) == (TOP, (), BASE + SIZE - 1)
    for outside in (TOP - SIZE - 1, TOP):
        assert outside not in region
        with pytest.raises(InvalidRangeError, match="is not in"):
            region.device_ptr_of(outside)
    for ptr, size in ((TOP - 1, 2), (TOP - SIZE + 1, TOP - 1), (TOP - 1, 0)):
        assert pinned.find(ptr, size) is None
    assert not any(address in pinned for address in (TOP, -1))
    for ptr in (0, TOP - 1):
        with pytest.raises(NotLockedError, match=f"{ptr:x}"):
            pinned.unlock(ptr)


def test_a_block_does_not_close_the_map_of_the_process() -> None:
    shared = pinned_map("host")
    with pytest.raises(TypeError, match="without a `with` block"), shared:
        pass
    assert not shared.closed


@pytest.mark.parametrize("missing", ["data_lock", "data_unlock", "is_pinned_ptr"])
def test_a_device_needs_its_three_methods(missing: str) -> None:
    methods = {name: print for name in ("data_lock", "data_unlock", "is_pinned_ptr") if name != missing}
    with pytest.raises(TypeError, match=missing):
        PinnedMap(type("Half", (), methods)())  # type: ignore[arg-type]


# ---- what the device raises ----


class OwnError(Exception):
    pass


OWN_ERRORS = (OwnError("x"), MemoryError())
REACHING = [
    *(
        (0, error)
        for error in (*OWN_ERRORS, KeyboardInterrupt(), SystemExit(3), AlreadyPinnedError("fakeCall", 5, "FAKE"))
    ),
    *((1, error) for error in OWN_ERRORS),
]


@pytest.mark.parametrize(("calls_before", "error"), REACHING)
def test_the_devices_own_error_reaches_the_caller(
    device: FakeDevice, pinned: PinnedMap, calls_before: int, error: BaseException
) -> None:
    device.fail(error, calls_before)
    with pytest.raises(type(error)) as caught:
        pinned.lock(BASE, SIZE)
        pinned.unlock(BASE)
    assert caught.value is error
    assert len(pinned) == len(device.locked) == calls_before, "nothing is locked, or all is as before the unlock"
    assert pinned.lock(BASE, SIZE) == BASE + LOCKED_OFFSET, "and it can be tried again"
    with pinned:
        assert not pinned.closed
    assert pinned.closed
    assert device.locked == {}


def test_errors_are_of_the_kinds_that_python_has() -> None:
    kinds = {InvalidRangeError: ValueError, PartialOverlapError: InvalidRangeError, NotLockedError: LookupError}
    assert all(issubclass(error, kind) and issubclass(error, PinningError) for error, kind in kinds.items())
    error = refusal()
    assert str(error) == "fakeCall failed: FAKE_UNKNOWN (999); ask the vendor"
    assert (error.call, error.code, error.name) == ("fakeCall", 999, "FAKE_UNKNOWN")


@pytest.mark.parametrize("locked_first", [False, True], ids=["before the call", "after the call"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_inside_data_unlock_leaves_nothing_locked(locked_first: bool, error: type[BaseException]) -> None:
    class Interrupted(FakeDevice):
        def data_unlock(self, ptr: int) -> None:
            interrupt, self.interrupts = self.interrupts, False
            if interrupt and not locked_first:
                raise error(3)
            if ptr not in self.locked:
                raise refusal()
            super().data_unlock(ptr)
            if interrupt:
                raise error(3)

        interrupts = True

    def unlock() -> None:
        with pytest.raises(error) as raised:
            pinned.unlock(BASE)
            for _ in range(100):
                time.sleep(0.01)
        assert raised.value.args == ((3,) if threading.current_thread() is threading.main_thread() else ())

    device = Interrupted()
    pinned = PinnedMap(device)
    runs: list[Callable[[], object]] = [unlock, lambda: Background(unlock).result()]
    for run in runs:  # Ctrl-C is raised in the thread that it interrupted
        device.interrupts = True
        pinned.lock(BASE, SIZE)
        run()
        assert device.locked == {}
        assert len(pinned) == 0


def test_ctrl_c_inside_data_unlock_before_the_device_refuses(device: FakeDevice, pinned: PinnedMap) -> None:
    pinned.lock(BASE, SIZE)
    device.fail(KeyboardInterrupt())
    device.fail(refusal(), calls_before=1)
    with pytest.raises(KeyboardInterrupt):
        try:
            pinned.unlock(BASE)
        finally:
            for _ in range(100):
                time.sleep(0.01)
    assert pinned.find(BASE, SIZE) is not None
    pinned.unlock(BASE)
    assert device.locked == {}


@pytest.mark.parametrize("answer", [None, "0x10", 1.5, -1, TOP])
def test_a_device_pointer_that_is_none_is_an_error(answer: object) -> None:
    device = FakeDevice()
    lock = device.data_lock
    device.data_lock = lambda *of: (lock(*of), answer)[1]  # type: ignore[method-assign,assignment,return-value]
    pinned = PinnedMap(device)
    with pytest.raises(TypeError, match=r"fake:0.data_lock returned .*; it must return the device's address"):
        pinned.lock(BASE, SIZE)
    answer = TOP - SIZE + 1
    with pytest.raises(InvalidRangeError, match=r"fake:0.data_lock returned .* bytes there pass 2\^64"):
        pinned.lock(BASE, SIZE)
    assert (len(pinned), device.locked, device.wrong) == (0, {}, [])


@pytest.mark.parametrize("answer", [5, (1, 2), (BASE, "x", 3)])
def test_a_pinned_range_that_is_none_is_an_error(device: FakeDevice, pinned: PinnedMap, answer: object) -> None:
    device.fail(AlreadyPinnedError("fakeRegister", 1, "FAKE_PINNED"))
    device.is_pinned_ptr = lambda _: answer  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(TypeError, match=r"fake:0.is_pinned_ptr returned .*; it must return the base, the size and"):
        pinned.lock(BASE, SIZE)
    assert len(pinned) == 0


# ---- memory that other code has pinned ----


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


def test_a_smaller_range_that_others_pin_no_more_is_not_in_the_way(device: FakeDevice, pinned: PinnedMap) -> None:
    device.foreign = {BASE: SIZE // 2}
    pinned.lock(BASE, 64)
    device.foreign = {BASE: SIZE}
    ptr = BASE + SIZE - 64
    assert pinned.lock(ptr, 64) == ptr + FOREIGN_OFFSET
    assert [(region.start, region.size, region.external) for region in pinned] == [(BASE, SIZE, True)]


@pytest.mark.parametrize("anew", [False, True])
def test_threads_that_lock_parts_of_what_someone_else_has_pinned(
    device: FakeDevice, pinned: PinnedMap, anew: bool
) -> None:
    parts = [BASE + part * SIZE // 8 for part in range(8)]
    stops = [("is_pinned_ptr", BASE)] if anew else [("data_lock", BASE), ("is_pinned_ptr", parts[1])]
    device.foreign = {BASE: SIZE // 2}
    old = [Hold(pinned, BASE, 64, None, None, None)] if anew else []
    device.foreign = {BASE: SIZE}
    with ExitStack() as stack:
        gates = [stack.enter_context(device.stopping(*each)) for each in stops]
        threads = [Background(lambda ptr=ptr: pinned.lock(ptr, 64)) for ptr in parts]  # type: ignore[misc]
        assert all(gate.reached.wait(WAIT) for gate in gates)
        let_others_run()
    assert [thread.result() for thread in threads] == [ptr + FOREIGN_OFFSET for ptr in parts]
    for each in old:
        each.unlock()
    (region,) = pinned
    assert (region.start, region.size, region.references, region.external) == (BASE, SIZE, len(parts), True)
    for ptr in parts:
        pinned.unlock(ptr)
    assert len(pinned) == device.count("data_unlock") == 0


def test_a_range_of_which_a_part_is_being_unlocked_waits_for_that(device: FakeDevice, pinned: PinnedMap) -> None:
    pinned.lock(BASE, SIZE // 2)
    with device.stopping("data_unlock", BASE) as gate:
        unlocking = Background(lambda: pinned.unlock(BASE))
        assert gate.reached.wait(WAIT)
        locking = Background(lambda: pinned.lock(BASE, SIZE))
        let_others_run()
    unlocking.result()
    locking.result()
    assert device.locked == {BASE: SIZE}


# ---- other devices ----


def test_a_device_that_promises_no_coherence_is_asked_with_three_arguments(
    device: FakeDevice, pinned: PinnedMap
) -> None:
    for at, wish in enumerate((None, False)):
        pinned.lock(BASE + at, 1, coherent=wish)
    assert [region.coherent for region in pinned] == [None, None]
    assert "coherent=None" in repr(next(iter(pinned)))
    with pytest.raises(PinningError, match=r"coherent=True.*does not promise"):
        pinned.lock(BASE, 1, coherent=True)


def test_pieces_whose_device_pointers_do_not_follow_one_another(device: FakeDevice, pinned: PinnedMap) -> None:
    scattered = device.data_lock
    device.data_lock = lambda ptr, size, read_only: scattered(ptr, size, read_only) + ptr  # type: ignore[method-assign]
    with pytest.raises(PinningError, match="contiguous"):
        pinned.lock(BASE, 10, piece=4)
    assert len(pinned) == len(device.locked) == 0


# ---- threads ----


@pytest.mark.parametrize("method", ["data_lock", "data_unlock", "is_pinned_ptr"])
def test_a_slow_vendor_call_delays_nothing_else(device: FakeDevice, pinned: PinnedMap, method: str) -> None:
    other = BASE + 2 * SIZE
    pinned.lock(other, SIZE)
    asks, locks = method == "is_pinned_ptr", method != "data_unlock"
    device.foreign = {BASE: SIZE} if asks else {}
    if method != "data_lock":
        pinned.lock(BASE, SIZE)
    with device.stopping(method, BASE) as gate:
        slow = Background(lambda: pinned.lock(BASE, SIZE) if locks else pinned.unlock(BASE))
        assert gate.reached.wait(WAIT)

        def the_rest() -> None:
            assert pinned.find(other) is not None
            assert (pinned.find(BASE) is not None) == asks
            if asks:
                assert pinned.lock(BASE, 16) == BASE + FOREIGN_OFFSET
                pinned.unlock(BASE)
            pinned.lock(other, 1)
            pinned.unlock(other)
            pinned.unlock(other)
            pinned.lock(other, SIZE)
            pinned.register(BASE + SIZE, SIZE, 1)
            pinned.unregister(BASE + SIZE)
            assert len(pinned) == len(list(pinned)) == 1 + asks
            with pytest.raises(NotLockedError):
                pinned.unlock(BASE - 1)

        Background(the_rest).result()
        assert slow.is_alive()
    slow.result()


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


def test_a_registration_that_has_waited_while_the_map_was_closed_is_undone(
    device: FakeDevice, pinned: PinnedMap
) -> None:
    pinned.lock(BASE, SIZE)
    with device.stopping("data_unlock", BASE) as gate:
        unlocking = Background(lambda: pinned.unlock(BASE))
        assert gate.reached.wait(WAIT)
        registering = Background(lambda: pinned.register(BASE, SIZE, 1))
        let_others_run()
        pinned.close(wait=False)
    unlocking.result()
    with pytest.raises(PinningError, match="closed"):
        registering.result()
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


def test_of_two_threads_that_unregister_one_does(pinned: PinnedMap) -> None:
    memory, external = Memory(4), pinning.budget().external

    def unregister(_: int) -> bool:
        try:
            pinned.unregister(memory.ptr)
        except NotLockedError:
            return False
        return True

    for _ in range(200):
        pinned.register(memory.ptr, memory.size, 1 << 40)
        assert sorted(in_threads(unregister, range(2))) == [False, True]
        assert pinning.budget().external == external


def test_an_unlock_while_the_map_is_being_closed_which_the_device_refuses(device: FakeDevice) -> None:
    buffer, on = np.ones(10_000, "u1"), pinned_map(device)
    lock = pinning.lock(buffer, device=device)
    with device.stopping("data_unlock", lock.ptr) as gate:
        closing = Background(on.close)
        assert gate.reached.wait(WAIT)
        unlocking = Background(lock.unlock)
        unlocking.join(0.05)
        gate.open(VendorError("fakeUnregister", 1, "FAKE_FAILURE"))
        with pytest.raises(VendorError):
            closing.result()
        unlocking.result()
    assert (lock.held, list(on), device.locked) == (False, [], {})

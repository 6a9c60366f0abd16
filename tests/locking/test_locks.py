# SPDX-License-Identifier: Apache-2.0
"""pinning.lock and related functions: handles of all kinds of buffers, on a device that records its calls."""

from __future__ import annotations

import gc
import mmap
import pickle
import subprocess
import sys
import threading
import weakref
from array import array
from collections.abc import Callable
from contextlib import suppress
from itertools import permutations
from multiprocessing.shared_memory import SharedMemory
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import pinning
from child_process import run_in_child
from fake_device import LOCKED_OFFSET, WAIT, Background, CoarseFakeDevice, FakeDevice, in_threads
from pinning import (
    InvalidRangeError,
    LockLimitError,
    NotLockedError,
    PartialOverlapError,
    PinningError,
    VendorError,
)
from pinning.arrays import pinned
from pinning.conformance.faults import eventually
from pinning.locking.mapped import lock_mapped, unlock_unmapped
from pinning.machine.room import system_memory
from pinning.map.pinned_map import Hold
from pinning.plugin import LockLimit

MIB = 1 << 20
MAP_NORESERVE = 0x4000  # on x86-64 and arm64; Python defines it since 3.13


def refusal() -> VendorError:
    return VendorError("fakeCall", 999, "FAKE_UNKNOWN")


def address_of(array: np.ndarray[Any, Any]) -> int:
    return int(array.ctypes.data)


class Tensor:
    """The attributes of a CPU tensor."""

    device = "cpu"

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values
        self.shape = values.shape

    def data_ptr(self) -> int:
        return address_of(self.values)

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.values.itemsize for step in self.values.strides)

    def element_size(self) -> int:
        return int(self.values.itemsize)


# ---- one lock ----


def test_a_lock_says_what_is_locked_and_where(device: FakeDevice) -> None:
    values = np.arange(1000, dtype=np.int32)
    with pinning.lock(values, device=device) as lock:
        assert (lock.ptr, lock.size) == (address_of(values), 4000)
        assert lock.device_ptr == lock.ptr + LOCKED_OFFSET
        assert lock.device is device
        assert lock.held
        assert lock.region == pinning.find(values, device=device)
        assert [lock.region] == pinning.regions(device)
        for part in (f"{lock.ptr:#x}", "4000 bytes", "fake:0"):
            assert part in repr(lock)
        assert "unlocked" not in repr(lock)
    assert not lock.held
    assert lock.region is None
    assert "unlocked" in repr(lock)
    with pytest.raises(NotLockedError, match=r"nothing would be locked: use `with pinning.lock"), lock:
        pass
    assert device.locked == {}


BUFFERS = {
    "bytearray": lambda: bytearray(5000),
    "bytes": lambda: bytes(5000),
    "array": lambda: array("d", range(700)),
    "memoryview": lambda: memoryview(bytearray(5000))[100:200],
    "numpy": lambda: np.ones((30, 40)),
    "numpy read only": lambda: np.broadcast_to(np.ones(1), (1,)),
    "numpy reversed": lambda: np.ones(1000)[::-1],
    "numpy strided": lambda: np.ones((30, 40))[::2, 5:30:3],
    "mmap": lambda: mmap.mmap(-1, 3 * mmap.PAGESIZE),
    "tensor": lambda: Tensor(np.ones(100)),
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_every_kind_of_buffer(device: FakeDevice, kind: str) -> None:
    buffer = BUFFERS[kind]()
    assert not pinning.is_locked(buffer, device=device)
    lock = pinning.lock(buffer, device=device)
    assert device.locked == {lock.ptr: lock.size}
    assert pinning.is_locked(buffer, device=device)
    assert pinning.is_locked(lock.ptr, lock.size, device=device)
    assert not pinning.is_locked(lock.ptr, lock.size + 1, device=device)
    with pinning.lock(buffer, device=device) as second:
        assert second.device_ptr == lock.device_ptr
        assert len(device.locked) == 1
    pinning.unlock(buffer, device=device)
    assert not lock.held
    assert device.locked == {}


def test_shared_memory(device: FakeDevice) -> None:
    memory = SharedMemory(create=True, size=10000)
    try:
        lock = pinning.lock(memory, device=device)
        with pytest.raises(BufferError):
            memory.close()
        lock.unlock()
    finally:
        memory.close()
        memory.unlink()
    with pytest.raises(InvalidRangeError, match="closed"):
        pinning.lock(memory, device=device)


def test_an_address_the_first_bytes_and_a_view_with_gaps(device: FakeDevice) -> None:
    values = np.zeros(1000, np.uint8)
    start = address_of(values)
    for first, size, given in ((0, 500, ((start, 500),)), (0, 40, (values, 40)), (10, 81, (values[90:9:-10],))):
        with pinning.lock(*given, device=device) as lock:
            assert (lock.ptr, lock.size) == (start + first, size)
            assert pinning.is_locked(*given, device=device)
            for integer in (int, np.uint64, np.int64):
                assert pinning.is_locked(integer(lock.ptr), device=device)
                assert pinning.find(integer(lock.ptr + 1), integer(size - 1), device=device) == lock.region
                assert not pinning.is_locked(integer(lock.ptr + size), device=device)
            assert not pinning.is_locked(lock.ptr, size + 1, device=device)
            assert not pinning.is_locked(lock.ptr - 1, device=device)
            assert not pinning.is_locked(values, device=device)
        assert not pinning.is_locked(*given, device=device)


@pytest.mark.parametrize(
    ("buffer", "error"),
    [
        (b"", InvalidRangeError),
        (np.empty(0), InvalidRangeError),
        ((0, 10), InvalidRangeError),
        ((4096, -1), InvalidRangeError),
        ((1 << 64, 1), InvalidRangeError),
        (3.0, TypeError),
        (None, TypeError),
        ("text", TypeError),
        (object(), TypeError),
    ],
)
def test_what_is_no_buffer(device: FakeDevice, buffer: object, error: type[Exception]) -> None:
    for attempt in (pinning.lock, pinning.is_locked, pinning.unlock, lock_mapped, unlock_unmapped):
        with pytest.raises(error):
            attempt(buffer, device=device)  # type: ignore[operator]
    assert device.calls == []


def test_what_the_caller_and_the_buffer_say_reaches_the_device(device: FakeDevice) -> None:
    for buffer, given, passed in (
        *((bytearray(10), True, True), (bytearray(10), False, False)),
        *((bytearray(10), None, False), (bytes(10), None, True)),
    ):
        with pinning.lock(buffer, device=device, read_only=given):
            assert device.calls[-1].read_only is passed
        with pinning.lock_async(buffer, device=device, read_only=given).wait():
            assert [call.read_only for call in device.calls if call.method == "data_lock"][-1] is passed
    with pinning.lock(bytearray(10), device=device, piece=4) as lock:
        assert lock.region is not None
        assert lock.region.borders == (lock.ptr + 4, lock.ptr + 8)


def test_coherence_is_a_choice(device: FakeDevice) -> None:
    coarse = CoarseFakeDevice(True, False, name="fake:coarse")
    for wish, got in ((None, True), (True, True), (False, False)):
        with (
            pinning.lock(bytearray(10), device=coarse, coherent=wish) as lock,
            pinning.lock(bytearray(3 * 4096), device=coarse, coherent=wish, unit=4096) as in_units,
            pinning.locked(bytearray(20), bytearray(30), device=coarse, coherent=wish) as locks,
        ):
            assert [each.region.coherent for each in (lock, in_units, *locks) if each.region] == [got] * 4
    assert (coarse.locked, coarse.wrong) == ({}, [])


# ---- several locks ----


def test_locks_inside_one_another_share_a_region_and_are_given_up_once_each(device: FakeDevice) -> None:
    values = np.zeros(1000)
    with pinning.lock(values, device=device) as outer, pinning.lock(values[10:20], device=device) as inner:
        assert inner.device_ptr == outer.device_ptr + 80
        assert outer.region is not None
        assert (inner.region, outer.region.references) == (outer.region, 2)
        for _ in range(3):
            outer.unlock()
        assert [outer.held, inner.held] == [False, True]
        assert pinning.is_locked(values, device=device)
    assert device.locked == {}


def test_locked_takes_all_or_none(device: FakeDevice) -> None:
    first, second, third = bytearray(100), np.zeros(50), bytearray(7)
    with pinning.locked(first, second, third, device=device, read_only=True) as locks:
        assert [lock.size for lock in locks] == [100, 400, 7]
        assert len(device.locked) == 3
        assert all(call.read_only for call in device.calls)
    assert device.locked == {}
    error = refusal()
    device.fail(error, calls_before=2)
    with pytest.raises(VendorError) as caught, pinning.locked(first, second, third, device=device):
        pytest.fail("the block is not entered")
    assert caught.value is error
    assert device.locked == {}
    with pytest.raises(TypeError), pinning.locked(first, None, device=device):
        pytest.fail("the block is not entered")
    assert device.locked == {}
    with pinning.locked(device=device) as locks:
        assert locks == ()


@pytest.mark.parametrize("call", [pinning.locked, pinned])
def test_several_are_locked_by_each_with_block_and_a_call_without_one_warns(device: FakeDevice, call: Any) -> None:
    with pytest.warns(RuntimeWarning, match=r"(locked|pinned)\(...\) does nothing without `with`"):
        call(bytearray(10), device=device)
        gc.collect()
    block = call(bytearray(10), device=device)
    for _ in range(2):
        with block:
            assert len(device.locked) == 1
    assert device.locked == {}


def test_locked_takes_buffers_that_overlap_one_another(device: FakeDevice) -> None:
    values, other = np.zeros(1000, np.uint8), np.zeros(10, np.uint8)
    parts = [values[10:20], values[:100], other, values[50:200], values[200:300]]
    with pinning.locked(*parts, device=device) as locks:
        assert [(lock.ptr, lock.size) for lock in locks] == [(address_of(part), part.size) for part in parts]
        assert sorted(device.locked.values()) == [10, 100, 200]
        assert sum(region.references for region in pinning.regions(device)) == len(parts)
    assert device.locked == {}


def test_an_overlap_says_what_to_unlock_and_then_to_lock(device: FakeDevice) -> None:
    values = np.zeros(1000, np.uint8)
    start = address_of(values)
    first = pinning.lock(values[:600], device=device)
    way_out = rf"unlock \[{start:#x}, {start + 600:#x}\), then lock \[{start:#x}, {start + 1000:#x}\)"
    with pytest.raises(PartialOverlapError, match=way_out) as caught:
        pinning.lock(values[500:], device=device)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.wanted, error.region, str(error)) == ((start + 500, 500), (start, 600), str(caught.value))
    with pytest.raises(PartialOverlapError, match=rf"unlock \[{start:#x}, {start + 600:#x}\) first"):
        pinning.pinned_map(device).register(start + 5, 5, 0)
    first.unlock()
    with pinning.lock(error.both, device=device) as lock:
        assert (lock.ptr, lock.size) == (start, 1000)


def test_an_overlap_at_the_top_of_all_memory(device: FakeDevice) -> None:
    pinned, top = pinning.PinnedMap(device), 2**64
    pinned.register(top - 4096, 4096, 0x1000)
    with pytest.raises(PartialOverlapError) as caught:
        pinned.lock(top - 8192, 6000)
    assert caught.value.both == (top - 8192, 8192)


def test_an_overlap_with_several_regions_names_all_that_are_in_the_way(device: FakeDevice) -> None:
    values = np.zeros(1000, np.uint8)
    start = address_of(values)
    pinning.budget(idle=True)
    try:
        pinning.lock(values[300:310], device=device).unlock()  # idle, so not in the way
        parts = [pinning.lock(values[at : at + 100], device=device) for at in (0, 200, 890)]
        told = rf"{start + 100:#x}\) \(100 bytes\) and 2 more; .* unlock these, then lock .*{start + 990:#x}\)"
        with pytest.raises(PartialOverlapError, match=told) as caught:
            pinning.lock(values[50:900], device=device)
        for part in parts:
            part.unlock()
        with pinning.lock(caught.value.both, device=device) as lock:
            assert (lock.ptr, lock.size) == (start, 990)
    finally:
        pinning.budget(idle=False)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_block_that_raises_unlocks(device: FakeDevice, error: type[BaseException]) -> None:
    with pytest.raises(error), pinning.lock(bytearray(100), device=device):
        assert device.locked
        raise error
    assert device.locked == {}


@pytest.mark.parametrize("half_way", [False, True])
def test_a_refused_unlock_leaves_the_lock_held_and_can_be_tried_again(device: FakeDevice, half_way: bool) -> None:
    buffer = bytearray(100)
    lock = pinning.lock(buffer, device=device, piece=30)
    device.fail(refusal(), calls_before=half_way)
    with pytest.raises(VendorError):
        pinning.unlock(buffer, device=device) if half_way else lock.unlock()
    assert lock.held
    assert (lock.region is None) == half_way, "what is half unlocked is not to be copied from"
    assert pinning.is_locked(buffer, device=device) != half_way
    with pytest.raises(BufferError):
        buffer.append(0)
    pinning.unlock(buffer, device=device) if half_way else lock.unlock()
    assert not lock.held
    assert device.locked == {}
    buffer.append(0)


# ---- unlock by buffer ----


def test_unlock_takes_the_youngest_lock_of_exactly_this_buffer(device: FakeDevice) -> None:
    values = np.zeros(100)
    views = values, values[:9], values[:9], values[3:4]
    outer, old, young, other = (pinning.lock(view, device=device) for view in views)
    pinning.unlock(values[:9], device=device)
    assert [lock.held for lock in (outer, old, young, other)] == [True, True, False, True]
    pinning.unlock(values[:9], device=device)
    assert [lock.held for lock in (outer, old, young, other)] == [True, False, False, True]
    pinning.unlock(address_of(values) + 5, device=device)  # no lock has exactly this range: the youngest
    assert [lock.held for lock in (outer, old, young, other)] == [True, False, False, False]
    pinning.unlock(outer)
    assert device.locked == {}
    for gone in (values, address_of(values), (address_of(values), 8)):
        with pytest.raises(NotLockedError, match=f"{address_of(values):#x}"):
            pinning.unlock(gone, device=device)
    pinning.unlock(outer)


def test_unlock_takes_no_lock_that_another_handle_has(device: FakeDevice) -> None:
    """An arena has such a lock of all its memory. Only a lock made through the map itself belongs to no handle."""
    values = np.zeros(100)
    pinned_map = pinning.pinned_map(device)
    hold = Hold(pinned_map, address_of(values), 800, None, None, None)
    for through_the_map in (False, True):
        if through_the_map:
            pinned_map.lock(address_of(values), 8)
            pinning.unlock(values, device=device)
        for where in (device, None):
            with pytest.raises(NotLockedError):
                pinning.unlock(values, device=where)
        assert hold.held
        assert device.locked == {address_of(values): 800}
    assert hold.unlock()
    assert device.locked == {}


def test_without_a_device_all_of_them_are_looked_at(device: FakeDevice) -> None:
    other = FakeDevice("fake:1")
    values = np.zeros(100)
    first, second = pinning.lock(values, device=device), pinning.lock(values, device=other)
    assert pinning.find(values) is not None
    assert pinning.regions(other) == [second.region]
    assert {first.region, second.region} <= set(pinning.regions())
    for _ in range(2):
        pinning.unlock(values)
    assert [first.held, second.held] == [False, False]
    assert pinning.find(values) is None
    with pytest.raises(NotLockedError):
        pinning.unlock(values)


def test_threads_that_lock_and_unlock_by_buffer(device: FakeDevice) -> None:
    shared, apart = np.zeros(1000), [np.zeros(1000) for _ in range(4)]
    locks = [pinning.lock(shared, device=device)]

    def work(own: np.ndarray[Any, Any]) -> None:
        for _ in range(300):
            first = pinning.lock(own, device=device)
            locks.append(pinning.lock(shared, device=device))
            pinning.unlock(own, device=device)
            assert not first.held
            pinning.unlock(shared, device=device)  # its own lock, or another thread's: one in total

    in_threads(work, apart)
    assert sum(lock.held for lock in locks) == 1
    (region,) = pinning.regions(device)
    assert region.references == 1
    pinning.unlock(shared, device=device)


def test_two_threads_that_unlock_one_buffer_take_two_locks(device: FakeDevice) -> None:
    """While the vendor unlocks for one thread, another thread can no longer release that lock."""
    values = np.zeros(100)
    lock = pinning.lock(values, device=device)
    with device.stopping("data_unlock", lock.ptr) as gate:
        first = Background(lambda: pinning.unlock(values, device=device))
        assert gate.reached.wait(WAIT)
        second = Background(lambda: pinning.unlock(values, device=device))
        twice = Background(lock.unlock)
        twice.result()
    first.result()
    with pytest.raises(NotLockedError):
        second.result()


# ---- the owner of the memory ----


def test_the_owner_stays_in_place_while_locked(device: FakeDevice) -> None:
    changes: list[tuple[Any, Callable[[Any], object]]] = [
        (bytearray(100), lambda owner: owner.extend(b"x" * 1000)),
        (mmap.mmap(-1, mmap.PAGESIZE), lambda owner: owner.close()),
        (memoryview(bytearray(10)), lambda owner: owner.release()),
    ]
    for owner, change in changes:
        with pinning.lock(owner, device=device), pytest.raises(BufferError):
            change(owner)
        change(owner)


def test_the_owner_is_kept_alive_while_locked(device: FakeDevice) -> None:
    class Owned(np.ndarray[Any, Any]):
        pass

    values = np.zeros(100).view(Owned)
    alive = weakref.ref(values)
    lock = pinning.lock(values, device=device)
    del values
    gc.collect()
    assert alive() is not None
    lock.unlock()
    assert alive() is None


def test_a_refused_lock_lets_go_of_its_owner(device: FakeDevice) -> None:
    buffer = bytearray(100)
    device.fail(refusal())
    with suppress(VendorError):  # not pytest.raises, which keeps the error, and so its frames
        pinning.lock(buffer, device=device)
    assert device.count("data_lock") == 1
    buffer.append(0)


def test_a_closed_map_lets_go_of_its_owners(device: FakeDevice) -> None:
    other = FakeDevice("fake:closing")
    buffer = bytearray(100)
    lock = pinning.lock(buffer, device=other)
    pinning.pinned_map(other).close()
    assert other.locked == {}
    assert not lock.held
    lock.unlock()
    buffer.append(0)
    with pytest.raises(PinningError, match="closed"):
        pinning.lock(buffer, device=other)


@pytest.mark.parametrize("given_up", list(permutations(range(3), 2)))
def test_a_native_map_that_closes_gives_up_each_lock_that_is_left(given_up: tuple[int, int]) -> None:
    def child() -> None:
        locks = [pinning.lock(bytearray(100), device="host") for _ in range(3)]
        for each in given_up:
            locks[each].unlock()
        on = pinning.pinned_map("host")
        on.close()
        assert len(on) == 0 and not any(lock.held for lock in locks)

    run_in_child(child)


# ---- dropped locks ----


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_a_dropped_lock_warns_and_unlocks(device: FakeDevice, in_a_cycle: bool) -> None:
    buffer = bytearray(100)
    lock: Any = pinning.lock(buffer, device=device)
    if in_a_cycle:
        lock.itself = lock
    with pytest.warns(ResourceWarning, match=f"{lock.ptr:#x}.*dropped while held"):
        del lock
        gc.collect() if in_a_cycle else None
    assert device.locked == {}
    buffer.append(0)


@pytest.mark.parametrize(
    "statement",
    [
        "pinning.lock(buffer, device=device)",
        "ptr = pinning.lock((buffer.ctypes.data, 100), device=device).device_ptr",
        "pinning.lock_async(buffer, device=device)",
        "pinning.lock_async(buffer, device=device).wait()",
    ],
)
def test_a_lock_that_its_statement_does_not_keep_is_told_with_the_line(device: FakeDevice, statement: str) -> None:
    program = compile("\n\n" + statement, "program.py", "exec")
    with pytest.warns(RuntimeWarning, match="does not keep it") as told:
        exec(program, {"pinning": pinning, "device": device, "buffer": np.zeros(100)})
    assert [(each.filename, each.lineno) for each in told] == [("program.py", 3)]


def test_a_lock_that_was_kept_is_dropped_without_a_visible_warning(
    device: FakeDevice, recwarn: pytest.WarningsRecorder
) -> None:
    def keep_until_the_end() -> None:
        kept: Any = [pinning.lock(np.zeros(100), device=device)]
        kept.pop()
        for _ in range(3):
            kept = pinning.lock(np.zeros(100), device=device)  # the one before is dropped
        kept.itself = kept

    keep_until_the_end()
    gc.collect()
    with pinning.lock(np.zeros(100), device=device):
        pinning.lock(np.zeros(100), device=device).unlock()
    assert {each.category for each in recwarn} == {ResourceWarning}
    assert device.locked == {}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_lock_dropped_inside_the_devices_own_code_is_unlocked_after_it(device: FakeDevice) -> None:
    """The garbage collector can run anywhere, even while the device holds a mutex that its data_unlock needs."""

    class Owned(np.ndarray[Any, Any]):
        pass

    class Collecting(FakeDevice):
        def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int:
            with self.mutex:
                to_drop.clear()
                seen.append((dict(self.locked), alive() is not None))
                return super().data_lock(ptr, size, read_only)

        def data_unlock(self, ptr: int) -> None:
            assert self.mutex.acquire(timeout=WAIT)
            self.mutex.release()
            super().data_unlock(ptr)

        mutex = threading.Lock()

    seen: list[tuple[dict[int, int], bool]] = []
    to_drop: list[pinning.Lock] = []
    values = np.zeros(100).view(Owned)
    alive = weakref.ref(values)
    collecting = Collecting("fake:collecting")
    first = pinning.lock(values, device=collecting)
    to_drop += [first, pinning.lock(values, device=collecting), pinning.lock(bytearray(10), device=collecting)]
    del first
    before = dict(collecting.locked)
    del values
    with pinning.lock(bytearray(10), device=collecting) as lock:
        assert seen[-1] == (before, True), "it is still locked, and its memory there, while the device is busy"
        # By the call that has ended, or by the thread of deferred calls, which may have begun it.
        assert eventually(lambda: collecting.locked == {lock.ptr: 10} and alive() is None)
    assert collecting.wrong == []


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_so_is_one_that_is_dropped_while_the_device_unlocks_for_the_budget(device: FakeDevice) -> None:
    class Collecting(FakeDevice):
        def data_unlock(self, ptr: int) -> None:
            to_drop.clear()
            super().data_unlock(ptr)

    collecting = Collecting("fake:collecting")
    try:
        pinning.budget(idle=True)
        values = np.zeros(1000)
        pinning.lock(values, device=collecting).unlock()
        to_drop = [pinning.lock(bytearray(100), device=device)]
        pinning.give_back_idle()
    finally:
        pinning.budget(idle=False)
    assert not to_drop
    assert eventually(lambda: device.locked == {})


@pytest.mark.parametrize("refusals", [1, 2, 3])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_dropped_lock_whose_unlock_is_refused_is_unlocked_once_more_and_then_left(
    device: FakeDevice, refusals: int
) -> None:
    buffer = bytearray(100)
    lock = pinning.lock(buffer, device=device)
    ptr = lock.ptr
    for call in range(refusals):
        device.fail(refusal(), calls_before=call)
    del lock
    assert device.count("data_unlock") == 2
    assert device.locked == ({} if refusals == 1 else {ptr: 100})
    device.fail_no_more()
    buffer.append(0)  # nothing keeps it
    if refusals > 1:
        pinning.pinned_map(device).unlock(ptr)
    assert device.locked == {}


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_an_unlocked_lock_is_dropped_in_silence(device: FakeDevice, recwarn: pytest.WarningsRecorder) -> None:
    lock = pinning.lock(bytearray(100), device=device)
    lock.unlock()
    del lock
    gc.collect()
    assert not recwarn.list


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_a_warning_made_an_error_does_not_keep_it_locked(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: said.append(unraisable.exc_type))
    lock = pinning.lock(bytearray(100), device=device)
    del lock
    assert device.locked == {}
    assert said == [ResourceWarning]


def test_a_lock_that_is_being_made_can_be_looked_at(device: FakeDevice) -> None:
    seen: list[str] = []

    def look(*_: int) -> None:
        seen.extend(repr(each) for each in gc.get_objects() if isinstance(each, pinning.Lock))

    with pinning.lock(np.zeros(1 << 24, "u1"), device=device, progress=look):
        assert "<Lock that is being made>" in seen
    for half in (pinning.Lock.__new__(pinning.Lock), pinning.PendingLock.__new__(pinning.PendingLock)):
        with pytest.raises(AttributeError):
            half.device  # noqa: B018


# ---- before the vendor is called ----


def test_too_much_is_refused_with_the_command_that_raises_the_limit(device: FakeDevice) -> None:
    device.limit = LockLimit("RLIMIT_FAKE", 5000, 1000, "fakectl --raise")
    with pytest.raises(LockLimitError, match=r"RLIMIT_FAKE.*5000.*fakectl --raise") as caught:
        pinning.lock(bytearray(5001), device=device)
    assert "5001" in str(caught.value)
    assert isinstance(caught.value, MemoryError)
    assert device.calls == []
    values = np.zeros(4000, np.uint8)
    with pinning.lock(values, device=device):
        device.limit = LockLimit("RLIMIT_FAKE", 5000, 5000, "fakectl --raise")
        pinning.lock(values[:10], device=device).unlock()  # another lock of locked memory needs no room


def test_more_memory_than_the_machine_has(device: FakeDevice) -> None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    huge = mmap.mmap(-1, 2 * system_memory().limit, flags, mmap.PROT_READ)  # needs no memory in any mode of overcommit
    with pytest.raises(LockLimitError, match="memory"):
        pinning.lock(huge, device=device)
    assert device.calls == []


def test_progress_tells_of_pages_brought_in_and_what_it_raises_leaves_nothing_locked(device: FakeDevice) -> None:
    said: list[tuple[int, int]] = []
    for error in (KeyboardInterrupt, RuntimeError):
        mapped = mmap.mmap(-1, 40 * MIB)
        with pytest.raises(error):
            pinning.lock(mapped, device=device, progress=Mock(side_effect=error))
        assert device.calls == []
        mapped.close()
    mapped = mmap.mmap(-1, 40 * MIB)
    with pinning.lock(mapped, device=device, progress=lambda done, total: said.append((done, total))):
        assert {total for _, total in said} == {40 * MIB}
        assert [done for done, _ in said] == sorted(done for done, _ in said)
        assert said[-1][0] == 40 * MIB
        assert len(said) > 2
    mapped.close()


# ---- what other parts of a program may do ----


@pytest.mark.parametrize("address", [1 << 64, -1, np.int64(-5)])
def test_an_address_that_there_is_not_is_not_locked(device: FakeDevice, address: Any) -> None:
    with pytest.raises(NotLockedError, match=hex(address)):
        pinning.unlock(address)
    with pytest.raises(NotLockedError):
        pinning.unlock(address, device=device)
    assert not pinning.is_locked(address)
    assert pinning.find(address, device=device) is None


def test_other_users_of_pythonapi_are_left_alone() -> None:
    program = """
import ctypes
before = ctypes.pythonapi.PyObject_GetBuffer.argtypes, ctypes.pythonapi.PyBuffer_Release.argtypes
import pinning
assert (ctypes.pythonapi.PyObject_GetBuffer.argtypes, ctypes.pythonapi.PyBuffer_Release.argtypes) == before
ctypes.pythonapi.PyObject_GetBuffer.argtypes = ctypes.c_int, ctypes.c_int
assert not pinning.is_locked(bytearray(10))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

# SPDX-License-Identifier: Apache-2.0
"""The budget of the process, and idle memory, which stays registered without any lock."""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest

import c_api
import pinning
from child_process import run_in_child
from fake_device import WAIT, Background, CoarseFakeDevice, FakeDevice, in_threads
from fake_memory import FakeMemoryDevice
from folders import SUPPORT
from own_process import run
from pinning import InvalidRangeError, LockLimitError, VendorError
from pinning.budget import limits
from pinning.budget.cache import collect
from pinning.budget.checks import check_room
from pinning.conformance.faults import eventually
from pinning.machine.pressure import Pressure
from pinning.machine.room import system_memory
from pinning.map.pinned_map import hears_of_calls, watch_problem
from pinning.plugin import LockLimit

SIZE = 1 << 16


@pytest.fixture(autouse=True)
def budget() -> Iterator[None]:
    """Each test begins with the default budget; memory of earlier tests may still be locked, and stays so."""
    gc.collect()
    collect()
    yield
    pinning.budget(1.0, idle=False)


@pytest.fixture
def device(device: FakeDevice) -> Iterator[FakeDevice]:
    yield device
    pinning.give_back_idle()


def used() -> int:
    """Bytes of the budget that earlier tests, and other libraries, use."""
    now = pinning.budget()
    return now.used + now.external


def storage() -> object:
    """A buffer of a type that is not known to keep its memory while it is exported."""
    memory = numpy.zeros(SIZE, "u1")
    return SimpleNamespace(memory=memory, __array_interface__=memory.__array_interface__)


# ---- the limit ----


def test_the_limit_is_that_of_the_memory_to_begin_with() -> None:
    now = pinning.budget()
    assert now.limit is not None
    assert now.limit <= system_memory().limit
    assert now.source
    assert now.idle_limit == 0


def test_a_lock_beyond_the_budget_is_refused_before_anything_is_touched(device: FakeDevice) -> None:
    fixed = used()
    pinning.budget(fixed + SIZE + 100, idle=False)
    first = pinning.lock(numpy.zeros(SIZE, "u1"), device=device)
    calls = len(device.calls)
    touched: list[int] = []
    untouched = mmap.mmap(-1, 1 << 20)
    with pytest.raises(LockLimitError, match=r"1048576 bytes \(1 MiB\) is more than the budget .* pinning.budget\("):
        pinning.lock(untouched, device=device, progress=lambda done, total: touched.append(done))
    assert touched == []
    assert len(device.calls) == calls
    assert used() == fixed + SIZE
    with pytest.raises(LockLimitError):
        pinning.pinned_map(device).lock(0x10000, 101)
    pinning.pinned_map(device).lock(0x10000, 100)
    assert pinning.budget().free == 0
    pinning.pinned_map(device).unlock(0x10000)
    first.unlock()
    pinning.lock(numpy.zeros(100, "u1"), device=device).unlock()
    assert used() == fixed


def test_a_lock_waits_for_the_undoing_of_another(device: FakeDevice) -> None:
    one, other = (numpy.ones(4 * SIZE, "u1") for _ in range(2))
    pinning.budget(used() + 4 * SIZE)
    with device.stopping("data_unlock", one.ctypes.data) as undoing:
        with device.stopping("data_lock", one.ctypes.data + SIZE) as gate:
            pending = pinning.lock_async(one, device=device, piece=SIZE)
            assert gate.reached.wait(WAIT)
            cancelling = Background(pending.cancel)
            cancelling.join(0.05)
        assert undoing.reached.wait(WAIT)
        locking = Background(lambda: pinning.lock(other, device=device).unlock())
        locking.join(0.05)
        assert locking.is_alive()
    cancelling.result()
    locking.result()


def test_a_lock_within_an_unlock_does_not_wait_for_it(device: FakeDevice) -> None:
    class Locking(FakeDevice):
        def data_unlock(self, ptr: int) -> None:
            with pytest.raises(LockLimitError):
                pinning.pinned_map(device).lock(0x50000, 100)
            super().data_unlock(ptr)

    before = used()
    pinning.budget(before + 100, idle=False)
    locking = pinning.pinned_map(Locking("locking:0"))
    locking.lock(0x10000, 100)
    locking.unlock(0x10000)
    assert (used(), device.count("data_lock")) == (before, 0)


def test_nor_do_two_such_locks_wait_for_each_other(device: FakeDevice) -> None:
    class Locking(FakeDevice):
        def data_unlock(self, ptr: int) -> None:
            both.wait(WAIT)
            with suppress(LockLimitError):  # unless the other thread has made room by now
                pinning.pinned_map(device).lock(ptr + 0x1000, 100)
                pinning.pinned_map(device).unlock(ptr + 0x1000)
            super().data_unlock(ptr)

    both = threading.Barrier(2)
    pinning.budget(used() + 200, idle=False)
    locking = pinning.pinned_map(Locking("locking:0"))
    for ptr in (0x10000, 0x20000):
        locking.lock(ptr, 100)
    in_threads(locking.unlock, (0x10000, 0x20000))


def test_what_others_have_pinned_counts(device: FakeDevice) -> None:
    before = pinning.budget()
    pinned = pinning.pinned_map(device)
    pinned.register(0x10000, 4096, 0x10000)
    limit = before.used + before.external + 4096 + 10
    assert pinning.budget(limit, idle=True).idle_limit == limit
    assert pinning.budget(idle=False).free == 10
    for at_most in (limit, before.external + 4095):  # the latter is less than others have pinned
        pinning.budget(at_most)
        with pytest.raises(LockLimitError, match="others have pinned"):
            pinned.lock(0x30000, 11)
    pinned.unregister(0x10000)


def test_what_a_copy_uses_makes_room_once_the_copy_is_over() -> None:
    one, other = (numpy.ones(SIZE, "u1") for _ in range(2))
    device = FakeMemoryDevice()
    with pinning.Queue(device) as queue, pinning.alloc(SIZE, device=device) as there:
        pinning.budget(used() + SIZE)
        for _ in range(20):
            with pinning.lock(one, device=device):
                pinning.copy_async(there, one, queue=queue)
            with pytest.raises(LockLimitError, match="wait for copies that still use what was unlocked"):
                pinning.lock(other, device=device)
            device.release()
            pinning.lock(other, device=device).unlock()


@pytest.mark.parametrize("part", [slice(None, 100), slice(-100, None), slice(100, 200)], ids=["begin", "end", "middle"])
def test_an_overlap_is_told_before_the_want_of_room(device: FakeDevice, part: slice) -> None:
    array = numpy.zeros(SIZE, "u1")
    with pinning.lock(array[part], device=device):
        pinning.budget(used() + 1000)
        with pytest.raises(LockLimitError if part.start == 100 else pinning.PartialOverlapError):
            pinning.lock(array, device=device)


def test_a_budget_below_what_is_locked_takes_nothing_away(device: FakeDevice) -> None:
    with pinning.lock(numpy.zeros(SIZE, "u1"), device=device) as lock:
        assert pinning.budget(0).limit == 0
        assert lock.held
        with pytest.raises(LockLimitError):
            pinning.lock(bytearray(1), device=device)
        assert pinning.budget().free == 0


@pytest.mark.parametrize("kind", [float, numpy.float32, numpy.float64])
def test_a_fraction_is_of_the_memory(kind: type[Any]) -> None:
    whole = pinning.budget(1.0).limit
    assert whole is not None
    half = pinning.budget(kind(0.5))
    assert half.limit == whole // 2
    assert half.source.startswith("pinning.budget(0.5), of ")
    assert pinning.budget(idle=SIZE) == half._replace(idle_limit=SIZE)


@pytest.mark.parametrize("limit", [-1, 1.5, 0.0, -0.5, float("nan"), True, "1", 1 << 64])
def test_no_limit(limit: object) -> None:
    before = pinning.budget()
    with pytest.raises((InvalidRangeError, TypeError), match="limit is"):
        pinning.budget(limit)  # type: ignore[arg-type]
    with pytest.raises(InvalidRangeError, match="idle is -1"):
        pinning.budget(100, idle=-1)
    assert pinning.budget() == before


# ---- what is idle ----


def test_relock_without_a_vendor_call(device: FakeDevice) -> None:
    array = numpy.zeros(SIZE, "u1")
    pinning.budget(1.0)
    pinning.lock(array, device=device).unlock()
    assert device.locked == {}, "nothing is kept until asked for, and a limit does not ask"
    pinning.budget(idle=True)
    before = pinning.budget()
    lock = pinning.lock(array, device=device)
    device_ptr = lock.device_ptr
    lock.unlock()
    assert not lock.held
    assert not pinning.is_locked(array, device=device)
    assert pinning.find(array, device=device) is None
    assert len(pinning.regions(device)) == len(pinning.pinned_map(device)) == 0
    (region,) = pinning.regions(device, idle=True)
    assert (region.idle, region.references, region.size) == (True, 0, SIZE)
    assert pinning.budget().idle == before.idle + SIZE
    with pytest.raises(pinning.NotLockedError, match="give_back_idle"):
        pinning.unlock(array, device=device)
    pinning.budget(1.0)
    for part in (array, array[100:200], array.reshape(256, -1)[3:].T, (array.ctypes.data + 5, 10)):
        with pinning.lock(part, device=device) as again:
            assert (again.held, lock.held) == (True, False)
            assert again.region is not None
            assert again.region.references == 1
    assert again.device_ptr == device_ptr + 5
    assert (device.count("data_lock"), device.count("data_unlock")) == (2, 1)
    assert pinning.give_back_idle() == SIZE
    assert device.locked == {}
    pinning.lock(array, device=device).unlock()
    pinning.pinned_map(device).register(array.ctypes.data + 8, 8, 0)
    assert device.locked == {}, "what is idle gives way to a registration"
    pinning.pinned_map(device).unregister(array.ctypes.data + 8)


def whole_file(folder: Path) -> object:
    numpy.save(folder / "array", numpy.arange(SIZE))
    return numpy.memmap(folder / "array.npy", mode="r")


@pytest.mark.parametrize(
    ("make", "kept"),
    [
        (lambda folder: numpy.zeros((100, 100)).T, True),
        (lambda folder: memoryview(numpy.zeros(SIZE)).cast("B"), True),
        (lambda folder: bytes(SIZE), True),
        (lambda folder: bytearray(SIZE), True),
        (lambda folder: numpy.frombuffer(bytearray(SIZE), "u2"), True),
        (lambda folder: mmap.mmap(-1, SIZE), watch_problem() is None or hears_of_calls()),
        (whole_file, True),
        (lambda folder: numpy.zeros(SIZE)[1:], False),  # a part
        (lambda folder: numpy.zeros(SIZE).view(numpy.recarray), True),
        (lambda folder: numpy.ndarray.__new__(numpy.recarray, SIZE, "u1"), False),  # it may refer to itself
        (lambda folder: storage(), False),
    ],
)
def test_what_is_kept(device: FakeDevice, tmp_path: Path, make: Callable[[Path], object], kept: bool) -> None:
    pinning.budget(idle=True)
    buffer = make(tmp_path)
    pinning.lock(buffer, device=device).unlock()
    assert bool(device.locked) == kept
    ptr, size = pinning.locking.lock.range_of(buffer)
    pinning.give_back_idle()
    pinning.lock((ptr, size), device=device).unlock()
    assert device.locked == {}


def test_an_idle_owner_is_not_resized(device: FakeDevice) -> None:
    pinning.budget(idle=True)
    buffer, mapping = bytearray(SIZE), mmap.mmap(-1, SIZE, access=mmap.ACCESS_READ)
    for each in (buffer, mapping):
        pinning.lock(each, device=device).unlock()
    with pytest.raises(BufferError):
        buffer.append(0)
    with pytest.raises(BufferError):
        mapping.close()
    pinning.give_back_idle()
    buffer.append(0)
    mapping.close()


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_memory_that_is_dropped_is_given_back_soon_to_both_devices_that_keep_it(in_a_cycle: bool) -> None:
    class Model:
        itself: object = None

    pinning.budget(idle=True)
    devices = FakeDevice("fake:0"), FakeDevice("fake:1")
    array, model = numpy.zeros(SIZE, "u1"), Model()
    model.itself = (model, array) if in_a_cycle else None
    gone, view = weakref.ref(array), array[5:]
    for device in devices:
        pinning.lock(array, device=device).unlock()
    del array, model
    collect()
    assert all(device.locked for device in devices), "a view keeps it"
    del view
    gc.collect()
    assert eventually(lambda: not devices[0].locked and not devices[1].locked)
    assert eventually(lambda: gone() is None)


def test_dropped_memory_makes_room_first(device: FakeDevice) -> None:
    pinning.budget(used() + 2 * SIZE, idle=True)
    useful, dropped = numpy.zeros(SIZE, "u1"), numpy.zeros(SIZE, "u1")
    pinning.lock(useful, device=device).unlock()
    pinning.lock(dropped, device=device).unlock()
    del dropped
    with pinning.lock(numpy.zeros(SIZE, "u1"), device=device):
        assert useful.ctypes.data in device.locked


def test_what_exceeds_the_budget_is_not_kept(device: FakeDevice) -> None:
    arrays = [numpy.zeros(SIZE, "u1") for _ in range(2)]
    locks = [pinning.lock(array, device=device) for array in arrays]
    pinning.budget(used() - SIZE, idle=2 * SIZE)
    locks[0].unlock()
    assert list(device.locked) == [arrays[1].ctypes.data]
    locks[1].unlock()  # now there is room for it
    assert pinning.budget().idle == SIZE
    assert device.count("data_unlock") == 1
    pinning.budget(idle=SIZE - 1)
    assert device.locked == {}, "more than may be idle from now on"


def test_a_vendor_that_is_out_of_room_gets_some(device: FakeDevice) -> None:
    pinning.budget(idle=True)
    idle, wanted = numpy.zeros(SIZE, "u1"), numpy.zeros(SIZE, "u1")
    pinning.lock(idle, device=device).unlock()
    device.fail(LockLimitError("no room"))
    with pinning.lock(wanted, device=device):
        assert list(device.locked) == [wanted.ctypes.data]
    pinning.give_back_idle()
    device.fail(LockLimitError("no room"))
    with pytest.raises(LockLimitError, match="no room"):
        pinning.lock(wanted, device=device)


def test_a_new_limit_by_native_code_leaves_that_of_what_is_idle(device: FakeDevice) -> None:
    pinning.budget(1 << 30, idle=1 << 28)
    array, before = numpy.zeros(SIZE, "u1"), used()
    pinning.lock(array, device=device).unlock()
    for limit in (1 << 29, before + SIZE, 1 << 30):
        c_api.call("pinning_set_budget", ctypes.c_uint64(limit))
    now = pinning.budget()
    assert (now.limit, now.idle_limit, now.idle) == (1 << 30, 1 << 28, SIZE)
    pinning.give_back_idle()


def test_a_containers_limit_that_is_raised_counts_at_once(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    array = numpy.zeros(2 * SIZE, "u1")
    room = system_memory()._replace(name="a container", limit=used() + SIZE)
    monkeypatch.setattr(limits, "_memory", lambda: room)
    pinning.budget(room.limit, idle=SIZE)
    monkeypatch.setattr(limits, "_chosen", limits._default())
    with pytest.raises(LockLimitError, match=f"{room.limit} bytes"):
        pinning.lock(array, device=device)
    room = room._replace(limit=room.limit + (1 << 30))
    with pinning.lock(array, device=device):
        now = pinning.budget()
        assert (now.limit, now.idle_limit, now.source) == (room.limit, SIZE, "a container")


def test_a_limit_that_another_thread_sets_meanwhile_stays(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[dict[str, Any]] = []

    def memory() -> Any:
        if others:
            pinning.budget(**others.pop())
        return room

    room = system_memory()._replace(limit=used() + SIZE)
    monkeypatch.setattr(limits, "_memory", memory)
    others.append({"idle": SIZE})
    assert pinning.budget(1.0).idle_limit == SIZE
    monkeypatch.setattr(limits, "_chosen", limits._default())
    others.append({"limit": room.limit - 1})
    with pytest.raises(LockLimitError):
        pinning.lock(numpy.zeros(2 * SIZE, "u1"), device=device)
    now = pinning.budget()
    assert (now.limit, now.source) == (room.limit - 1, f"pinning.budget({room.limit - 1})")


@pytest.mark.parametrize("in_background", [False, True])
def test_a_range_that_another_thread_is_locking_needs_no_more_room(device: FakeDevice, in_background: bool) -> None:
    array = numpy.ones(SIZE, "u1")
    pinning.budget(used() + SIZE)

    def second() -> Any:
        if in_background:
            return pinning.lock_async(array, device=device).wait()
        return pinning.lock(array, device=device)

    with device.stopping("data_lock", array.ctypes.data) as gate:
        first = Background(lambda: pinning.lock(array, device=device))
        assert gate.reached.wait(WAIT)
        other = Background(second)
        other.join(0.1)
    for each in (first, other):
        cast(Any, each.result()).unlock()


class LimitedDevice(FakeDevice):
    """Its vendor lets it lock two sizes."""

    def lock_limit(self) -> LockLimit:
        return LockLimit("FAKE_LIMIT", 2 * SIZE, sum(self.locked.values()), "ask for more")

    def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int:
        if sum(self.locked.values()) + size > 2 * SIZE:
            raise LockLimitError("FAKE_LIMIT")
        return super().data_lock(ptr, size, read_only)


@pytest.mark.parametrize("over", [0, 1], ids=["as much as there is", "a byte more"])
def test_cached_memory_gives_way_if_that_is_enough(over: int) -> None:
    device, other = LimitedDevice("fake:limited"), FakeDevice("fake:other")
    pinning.budget(idle=True)
    older, *idle = (numpy.zeros(SIZE, "u1") for _ in range(3))
    pinning.lock(older, device=other).unlock()
    for array in idle:
        pinning.lock(array, device=device).unlock()
    both = numpy.zeros(2 * SIZE + over, "u1")
    if over:
        with pytest.raises(LockLimitError, match="FAKE_LIMIT"):
            check_room(both.size, device)
        with pytest.raises(LockLimitError, match="FAKE_LIMIT"):
            pinning.lock(both, device=device)
        assert set(device.locked) == {array.ctypes.data for array in idle}
    else:
        check_room(both.size, device)
        with pinning.lock(both, device=device):
            assert set(device.locked) == {both.ctypes.data}
    assert set(other.locked) == {older.ctypes.data}, "what another device has would not have helped"
    pinning.give_back_idle()


def test_an_arena_waits_for_the_room_that_unlocks_make() -> None:
    device = LimitedDevice("fake:limited")
    locks = [pinning.lock(numpy.zeros(SIZE, "u1"), device=device) for _ in range(2)]
    with device.stopping("data_unlock", locks[0].ptr) as first, device.stopping("data_unlock", locks[1].ptr) as second:
        unlocking = [Background(lock.unlock) for lock in locks]
        assert first.reached.wait(WAIT)
        assert second.reached.wait(WAIT)
        making = Background(lambda: pinning.Arena(2 * SIZE, device))
        for gate in (first, second):
            assert making.is_alive()
            gate.open()
        cast(pinning.Arena, making.result()).close()
        for thread in unlocking:
            thread.result()


def test_a_lock_without_room_asks_once_for_what_the_vendor_keeps(device: FakeDevice) -> None:
    fixed = used()
    pinning.budget(fixed + SIZE + SIZE // 2, idle=True)
    arrays = [numpy.zeros(SIZE, "u1") for _ in range(2)]
    pinning.lock(arrays[0], device=device).unlock()
    for calls in range(20):
        device.fail(VendorError("fakeUnlock", 1, "FAKE"), calls)
    with pytest.raises(LockLimitError, match="idle"):
        pinning.lock(arrays[1], device=device)
    assert device.count("data_unlock") == 1 and pinning.budget().idle == SIZE
    device.fail_no_more()
    pinning.lock(arrays[1], device=device).unlock()


@pytest.mark.parametrize("spare", [-1, 0])
def test_a_buffer_as_large_as_the_cache(device: FakeDevice, spare: int) -> None:
    pinning.budget(idle=SIZE + spare)
    array = numpy.zeros(SIZE, "u1")
    pinning.lock(array, device=device).unlock()
    assert pinning.budget().idle == (0 if spare else SIZE)


@pytest.mark.parametrize("limit", ["idle", "all"])
def test_a_lower_limit_though_the_vendor_refuses_to_give_one_back(device: FakeDevice, limit: str) -> None:
    fixed = used()
    pinning.budget(idle=True)
    arrays = [numpy.zeros(SIZE, "u1") for _ in range(3)]
    for array in arrays:
        pinning.lock(array, device=device).unlock()
    device.fail(VendorError("fakeUnlock", 1, "FAKE"))
    pinning.budget(idle=0) if limit == "idle" else pinning.budget(fixed)
    assert list(device.locked) == [arrays[0].ctypes.data]
    assert pinning.budget().idle == SIZE


def test_host_memory_gets_the_room_of_what_is_idle() -> None:
    device, array = FakeMemoryDevice(), numpy.zeros(SIZE, "u1")
    pinning.budget(idle=True)
    pinning.lock(array, device=device).unlock()
    device.fail_call(VendorError("fakeAllocate", 2, "FAKE_NO_MEMORY"))
    with pinning.alloc(SIZE, "host", device=device):
        assert pinning.budget().idle == 0
    device.fail_call(VendorError("fakeAllocate", 2, "FAKE_NO_MEMORY"))
    with pytest.raises(VendorError, match="FAKE_NO_MEMORY"):
        pinning.alloc(SIZE, "host", device=device)


@pytest.mark.parametrize("in_c", [False, True])
def test_a_vendor_that_refuses_to_give_back(device: FakeDevice, in_c: bool) -> None:
    pinning.budget(idle=True)
    arrays = [numpy.zeros(SIZE, "u1") for _ in range(3)]
    for array in arrays:
        pinning.lock(array, device=device).unlock()
    device.fail(VendorError("fakeUnlock", 1, "FAKE"))
    with pytest.raises((VendorError, c_api.StatusError)):
        c_api.call("pinning_give_back_idle", ctypes.c_uint64(3 * SIZE), None) if in_c else pinning.give_back_idle()
    assert list(device.locked) == [arrays[0].ctypes.data]
    assert pinning.budget().idle == SIZE
    with pinning.lock(arrays[0], device=device):
        pass
    assert device.count("data_lock") == 3
    assert pinning.give_back_idle(0) == 0
    assert pinning.budget().idle == SIZE
    assert pinning.give_back_idle(1) == SIZE
    assert pinning.give_back_idle() == 0


def test_a_lock_that_must_be_coherent_takes_no_idle_region_that_is_not() -> None:
    device, array = CoarseFakeDevice(True, False), numpy.zeros(SIZE, "u1")
    pinning.budget(idle=True)
    pinning.lock(array, device=device, coherent=False).unlock()
    with pinning.lock(array, device=device, coherent=True) as lock:
        assert lock.region is not None and lock.region.coherent
    pinning.give_back_idle()
    assert (device.locked, device.wrong) == ({}, [])


def test_what_a_vendor_gave_back_in_part_is_idle_in_part(device: FakeDevice) -> None:
    pinning.budget(idle=True)
    before, array = pinning.budget(), numpy.zeros(4 * SIZE, "u1")
    pinning.lock(array, device=device, piece=SIZE).unlock()
    device.fail(VendorError("fakeUnlock", 1, "FAKE"), 1)  # the second of four
    with pytest.raises(VendorError, match="fakeUnlock"):
        pinning.give_back_idle()
    now = pinning.budget()
    assert now.used - before.used == now.idle == sum(device.locked.values()) == 3 * SIZE
    assert pinning.give_back_idle() == 3 * SIZE
    assert pinning.budget() == before


def test_what_is_idle_in_part_makes_way_for_a_lock(device: FakeDevice) -> None:
    pinning.budget(idle=True)
    array = numpy.zeros(4 * SIZE, "u1")
    pinning.lock(array, device=device, piece=SIZE).unlock()
    device.fail(VendorError("fakeUnlock", 1, "FAKE"), 1)
    with pytest.raises(VendorError, match="fakeUnlock"):
        pinning.give_back_idle()
    with pinning.lock(array[SIZE // 2 :], device=device) as lock:
        assert lock.held


def test_a_closed_map_keeps_nothing(device: FakeDevice) -> None:
    pinning.budget(idle=True)
    array = numpy.zeros(SIZE, "u1")
    pinning.lock(array, device=device).unlock()
    pinning.pinned_map(device).close()
    assert device.locked == {}
    collect()
    assert sys.getrefcount(array) == 2
    run(
        """
        import numpy, pinning
        pinning.budget(idle=True)
        array = numpy.zeros(4096)
        pinning.lock(array, device="host").unlock()
        assert pinning.device("host").is_pinned_ptr(array.ctypes.data)
        pinning.pinned_map("host").close()
        assert pinning.device("host").is_pinned_ptr(array.ctypes.data) is None and pinning.budget().used == 0
        """
    )


def test_a_map_that_is_dropped_keeps_nothing() -> None:
    pinning.budget(idle=True)
    device = FakeDevice()
    array = numpy.zeros(SIZE, "u1")
    pinning.lock(array, device=device).unlock()
    locked, gone = device.locked, weakref.ref(device)
    del device
    gc.collect()
    assert gone() is None
    assert locked == {}
    collect()
    assert sys.getrefcount(array) == 2


# ---- copies ----


def test_a_copy_of_what_is_idle() -> None:
    host = pinning.device("host")
    pinning.budget(idle=True)
    array = numpy.arange(SIZE, dtype="u1")
    pinning.lock(array, device=host).unlock()
    idle = pinning.budget().idle
    with pinning.alloc(SIZE, device=host) as there:
        assert pinning.explain(there, array).path == "direct"
        assert pinning.copy(there, array).path == "direct"
        back = numpy.zeros_like(array)
        pinning.copy_batch([back[100:200]], [there], [100])
        pinning.copy_2d(array, 256, there, 256, 256, 100)
        pinning.copy_batch([array[100:200]], [there], [100])
    assert eventually(lambda: pinning.budget().idle == idle)
    (region,) = pinning.regions(host, idle=True)
    assert region.idle


# ---- threads, fork, exit, native code ----


def test_more_than_the_budget_in_turns_by_threads() -> None:
    devices = [FakeDevice(f"fake:{index}") for index in range(2)]
    fixed = used()
    pinning.budget(fixed + 8 * SIZE, idle=True)
    arrays = [numpy.zeros(SIZE, "u1") for _ in range(12)]

    def cycle(first: int) -> None:
        for turn in range(100):
            with pinning.lock(arrays[(first + turn) % 12], device=devices[turn % 2]):
                assert used() <= fixed + 8 * SIZE

    in_threads(cycle, range(0, 12, 3))
    pinning.give_back_idle()
    assert used() == fixed
    assert all(each.locked == {} and each.wrong == [] for each in devices)


def test_the_child_of_a_fork_has_nothing_idle() -> None:
    pinning.budget(idle=True)
    arrays = [numpy.zeros(SIZE, "u1")]
    pinning.lock(arrays[0], device="host").unlock()
    before = pinning.budget()
    assert before.idle == SIZE

    def child() -> None:
        now = pinning.budget()
        assert (now.used, now.idle, now.limit) == (0, 0, before.limit)
        assert pinning.regions("host", idle=True) == []
        with pinning.lock(arrays[0], device="host"):
            assert pinning.budget().used == SIZE
        assert pinning.budget().idle == SIZE
        arrays.clear()
        assert eventually(lambda: pinning.budget().used == 0)

    run_in_child(child)
    assert pinning.budget() == before


@pytest.mark.parametrize("when", ["before the package's own handler", "afterwards"])
def test_child_collecting_the_parents_locks_changes_no_budget(when: str) -> None:
    program = """
        import gc, os, sys
        gc.disable()
        if BEFORE:
            os.register_at_fork(after_in_child=gc.collect)  # the handlers run in the order in which they come
        sys.path.insert(0, SUPPORT)
        import numpy, pinning
        from fake_device import FakeDevice

        SIZE, told = 1 << 16, []

        class Device(FakeDevice):
            def data_unlock(self, ptr):
                told.append(ptr)
                super().data_unlock(ptr)

        def make_garbage():
            device = Device()
            on = pinning.pinned_map(device)
            held, counted, idle, foreign, registered, mapped, native = (numpy.ones(SIZE, "u1") for _ in range(7))
            pinning.lock(idle, device=device).unlock()
            device.foreign[foreign.ctypes.data] = SIZE
            locks = [pinning.lock(each, device=device) for each in (held, held, foreign)]
            locks.append(pinning.lock(native, device="host"))
            locks.append(pinning.lock_async(numpy.ones(SIZE, "u1"), device=device))
            locks[-1].wait()
            on.lock(counted.ctypes.data, SIZE)
            on.register(registered.ctypes.data, SIZE, 1)
            on.lock_mapped(mapped.ctypes.data, SIZE, "mandatory")
            registrar = on.add_registrar(lambda ptr, size: ptr, told.append)
            arena = pinning.Arena(SIZE, device)
            arena.wait()
            device.cycle = device, locks, registrar, counted, idle, registered, mapped, arena

        pinning.budget(1.0, idle=SIZE)
        make_garbage()
        before = pinning.budget()
        assert (before.used, before.idle, before.external) == (7 * SIZE, SIZE, 2 * SIZE), before
        if (child := os.fork()) == 0:
            gc.collect()
            now = pinning.budget()
            assert (now.used, now.idle, now.external, told) == (0, 0, 0, []), (now, told)
            with pinning.lock(numpy.ones(SIZE, "u1"), device=FakeDevice()) as lock:
                assert lock.held and pinning.budget().used == SIZE
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (pinning.budget(), told) == (before, []), (pinning.budget(), told)
        """
    program = program.replace("BEFORE", str(when != "afterwards")).replace("SUPPORT", repr(str(SUPPORT)))
    run(program)


def test_what_is_idle_ends_with_the_program() -> None:
    said = run(
        """
        import numpy, pinning

        class Device:
            name = "loud:0"
            def data_lock(self, ptr, size, read_only): return ptr
            def data_unlock(self, ptr): print("unlocked", flush=True); raise pinning.PinningError("no")
            def is_pinned_ptr(self, ptr): return None

        device = Device()
        pinning.budget(idle=True)
        array = numpy.zeros(100)
        pinning.lock(array, device=device).unlock()
        print("end", flush=True)
        """
    )
    assert said.split()[:2] == ["end", "unlocked"]


def test_native_code_has_the_same_budget() -> None:
    pinning.budget(idle=True)
    array = numpy.zeros(SIZE, "u1")
    pinning.lock(array, device="host").unlock()
    pinning.pinned_map("host").register(0x10000, 4096, 0x10000)  # by others
    figures, given, now = (ctypes.c_uint64 * 6)(48), ctypes.c_uint64(), pinning.budget()
    c_api.call("pinning_get_budget", figures)
    assert list(figures)[2:5] == [now.used, SIZE, now.external]
    assert now.external >= 4096
    pinning.pinned_map("host").unregister(0x10000)
    now = pinning.budget()
    c_api.call("pinning_give_back_idle", ctypes.c_uint64(1), ctypes.byref(given))
    assert (given.value, pinning.budget().used) == (SIZE, now.used - SIZE)
    limit = used() + 4096
    c_api.call("pinning_set_budget", limit)
    assert pinning.budget().limit == limit and "native code" in pinning.budget().source
    native = c_api.Map("host:0")
    with pytest.raises(c_api.StatusError, match="PINNING_LOCK_LIMIT"):
        native.lock(array.ctypes.data, 4097)
    native.lock(array.ctypes.data, 4096)
    assert pinning.budget().free == 0
    with pytest.raises(LockLimitError):
        pinning.lock(bytearray(10), device="host")
    native.unlock(array.ctypes.data)


# ---- pressure ----


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/pressure").mkdir()
    (tmp_path / "sys/fs/cgroup/mine").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/mine\n")
    return tmp_path


@pytest.mark.parametrize("file", ["proc/pressure/memory", "sys/fs/cgroup/mine/memory.pressure"])
def test_memory_is_short_while_tasks_wait_for_it(kernel: Path, file: str) -> None:
    def stalled(microseconds: int) -> None:
        line = f"avg10=0.00 avg60=0.00 avg300=0.00 total={microseconds}"
        (kernel / file).write_text(f"some {line}\nfull {line}\n")

    stalled(5_000_000)
    pressure = Pressure(kernel)
    assert not pressure.is_high()
    stalled(3_600_000_000)  # no test takes an hour
    assert pressure.is_high()
    assert not pressure.is_high()
    (kernel / file).unlink()
    assert not pressure.is_high()


def test_a_kernel_that_tells_nothing(kernel: Path) -> None:
    assert not Pressure(kernel).is_high()
    assert not Pressure(kernel / "nowhere").is_high()


def test_idle_memory_goes_while_memory_is_short(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pressure, "is_high", lambda self: True)
    pinning.budget(idle=True)
    arrays = [numpy.zeros(SIZE, "u1") for _ in range(4)]
    for array in arrays:
        pinning.lock(array, device=device).unlock()
    held = pinning.lock(arrays[0], device=device)
    assert eventually(lambda: list(device.locked) == [arrays[0].ctypes.data])
    held.unlock()

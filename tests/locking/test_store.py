# SPDX-License-Identifier: Apache-2.0
"""`pinning.locking.store`: which objects of a store are locked, when, and when an object is released."""

from __future__ import annotations

import gc
import logging
import mmap
import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
from numpy.typing import NDArray

import pinning
from child_process import run_in_child
from fake_device import Background, FakeDevice
from limits import needs_room_to_lock
from pinning import LockLimitError, VendorError
from pinning.conformance.faults import eventually
from pinning.locking import store
from pinning.locking.store import ObjectLocks

MINUTE = 60
SMALLEST = 1000
MIB = 1 << 20
Bytes = NDArray[numpy.uint8]


def map_file(path: Path, size: int) -> Bytes:
    """Map a sparse file, as an object store does."""
    with path.open("w+b") as file:
        file.truncate(size)
        return numpy.frombuffer(mmap.mmap(file.fileno(), 0), numpy.uint8)


@pytest.fixture
def locks(device: FakeDevice, caplog: pytest.LogCaptureFixture) -> Iterator[ObjectLocks]:
    caplog.set_level(logging.WARNING)
    made = ObjectLocks(lambda: device, SMALLEST, "plasma", logging.getLogger("store"))
    yield made
    made.close()
    pinning.budget(1.0, idle=False)
    assert eventually(lambda: device.locked == {})  # a thread gives locks up


@pytest.fixture
def memory(tmp_path: Path) -> Bytes:
    return map_file(tmp_path / "plasmaA1b2C3", MIB)


def taken_by_others() -> int:
    """Bytes that other tests of this process have left locked, such as those whose errors keep their maps alive."""
    gc.collect()
    now = pinning.budget()
    return now.used + now.external


def use(locks: ObjectLocks, part: Bytes) -> Any:
    """Use an object that is one buffer; return the program's view of it."""
    (found,) = locks.use(part, [part])
    return found


def locked(device: FakeDevice) -> list[tuple[int, int]]:
    """All locked ranges, including those that are only cached because no object uses them any more."""
    return [(region.start, region.size) for region in pinning.regions(device, idle=True)]


def unused(device: FakeDevice, part: Bytes) -> bool:
    """Whether the region of this object is idle, because its use has ended."""
    return any(region.idle and region.start == part.ctypes.data for region in pinning.regions(device, idle=True))


def wait_for(device: FakeDevice, expected: list[Bytes]) -> None:
    """Wait until exactly these are locked."""
    wanted = [(part.ctypes.data, part.nbytes) for part in expected]
    assert eventually(lambda: locked(device) == wanted), (locked(device), wanted)


def test_objects_are_locked_as_they_are_used(
    locks: ObjectLocks, device: FakeDevice, memory: Bytes, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = memory[64:100_000], memory[100_032:300_000]
    use(locks, first)
    wait_for(device, [first])
    use(locks, second)
    wait_for(device, [first, second])
    calls = list(device.calls)
    use(locks, first)
    use(locks, memory[400_000:400_500])
    wait_for(device, [first, second])
    assert device.calls == calls and not caplog.records


def test_the_program_has_the_same_bytes(locks: ObjectLocks, device: FakeDevice, memory: Bytes) -> None:
    whole = memory[0:10_000]
    whole[:] = numpy.arange(10_000) % 251
    frozen = memoryview(whole[5000:]).toreadonly()
    found = locks.use(whole, [whole[:100], whole[100:100], frozen])
    views = [memoryview(each) for each in found]  # type: ignore[arg-type]
    assert [view.nbytes for view in views] == [100, 0, 5000]
    assert [view.readonly for view in views] == [False, False, True]
    arrays = [numpy.frombuffer(view, numpy.uint8) for view in (views[0], views[2])]
    assert [array.ctypes.data - whole.ctypes.data for array in arrays] == [0, 5000]
    assert (arrays[1] == whole[5000:]).all()
    wait_for(device, [whole])  # by a thread, which would lock it beside the next test


def test_an_object_in_the_place_of_others_has_their_locks_undone(
    locks: ObjectLocks, device: FakeDevice, memory: Bytes, caplog: pytest.LogCaptureFixture
) -> None:
    old = [memory[0:50_000], memory[50_000:100_000], memory[100_000:150_000]]
    for each in old:
        use(locks, each)
    wait_for(device, old)
    new = memory[40_000:90_000]
    use(locks, new)
    assert (old[0].ctypes.data, 50_000) not in locked(device), "a copy of the new one may cross its border"
    wait_for(device, [new, old[2]])
    use(locks, old[0])
    wait_for(device, [old[0], old[2]])
    inside = memory[110_000:120_000]
    use(locks, inside)
    wait_for(device, [old[0], inside])
    small = memory[49_990:50_090]
    use(locks, small)
    wait_for(device, [inside])
    assert not caplog.records


def test_an_object_in_the_place_of_one_that_is_being_locked(
    locks: ObjectLocks, device: FakeDevice, memory: Bytes, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = memory[0:50_000], memory[40_000:90_000]
    with device.stopping("data_lock", old.ctypes.data) as gate:
        use(locks, old)
        assert gate.reached.wait(MINUTE)
        user = Background(lambda: use(locks, new))
        assert locked(device) == []
        gate.open()
        user.result()
    wait_for(device, [new])
    assert not caplog.records


def test_other_memory_is_left(locks: ObjectLocks, device: FakeDevice, tmp_path: Path) -> None:
    use(locks, map_file(tmp_path / "other", 10_000))
    use(locks, numpy.zeros(10_000, numpy.uint8))
    private = tmp_path / "plasma"
    private.write_bytes(bytes(10_000))
    with private.open("r+b") as file:
        use(locks, numpy.frombuffer(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE), numpy.uint8))
    assert locks._extents == [] and device.calls == []


def test_what_is_refused_is_said_once(
    locks: ObjectLocks, device: FakeDevice, memory: Bytes, caplog: pytest.LogCaptureFixture
) -> None:
    device.fail(VendorError("fakeRegister", 2, "FAKE_OUT_OF_MEMORY"))
    first, second, third = memory[0:10_000], memory[20_000:30_000], memory[40_000:50_000]
    assert len(use(locks, first)) == 10_000
    assert eventually(lambda: caplog.records)
    calls = list(device.calls)
    use(locks, first)
    assert device.calls == calls, "the vendor is not asked again and again"
    view = use(locks, second)  # kept, or it would give way to the third
    wait_for(device, [second])
    device.fail(VendorError("fakeRegister", 1, "FAKE_INVALID"))
    use(locks, third)
    assert eventually(lambda: device.count("data_lock") == 3)
    wait_for(device, [second])
    del view
    (record,) = caplog.records
    assert "FAKE_OUT_OF_MEMORY" in record.getMessage()


def test_the_least_recently_used_go_when_there_is_no_room(
    locks: ObjectLocks, device: FakeDevice, memory: Bytes, caplog: pytest.LogCaptureFixture
) -> None:
    objects = [memory[at : at + 10_000] for at in range(0, 50_000, 10_000)]
    taken = taken_by_others()
    pinning.budget(taken + 30_000)
    views = [use(locks, each) for each in objects[:3]]
    wait_for(device, objects[:3])
    for number in (0, 1, 2):
        views[number] = None
        assert eventually(lambda number=number: unused(device, objects[number]))  # type: ignore[misc]
    views[0] = use(locks, objects[0])
    kept = use(locks, objects[3])
    wait_for(device, [objects[0], objects[2], objects[3]])
    views[2] = use(locks, objects[2])

    # All are in use now: an object that finds no room is used unlocked, and tried again at its next use.
    unlocked = use(locks, objects[4])
    assert len(unlocked) == 10_000
    assert eventually(lambda: caplog.records)
    assert "budget" in caplog.text
    wait_for(device, [objects[0], objects[2], objects[3]])
    assert eventually(lambda: pinning.is_locked(objects[2], device=device))
    del kept
    assert eventually(lambda: unused(device, objects[3]))
    use(locks, objects[4])
    wait_for(device, [objects[0], objects[2], objects[4]])
    assert len(caplog.records) == 1


class SlowDevice(FakeDevice):
    """Its work is complete once `done` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.done = threading.Event(), threading.Event()

    def synchronize(self) -> None:
        self.waits.set()
        assert self.done.wait(MINUTE)


def test_what_the_device_may_still_read_is_kept(monkeypatch: pytest.MonkeyPatch, memory: Bytes) -> None:
    device = SlowDevice()
    monkeypatch.setattr(store, "MemoryDevice", SlowDevice)
    locks = ObjectLocks(lambda: device, SMALLEST, "plasma", logging.getLogger("store"))
    whole = memory[0:10_000]
    kept = weakref.ref(whole)
    first, second = locks.use(whole, [whole[:5000], whole[5000:]])
    wait_for(device, [whole])
    del whole, first
    gc.collect()
    assert kept() is not None and not device.waits.is_set(), "there is a view of it"
    del second
    assert device.waits.wait(MINUTE)
    assert kept() is not None, "a copy may still be under way"
    device.done.set()
    assert eventually(lambda: kept() is None)
    locks.close()
    assert eventually(lambda: device.locked == {})


def test_one_that_was_unmapped_is_locked_anew(locks: ObjectLocks, device: FakeDevice, memory: Bytes) -> None:
    first = memory[0:10_000]
    view = use(locks, first)
    wait_for(device, [first])
    pinning.unlock(first.ctypes.data, device=device)  # as happens when memory is unmapped
    assert locked(device) == []
    view = use(locks, first)
    wait_for(device, [first])
    del view
    assert eventually(lambda: unused(device, first))
    pinning.give_back_idle()
    assert locked(device) == []
    use(locks, first)
    wait_for(device, [first])


def test_an_object_that_is_used_while_its_lock_is_given_up_is_locked_again(
    locks: ObjectLocks, device: FakeDevice, memory: Bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    views, given_up = list[Any](), threading.Event()

    def late(lock: pinning.Lock) -> None:
        if not views:
            views.append(use(locks, memory[0:10_000]))
        unlock_cached(lock)
        given_up.set()

    unlock_cached = store.unlock_cached
    monkeypatch.setattr(store, "unlock_cached", late)
    use(locks, memory[0:10_000])
    assert given_up.wait(MINUTE)
    assert eventually(lambda: pinning.is_locked(memory[0:10_000], device=device))


def test_an_object_that_takes_the_place_of_one_being_locked_once_more_waits_for_that(
    locks: ObjectLocks, device: FakeDevice, memory: Bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, tries = threading.Event(), list[int]()

    def slow(start: int, *arguments: Any, **more: Any) -> pinning.Lock:
        tries.append(start)
        if len(tries) == 1:
            raise LockLimitError("no room just now")
        if len(tries) == 2:
            assert gate.wait(MINUTE)
        return really(start, *arguments, **more)

    really = store.lock
    monkeypatch.setattr(store, "lock", slow)
    deleted, made, views = memory[0:10_000], memory[5_000:20_000], list[Any]()
    kept = use(locks, deleted)
    assert eventually(lambda: use(locks, deleted) is not None and len(tries) == 2)
    del kept
    user = threading.Thread(target=lambda: views.append(use(locks, made)))
    user.start()
    user.join(0.2)
    assert user.is_alive()
    gate.set()
    user.join()
    assert eventually(lambda: locked(device) == [(made.ctypes.data, made.nbytes)])


def test_closed_it_undoes_what_is_not_used(locks: ObjectLocks, device: FakeDevice, memory: Bytes) -> None:
    objects = [memory[0:10_000], memory[10_000:20_000]]
    view = use(locks, objects[0])
    use(locks, objects[1])
    wait_for(device, objects)
    locks.close()
    wait_for(device, objects[:1])
    assert use(locks, objects[1]) is objects[1]
    del view
    wait_for(device, [])


def test_a_forked_child_uses_objects_as_they_are(locks: ObjectLocks, device: FakeDevice, memory: Bytes) -> None:
    def child() -> None:
        assert use(locks, memory) is memory and locks._extents == []

    run_in_child(child)


def test_only_what_is_used_is_brought_into_memory() -> None:
    """In the proportion of 1 GiB of a store of 32. The file's blocks show how much memory is committed."""
    used = 2 * MIB
    needs_room_to_lock(2 * used)
    path = Path("/dev/shm") / f"plasma-test-{os.getpid()}"
    host = pinning.device("host:0")  # first: errors while loading plugins may keep callers' objects for a while
    locks = ObjectLocks(lambda: host, SMALLEST, "plasma", logging.getLogger("store"))
    try:
        memory = map_file(path, 32 * used)
        objects = [memory[at + 64 : at + 64 + used // 4] for at in range(0, 32 * used, 8 * used)]
        views = [use(locks, each) for each in objects]
        assert eventually(lambda: all(pinning.is_locked(each, device="host:0") for each in objects))
        committed = path.stat().st_blocks * 512
        assert used <= committed <= 1.1 * used
        del views
    finally:
        locks.close()
        path.unlink(missing_ok=True)
    assert eventually(lambda: pinning.regions("host:0", idle=True) == [])
    pinning.budget(1.0, idle=False)


def test_eight_processes_count_their_own(tmp_path: Path) -> None:
    memory = map_file(tmp_path / "plasma", 9 * 8192)

    def worker(number: int) -> None:
        device = FakeDevice()
        locks = ObjectLocks(lambda: device, SMALLEST, "plasma", logging.getLogger("store"))
        pinning.budget(20_000)
        mine, everybodys = memory[8192 * number :][:8192], memory[8 * 8192 :]
        views = [use(locks, mine), use(locks, everybodys)]
        wait_for(device, [mine, everybodys])
        assert pinning.budget().used == mine.nbytes + everybodys.nbytes
        del views

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run_in_child, [partial(worker, number) for number in range(8)]))

# SPDX-License-Identifier: Apache-2.0
"""Arenas: of exactly their size, locked once, divided without vendor calls, growing in place, freed when closed."""

from __future__ import annotations

import asyncio
import gc
import math
import mmap
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import pytest

import pinning
from c_library import libc
from child_process import run_as_ordinary_user, run_in_child
from fake_device import LOCKED_OFFSET, Background, FakeDevice, in_threads
from folders import SUPPORT
from pinning import (
    Arena,
    ArgumentError,
    InvalidRangeError,
    LockLimitError,
    NotLockedError,
    PinningError,
    PoolLimitError,
    StillInUseError,
    StillLockedError,
    VendorError,
)
from pinning.arena import mapping
from pinning.conformance.faults import eventually
from pinning.machine import numa
from pinning.plugin import LockLimit
from pinning.runtime.process import run_deferred

WAIT = 60
PAGE = 4096
SIZE = 10 * PAGE + 100


@pytest.fixture
def device(device: FakeDevice) -> Iterator[FakeDevice]:
    """After the test, nothing may be locked any more."""
    yield device
    gc.collect()
    run_deferred()
    assert device.locked == {}


class SlowDevice(FakeDevice):
    """Locks only once `opened` is set, but for the first `calls`."""

    def __init__(self, calls: int = 0, largest_lock: int = sys.maxsize) -> None:
        super().__init__(largest_lock=largest_lock)
        self.calls_at_once = calls
        self.reached, self.opened = threading.Event(), threading.Event()

    def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int:
        if self.count("data_lock") >= self.calls_at_once:
            self.reached.set()
            assert self.opened.wait(WAIT)
        return super().data_lock(ptr, size, read_only)


def vendor_error() -> VendorError:
    return VendorError("fakeRegister", 2, "FAKE_OUT_OF_MEMORY")


# ---- its size, and locking ----


@pytest.mark.parametrize("on_host", [False, True])
def test_its_own_lock_is_no_users(device: FakeDevice, on_host: bool) -> None:
    target = pinning.device("host:0") if on_host else device
    with Arena(SIZE, target) as arena:
        arena.wait(timeout=WAIT)
        with arena.allocate(1000) as part:
            with pinning.lock(part, device=target):
                pinning.unlock(part)
                for what in (part, arena, arena.ptr + 5):
                    with pytest.raises(NotLockedError):
                        pinning.unlock(what)
            assert pinning.is_locked(arena, device=target)


def test_it_is_locked_once_and_exactly(device: FakeDevice) -> None:
    with Arena(SIZE, device) as arena:
        arena.wait(timeout=WAIT)
        assert (arena.nbytes, arena.available, arena.progress, arena.done()) == (SIZE, SIZE, SIZE, True)
        assert device.locked == {arena.ptr: SIZE}
        assert pinning.is_locked(arena, device=device)
        assert not pinning.is_locked(arena.ptr, SIZE + 1, device=device)
        part = arena.allocate(1000)
        with pinning.lock(part, device=device), pinning.lock((arena.ptr + 5, 10), device=device):
            assert part.device_ptr == part.ptr + LOCKED_OFFSET
        part.free()
        assert device.count("data_lock") == 1
    assert arena.closed
    assert device.locked == {}
    arena.close()


def test_it_is_locked_for_several_devices_or_none(device: FakeDevice) -> None:
    other = FakeDevice("fake:1")
    with Arena(SIZE, [device, other]) as arena:
        arena.wait(timeout=WAIT)
        assert device.locked == other.locked == {arena.ptr: SIZE}
        assert arena.device_ptr_of(arena.ptr + 1, device=other) == arena.ptr + 1 + LOCKED_OFFSET
    assert other.locked == {}
    other.fail(vendor_error())
    with Arena(SIZE, [device, other]) as arena:
        with pytest.raises(VendorError, match="FAKE_OUT_OF_MEMORY"):
            asyncio.run(awaited(arena))
        assert device.locked == other.locked == {}
        assert (arena.done(), arena.progress) == (True, 0)
        arena.asarray()[:] = 1  # usable although not locked
    with Arena(SIZE, []) as arena:
        arena.wait(timeout=WAIT)
        with pytest.raises(NotLockedError, match="not locked for any device"):
            arena.device_ptr_of(arena.ptr)


def test_only_what_is_locked_for_all_devices_is_progress() -> None:
    slow = SlowDevice(1, SIZE // 2)
    with Arena(SIZE, [slow, FakeDevice("fake:1")]) as arena:
        assert slow.reached.wait(WAIT)
        assert (len(slow.locked), arena.progress) == (1, 0)
        slow.opened.set()
        arena.wait(timeout=WAIT)
        assert arena.progress == SIZE


def test_a_unit_is_in_one_piece(device: FakeDevice) -> None:
    unit = 20 << 20
    with Arena(6 * unit, device, unit=unit) as arena:
        arena.wait(timeout=WAIT)
        assert len(device.locked) > 1
        assert {(start - arena.ptr) % unit for start in device.locked} == {0}
        assert sum(device.locked.values()) == 6 * unit
        blocks = [arena.allocate(1), arena.allocate(unit)]
        assert [block.ptr - arena.ptr for block in blocks] == [0, unit]
        blocks.append(arena.allocate(5, alignment=1))
        assert blocks[-1].ptr == arena.ptr + 1
        for block in blocks:
            block.free()
    with Arena(PAGE, device, unit=1000, grow=1 << 20) as arena:
        block = arena.allocate(5000)  # in a growth, which begins at no multiple of the unit
        assert block.ptr - arena.ptr == PAGE
        block.free()


def test_who_waits_is_told(device: FakeDevice) -> None:
    slow = SlowDevice()
    with Arena(SIZE, slow) as arena:
        assert slow.reached.wait(WAIT)
        assert (arena.done(), arena.progress) == (False, 0)
        with pytest.raises(TimeoutError, match="0 bytes"):
            arena.wait(timeout=0)
        memory = arena.allocate(100)  # usable already
        memory.asarray()[:] = 1
        memory.free()
        with ThreadPoolExecutor(2) as pool:
            asked = pool.submit(arena.device_ptr_of, arena.ptr + SIZE - 1)  # waits until it is locked
            endless = pool.submit(arena.wait, timeout=math.inf)
            early = wait([asked, endless], timeout=0.05).done
            slow.opened.set()
            assert not early and endless.result(WAIT) is None
            assert asked.result(WAIT) == arena.ptr + SIZE - 1 + LOCKED_OFFSET
        arena.wait(1, timeout=WAIT)
        assert arena.progress == SIZE
        asyncio.run(awaited(arena))
        assert arena.done()


def test_the_device_address_of_a_range_is_known_once_its_last_byte_is_locked(device: FakeDevice) -> None:
    slow = SlowDevice(1, SIZE // 2)
    with Arena(SIZE, slow) as arena, ThreadPoolExecutor(1) as pool:
        assert slow.reached.wait(WAIT)
        assert arena.device_ptr_of(arena.ptr, SIZE // 2) == arena.ptr + LOCKED_OFFSET
        asked = pool.submit(arena.device_ptr_of, arena.ptr, SIZE)
        early = wait([asked], timeout=0.05).done
        slow.opened.set()
        assert not early
        assert asked.result(WAIT) == arena.ptr + LOCKED_OFFSET


async def awaited(arena: Arena) -> None:
    await arena


def test_closing_it_while_it_is_being_locked() -> None:
    slow = SlowDevice()
    arena = Arena(SIZE, slow)
    assert slow.reached.wait(WAIT)
    closing = Background(arena.close)
    slow.opened.set()
    closing.result()
    assert (arena.closed, slow.locked) == (True, {})


def test_a_wait_ends_when_it_is_closed() -> None:
    slow = SlowDevice()
    arena = Arena(SIZE, slow)
    waiting = Background(arena.wait)
    assert eventually(lambda: arena._parts[0].over._waiting)
    closing = Background(arena.close)
    assert eventually(lambda: arena._parts[0].stopped)
    slow.opened.set()
    closing.result()
    with pytest.raises(PinningError):
        waiting.result()


def test_a_refused_close_stops_no_locking() -> None:
    slow = SlowDevice(1, PAGE)
    with Arena(SIZE, slow) as arena:
        arena.wait(1, timeout=WAIT)
        with pinning.lock((arena.ptr, 100), device=slow):
            closing = Background(arena.close)
            closing.join(1)
            slow.opened.set()
            with pytest.raises(StillLockedError):
                closing.result()
            arena.wait(timeout=WAIT)
        assert pinning.is_locked(arena, device=slow)
    assert slow.locked == {}


@pytest.mark.parametrize("pieces", [0, 1])
def test_its_lock_is_not_taken_by_address_while_it_is_made(pieces: int) -> None:
    slow = SlowDevice(pieces, PAGE if pieces else sys.maxsize)
    with Arena(SIZE, slow) as arena:
        assert slow.reached.wait(WAIT)
        unlocking = Background(lambda: pinning.unlock(arena.ptr, device=slow))
        unlocking.join(0.1)
        slow.opened.set()
        with pytest.raises(NotLockedError):
            unlocking.result()
        arena.wait(timeout=WAIT)
        assert pinning.is_locked(arena, device=slow)


def test_a_close_while_it_is_being_locked_that_the_vendor_refuses_to_undo() -> None:
    slow = SlowDevice()
    arena = Arena(SIZE, slow)
    assert slow.reached.wait(WAIT)
    closing = Background(arena.close)
    assert eventually(lambda: arena._parts[0].stopped)
    for attempt in (1, 2, 3):
        slow.fail(vendor_error(), calls_before=attempt)
    slow.opened.set()
    with pytest.raises(VendorError):
        closing.result()
    assert (arena.closed, slow.locked) == (False, {arena.ptr: SIZE})
    slow.fail(vendor_error())
    with pytest.raises(VendorError):
        arena.wait(timeout=WAIT)
    arena.wait(timeout=WAIT)  # undone, and locked again
    assert pinning.is_locked(arena, device=slow)
    arena.close()
    assert (arena.closed, slow.locked) == (True, {})


def test_memory_that_the_vendor_refuses_to_unlock_stays_mapped() -> None:
    class Refusing(FakeDevice):
        refuses = True

        def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int:
            if len(self.locked) == 2:
                raise vendor_error()
            return super().data_lock(ptr, size, read_only)

        def data_unlock(self, ptr: int) -> None:
            if self.refuses:
                raise vendor_error()
            super().data_unlock(ptr)

    device = Refusing(largest_lock=PAGE)
    arena = Arena(SIZE, device)
    with pytest.raises(VendorError):
        arena.wait(timeout=WAIT)
    with pytest.raises(VendorError):
        arena.close()
    assert (arena.closed, len(device.locked)) == (False, 2)
    arena.asarray()[:] = 1
    device.refuses = False
    arena.close()
    assert (arena.closed, device.locked) == (True, {})


def test_a_vendor_that_refuses_to_unlock(device: FakeDevice) -> None:
    arena = Arena(SIZE, device)
    arena.wait(timeout=WAIT)
    device.fail(vendor_error())
    with pytest.raises(VendorError):
        arena.close()
    assert not arena.closed
    assert device.locked
    arena.close()
    assert arena.closed


def test_no_more_memory_than_asked_for() -> None:
    program = """
import sys
from pathlib import Path
sys.path.insert(0, {support!r})
from fake_device import FakeDevice
from pinning import Arena
SIZE = (128 << 20) + 12345
def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) << 10
with Arena(1 << 20, FakeDevice()) as arena:
    arena.wait()
before = peak()
with Arena(SIZE, FakeDevice(), huge_pages={huge}, **{how}) as arena:
    arena.wait()
    used = peak() - before
print(used / SIZE)
"""
    for huge in (None, False):
        for how in ({}, {"shared": True}, {"grow": 1 << 40}):
            text = program.format(support=str(SUPPORT), huge=huge, how=how)
            done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr
            assert 0.98 < float(done.stdout) < 1.01, how


# ---- allocations ----


def test_allocations_are_exact_and_neighbours_become_one(device: FakeDevice) -> None:
    with Arena(1000, device) as arena:
        parts = [arena.allocate(size, alignment=1) for size in (100, 300, 600)]
        assert [part.ptr - arena.ptr for part in parts] == [0, 100, 400]
        assert (arena.allocated, arena.available, arena.largest_available) == (1000, 0, 0)
        with pytest.raises(PoolLimitError, match="0 are free"):
            arena.allocate(1)
        parts[0].free()
        arena.free(parts[2])
        assert arena.largest_available == 600
        parts[1].free()
        assert arena.largest_available == 1000
        whole = arena.allocate(1000)
        assert (whole.ptr, whole.nbytes, whole.size) == (arena.ptr, 1000, 1000)
        whole.free()
        with arena.allocate(10, alignment=256) as aligned:
            assert aligned.ptr % 256 == 0


def test_an_allocation_is_memory_like_any_other(device: FakeDevice) -> None:
    with Arena(SIZE, device) as arena:
        memory = arena.allocate(96)
        array = memory.asarray((3, 4), "f8")
        array[:] = numpy.arange(12).reshape(3, 4)
        assert (numpy.frombuffer(memory, "f8") == range(12)).all()
        assert (numpy.from_dlpack(memory).view("f8") == range(12)).all()
        assert (numpy.asarray(memory).view("f8")[1:] == memory.asarray(dtype="f8", offset=8)).all()
        assert arena.asarray(12, "f8", memory.ptr - arena.ptr)[5] == 5
        found = pinning.memory_info(memory.ptr + 50)
        assert found is not None
        assert (found.kind, found.base, found.size) == (pinning.MemoryKind.HOST, memory.ptr, 96)
        back = numpy.empty(12)
        pinning.copy(back, memory)
        assert (back == range(12)).all()
        del array
        pinning.free(memory.ptr)
        assert memory.freed
        with pytest.raises(InvalidRangeError, match="freed again"):
            memory.free()
        with pytest.raises(InvalidRangeError, match=r"^<Allocation.* no longer has any bytes"):
            memory.asarray(100)


def test_an_array_beyond_it(device: FakeDevice) -> None:
    with Arena(1000, device) as arena:
        assert arena.asarray(dtype="f4", offset=998).shape == (0,)
        for shape, dtype, offset in [
            (1001, "u1", 0),
            (1, "f8", 993),
            (None, "u1", 1001),
            (1, "u1", -1),
            (-1, "u1", 0),
            ((-1, 4), "u1", 0),
        ]:
            with pytest.raises(InvalidRangeError):
                arena.asarray(shape, dtype, offset)
        for shape, dtype in [(2.5, "u1"), ("3", "u1"), (True, "u1"), ((2, 2.0), "u1"), (3, "O"), (3, "S0"), (3, "x")]:
            with pytest.raises(TypeError):
                arena.asarray(shape, dtype)


def test_what_is_in_use_is_not_freed(device: FakeDevice) -> None:
    with Arena(SIZE, device) as arena:
        arena.wait(timeout=WAIT)  # a part locked earlier would conflict with the arena's own lock
        memory = arena.allocate(1000)
        array = memory.asarray()
        with pytest.raises(StillInUseError, match="1 exported buffer"):
            memory.free()
        with pytest.raises(StillInUseError, match="1 allocation"):
            arena.close()
        assert not arena.closed
        del array
        for locked in (memory, (memory.ptr + 10, 10)):
            with pinning.lock(locked, device=device), pytest.raises(StillLockedError, match="unlock that first"):
                memory.free()
        memory.free()
        bytes_of_it = memoryview(arena)
        with pytest.raises(StillInUseError, match="1 exported buffer"):
            arena.close()
        bytes_of_it.release()
        for each in (device, FakeDevice("fake:1")):  # also for a device that is not the arena's
            with (
                pinning.lock((arena.ptr, 10), device=each),
                pytest.raises(StillLockedError, match="there is a lock in"),
            ):
                arena.close()
        arena.allocate(10).free()


def test_a_dropped_allocation_warns_and_is_freed(device: FakeDevice) -> None:
    with Arena(100, device) as arena:
        memory = arena.allocate(100)
        with pytest.warns(ResourceWarning, match="dropped"):
            del memory
        arena.allocate(100).free()


def test_a_dropped_arena_warns_and_is_closed(device: FakeDevice) -> None:
    arena = Arena(SIZE, device)
    arena.wait(timeout=WAIT)
    with pytest.warns(ResourceWarning, match="close it"):
        del arena
    run_deferred()
    assert device.locked == {}


def test_two_threads_may_close_it(device: FakeDevice) -> None:
    """Neither thread unmaps the memory before the other has unlocked it."""
    arena = Arena(SIZE, device)
    arena.wait(timeout=WAIT)
    with device.stopping("data_unlock", arena.ptr) as gate:
        first = Background(arena.close)
        assert gate.reached.wait(WAIT)
        second = Background(arena.close)
        second.join(0.1)
        assert not arena.closed
    for closing in (first, second):
        closing.result()
    assert arena.closed


def test_it_is_not_initialized_again(device: FakeDevice) -> None:
    with Arena(SIZE, device) as arena, pytest.raises(TypeError, match="cannot be initialized again"):
        arena.__init__(SIZE, device)  # type: ignore[misc]


def test_closed_it_has_nothing(device: FakeDevice) -> None:
    with Arena(SIZE, device) as arena:
        arena.wait(timeout=WAIT)
    assert (arena.allocated, arena.available, arena.largest_available, arena.progress) == (0, 0, 0, 0)
    for use in (
        lambda: arena.allocate(1),
        lambda: memoryview(arena),
        lambda: arena.asarray(3),
        lambda: arena.ptr,
        arena.placement,
        arena.wait,
        lambda: asyncio.run(awaited(arena)),
    ):
        with pytest.raises(PinningError, match=r"^<Arena .* is closed"):
            use()


# ---- growing ----


def test_more_than_it_has_is_not_waited_for(device: FakeDevice) -> None:
    with Arena(1000, device, grow=9 << 20) as arena:
        with pytest.raises(InvalidRangeError, match="nbytes is 1001; it must lie between 0 and 1000"):
            arena.wait(1001)
        arena.grow(500)
        arena.wait(1500, timeout=WAIT)


def test_it_grows_in_its_place(device: FakeDevice) -> None:
    with Arena(1000, device, grow=9 << 20) as arena:
        ptr = arena.ptr
        arena.asarray()[:] = 7
        arena.grow(500)
        assert (arena.ptr, arena.nbytes, arena.available) == (ptr, 1500, 1500)
        arena.wait(timeout=WAIT)
        assert device.locked == {ptr: 1000, ptr + 1000: 500}
        large = arena.allocate(3 << 20)
        assert arena.nbytes > 3 << 20
        arena.wait(timeout=WAIT)
        assert pinning.is_locked(large, device=device)
        assert (arena.asarray(1000) == 7).all()
        with pytest.raises(PoolLimitError, match="maximum of 9437184"):
            arena.allocate(8 << 20)
        with pytest.raises(PoolLimitError):
            arena.grow(9 << 20)
        rest = arena.maximum - arena.nbytes
        arena.allocate(rest, alignment=1).free()
        assert arena.nbytes == arena.maximum
        large.free()


def test_it_grows_once_for_two_threads_that_find_it_full() -> None:
    class Slow(FakeDevice):
        """Another thread allocates while a first is about to grow the arena."""

        def lock_limit(self) -> LockLimit | None:
            if others:
                had.extend(in_threads(arena.allocate, [others.pop()]))
            return None

    others: list[int] = []
    had: list[pinning.Allocation] = []
    with Arena(64, Slow(), grow=64 << 20) as arena:
        had.append(arena.allocate(64))
        arena.wait(timeout=WAIT)  # its lock asks for the limit too
        others.append(1000)
        had.append(arena.allocate(1000))
        assert len(had) == 3
        assert arena.nbytes == 64 + (2 << 20)
        for each in had:
            each.free()


def test_what_another_thread_has_added_up_to_its_maximum_is_enough() -> None:
    class Late(Arena):
        """Another thread allocates when a first has found no room."""

        def _take(self, *how: Any) -> Any:
            found = super()._take(*how)
            if found is None and others:
                had.append(self.allocate(others.pop()))
            return found

    others = [1000]
    had: list[pinning.Allocation] = []
    with Late(64, (), grow=64 + (2 << 20)) as arena:
        had.append(arena.allocate(1000))
        assert (len(had), arena.nbytes) == (2, arena.maximum)
        for each in had:
            each.free()


def test_allocations_that_grow_it_from_many_threads(device: FakeDevice) -> None:
    with Arena(64, device, grow=64 << 20) as arena:
        had = in_threads(arena.allocate, [3 << 20] * 8)
        starts = sorted(each.ptr for each in had)
        assert all(later - before >= 3 << 20 for before, later in pairwise(starts))
        for each in had:
            each.free()


def test_where_it_cannot_grow(device: FakeDevice) -> None:
    with pytest.raises(InvalidRangeError, match="at least nbytes"):
        Arena(1000, device, grow=999)
    with Arena(1000, device) as arena, pytest.raises(PoolLimitError):
        arena.grow(1)
    with Arena(1000, device, grow=1 << 46) as arena:
        with pytest.raises(LockLimitError, match="the machine's memory"):
            arena.grow((1 << 46) - 1000)
        assert arena.nbytes == 1000


def test_addresses_stay_reserved_after_a_growth_that_the_kernel_refuses(device: FakeDevice) -> None:
    with Arena(PAGE, device, grow=2 * PAGE, shared=True) as arena, socket.socket() as no_memory:
        end, file = arena.ptr + PAGE, os.dup(arena.fileno())
        os.dup2(no_memory.fileno(), arena.fileno())  # refused only once the kernel has unmapped what was there
        with pytest.raises(LockLimitError, match="the kernel refuses"):
            arena.grow(PAGE)
        os.dup2(file, arena.fileno(), inheritable=False)
        os.close(file)
        others = libc.mmap(end, PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        libc.munmap(others, PAGE)
        assert others != end
        arena.grow(PAGE)
        arena.asarray()[:] = 7


def test_it_is_not_closed_beneath_a_lock_of_what_it_could_not_lock(device: FakeDevice) -> None:
    arena = Arena(1 << 20, device, grow=9 << 20)
    arena.wait(timeout=WAIT)
    device.fail(RuntimeError("refused"))
    arena.grow(1 << 20)
    with pytest.raises(RuntimeError, match="refused"):
        arena.wait(timeout=WAIT)
    with pinning.lock((arena.ptr + (1 << 20), 4096), device=device) as lock:
        with pytest.raises(StillLockedError):
            arena.close()
        assert lock.held
    arena.close()
    assert device.locked == {}


def test_it_grows_by_less_if_a_whole_step_is_over_the_budget(device: FakeDevice) -> None:
    with Arena(1000, device, grow=9 << 20) as arena:
        arena.wait(timeout=WAIT)
        pinning.budget(pinning.budget().used + (64 << 10))
        try:
            block = arena.allocate(10_000)
            arena.wait(timeout=WAIT)
            assert pinning.is_locked(block, device=device)
            block.free()
        finally:
            pinning.budget(1.0)


def test_growth_beyond_the_budget_is_refused_unless_nothing_is_locked() -> None:
    with Arena(1000, [FakeDevice("fake:0"), FakeDevice("fake:1")], grow=9 << 20) as arena:
        arena.wait(timeout=WAIT)
        with Arena(1000, [], grow=9 << 20) as unlocked:
            pinning.budget(pinning.budget().used + (3 << 20))
            try:
                with pytest.raises(LockLimitError, match="budget"):
                    arena.grow(2 << 20)  # which counts once for each of its devices
                assert arena.nbytes == 1000
                unlocked.allocate(5 << 20).free()
            finally:
                pinning.budget(1.0)


@pytest.mark.parametrize(("huge_pages", "advice"), [(None, "hg"), (True, "hg"), (False, "nh")])
def test_what_the_kernel_knows_of_a_private_arena(device: FakeDevice, huge_pages: bool | None, advice: str) -> None:
    """No part of it is copied on write after a fork, and all has the advice about huge pages that is asked for."""
    with Arena(PAGE, device, grow=4 << 20, huge_pages=huge_pages) as arena:
        arena.grow(3 << 20)
        maps, upto = Path("/proc/self/smaps").read_text(), arena.ptr + arena.nbytes
        found = re.findall(r"^(\w+)-(\w+) .*?^VmFlags: (.*?)$", maps, re.MULTILINE | re.DOTALL)
        flags = [each.split() for start, end, each in found if int(start, 16) < upto and int(end, 16) > arena.ptr]
        assert flags
        assert all({"dc", advice} <= {*each} for each in flags), flags


# ---- limits ----


def test_more_than_there_is_is_refused_with_the_figures(device: FakeDevice) -> None:
    for how in ({}, {"shared": True}, {"name": f"test-{os.getpid()}-large"}):
        with pytest.raises(LockLimitError, match=r"is more than .* allows: \d+ bytes"):
            Arena(1 << 46, device, **how)  # type: ignore[arg-type]


def test_what_a_user_may_lock_is_looked_at_first() -> None:
    def check() -> None:
        with pytest.raises(LockLimitError, match="RLIMIT_MEMLOCK"):
            Arena(2 << 20, "host")
        with Arena(PAGE, "host", grow=4 << 20) as arena:
            arena.wait(timeout=WAIT)
            with pytest.raises(LockLimitError, match="RLIMIT_MEMLOCK"):
                arena.grow(2 << 20)

    run_as_ordinary_user(check, 64 << 10)


def test_addresses_that_are_not_to_be_had(device: FakeDevice) -> None:
    with pytest.raises(LockLimitError, match="ulimit -v"):
        Arena(PAGE, device, grow=1 << 62)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"huge_pages": "large"}, ArgumentError, "huge_pages is 'large'"),
        ({"huge_pages": "hugetlb", "name": "x"}, PinningError, "leave out the name"),
        ({"name": "a/b"}, ArgumentError, "name is 'a/b'"),
        ({"name": ""}, ArgumentError, "name is ''"),
        ({"name": "x" * 201}, ArgumentError, "200 bytes"),
        ({"name": "x", "grow": 1 << 30}, PinningError, "cannot grow"),
        ({"create": True}, ArgumentError, "with a name"),
        ({"part": slice(0, 5)}, ArgumentError, "with a name"),
        ({"name": "x", "part": slice(5, 5)}, InvalidRangeError, "part is"),
        ({"name": "x", "part": slice(0, SIZE + 1)}, InvalidRangeError, "part is"),
        ({"name": "x", "part": slice(0, 10, 2)}, InvalidRangeError, "part is"),
        ({"devices": "nobody:0"}, ArgumentError, "nobody:0"),
        ({"shared": "no"}, TypeError, "shared is 'no'; it must be True or False"),
        ({"name": "x", "create": "no"}, TypeError, "create is 'no'"),
    ],
)
def test_what_cannot_be(device: FakeDevice, options: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Arena(SIZE, **{"devices": device, **options})  # type: ignore[arg-type]


def test_huge_pages_that_others_have_reserved_are_not_free(tmp_path: Path) -> None:
    figures = "HugePages_Total: 9\nHugePages_Free: 7\nHugePages_Rsvd: 4\nHugepagesize: 2048 kB\n"
    (tmp_path / "meminfo").write_text(figures)
    assert mapping._hugetlb_pool(tmp_path / "meminfo") == (9 << 21, 3 << 21)


def test_huge_pages_that_nobody_has_set_aside(device: FakeDevice) -> None:
    pool = int(Path("/proc/meminfo").read_text().partition("HugePages_Total:")[2].split()[0])
    if pool:
        pytest.skip("needs a machine without a pool of huge pages")
    with pytest.raises(LockLimitError, match="nr_hugepages"):
        Arena(SIZE, device, huge_pages="hugetlb")
    with Arena(SIZE, device, huge_pages="try") as arena:
        arena.wait(timeout=WAIT)
        assert pinning.is_locked(arena, device=device)


# ---- fork ----


def test_a_child_has_nothing_of_an_arena_that_is_not_shared(device: FakeDevice) -> None:
    with Arena(SIZE, device) as arena:
        memory = arena.allocate(100)

        def check() -> None:
            assert arena.closed
            assert memory.freed
            memory.free()
            arena.close()
            with pytest.raises(PinningError):
                memoryview(arena)
            with Arena(SIZE, device) as own:
                own.wait(timeout=WAIT)

        run_in_child(check)
        memory.free()


def test_a_child_has_the_bytes_of_a_shared_arena_and_no_locks(device: FakeDevice) -> None:
    with Arena(SIZE, device, shared=True) as arena:
        arena.wait(timeout=WAIT)
        assert os.fstat(arena.fileno()).st_size == SIZE
        memory = arena.allocate(100)
        exported = memoryview(memory)

        def check() -> None:
            assert not arena.closed
            assert memory.freed
            assert arena.allocated == 0
            assert not pinning.is_locked(arena, device=device)
            with pytest.raises(NotLockedError, match="fork"):
                arena.wait()
            with pytest.raises(PinningError, match="fork"):
                arena.allocate(1)
            arena.asarray()[5] = 77
            with pytest.raises(StillInUseError, match="exported"):
                arena.close()
            exported.release()
            arena.close()
            assert arena.closed

        run_in_child(check)
        exported.release()
        memory.free()
        assert arena.asarray()[5] == 77
        assert pinning.is_locked(arena, device=device)
    with Arena(SIZE, device) as alone, pytest.raises(PinningError, match="shared=True"):
        alone.fileno()


# ---- nodes ----


def test_it_says_where_its_pages_are(device: FakeDevice) -> None:
    with Arena(SIZE, device) as arena:
        arena.wait(timeout=WAIT)
        found = arena.placement()
        if not found:
            pytest.skip("needs a kernel that says where pages are (move_pages)")
        assert sum(found.values()) == SIZE
        assert set(found) <= set(numa.nodes())
        node = min(found)
    with Arena(SIZE, device, numa_node=node) as arena:
        arena.wait(timeout=WAIT)
        assert arena.placement() == {node: SIZE}


def test_an_arena_that_is_closed_at_once_has_begun_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` waits for that thread; another one, still starting when the interpreter exits, could crash it."""
    begun: list[threading.Timer] = []

    def begin(run: Callable[[], None]) -> int:
        begun.append(threading.Timer(0.1, run))
        begun[-1].start()
        return len(begun)

    monkeypatch.setattr("pinning.arena.ready.start_thread", begin)
    Arena(SIZE, []).close()
    for each in begun:
        each.join()
    assert len(begun) == 1


def test_without_a_thread_nothing_is_made_and_nothing_grows(device: FakeDevice) -> None:
    name = f"no-thread-{os.getpid()}"

    def check() -> None:
        with Arena(SIZE, device, grow=4 * SIZE) as arena:
            arena.wait(timeout=WAIT)
            before = threading.stack_size(1 << 47)  # all addresses of a process: no thread can be started with that
            try:
                with pytest.raises(PinningError, match="ulimit -u"):
                    arena.grow(SIZE)
                with pytest.raises(PinningError, match="ulimit -u"):
                    Arena(SIZE, device, name=name)
            finally:
                threading.stack_size(before)
            assert arena.nbytes == SIZE
            arena.grow(SIZE)
            arena.wait(timeout=WAIT)
            assert arena.nbytes == 2 * SIZE
        run_deferred()
        assert not Path(f"/dev/shm/pinning-arena.{name}").exists()

    run_in_child(check)  # CPython keeps the state of a thread that it could not start, and may raise Ctrl-C there


def test_it_is_near_its_device(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    with Arena(SIZE, device) as arena:
        assert arena.numa_node is None  # unknown
    node = min(numa.nodes())
    monkeypatch.setattr(numa, "node_of", lambda device: node)
    with Arena(SIZE, device) as arena:
        assert arena.numa_node == node


# ---- exit ----


@pytest.mark.parametrize("how", ["", "shared=True", "name='exit-{pid}'"])
def test_a_program_may_end_without_closing_it(how: str) -> None:
    program = f"""
import os, pinning
arena = pinning.Arena({PAGE}, "host", {how.format(pid=os.getpid())})
part = arena.allocate(10)
array = part.asarray()
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=WAIT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not Path(f"/dev/shm/pinning-arena.exit-{os.getpid()}").exists()


def test_a_lock_whose_memory_has_gone_keeps_nothing_that_comes_there() -> None:
    for _ in range(20):
        gone = mmap.mmap(-1, SIZE)
        address = numpy.frombuffer(gone, numpy.uint8).ctypes.data
        lock = pinning.lock((address, SIZE), device="host:0")
        gone.close()
        with Arena(SIZE, "host:0") as arena:
            arena.wait()
            memory = arena.allocate(100)
            assert not lock.held
            memory.free()
            if arena.ptr == address:
                return
    pytest.skip("no arena came to where memory had been")

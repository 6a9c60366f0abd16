# SPDX-License-Identifier: Apache-2.0
"""Background locks, on a device that stops, refuses and records its calls."""

from __future__ import annotations

import asyncio
import gc
import mmap
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import nullcontext
from unittest.mock import Mock

import numpy as np
import pytest

import pinning
from child_process import run_in_child
from fake_device import LOCKED_OFFSET, WAIT, Background, FakeDevice
from folders import SUPPORT
from pinning import (
    ArgumentError,
    InvalidRangeError,
    PartialOverlapError,
    PendingLock,
    PinningError,
    VendorError,
)
from pinning.conformance.faults import eventually

PIECE = 1 << 16
PIECES = 5
SIZE = PIECES * PIECE
REFUSED = VendorError("fakeCall", 1, "FAKE")


@pytest.fixture
def buffer() -> np.ndarray:
    return np.ones(SIZE, np.uint8)


def start(buffer: np.ndarray) -> int:
    return buffer.ctypes.data


# ---- the lock ----


@pytest.mark.parametrize(
    "how", [{}, {"piece": PIECE}, {"unit": 1000}, {"stall_ms": 0.5}, {"unit": SIZE, "stall_ms": 1}]
)
def test_its_result_is_a_lock(device: FakeDevice, buffer: np.ndarray, how: dict[str, int]) -> None:
    pending = pinning.lock_async(buffer, device=device, **how)
    lock = pending.wait(timeout=WAIT)
    assert isinstance(lock, pinning.Lock)
    assert (lock.ptr, lock.size, lock.device) == (start(buffer), SIZE, device)
    assert lock.device_ptr == start(buffer) + LOCKED_OFFSET
    assert lock.held
    assert (pending.done(), pending.progress) == (True, SIZE)
    assert pending.wait() is lock
    assert pinning.is_locked(buffer, device=device)
    lock.unlock()
    assert not pinning.is_locked(buffer, device=device)
    owner = bytearray(100)
    with pinning.lock_async(owner, device=device).wait(timeout=WAIT), pytest.raises(BufferError):
        owner.extend(b"more")
    device.fail(REFUSED)
    refused = pinning.lock_async(owner, device=device)
    with pytest.raises(VendorError):
        refused.wait(timeout=WAIT)
    owner.extend(b"more")


def test_what_is_locked_already_is_counted_at_once(device: FakeDevice, buffer: np.ndarray) -> None:
    with pinning.lock(buffer, device=device) as whole:
        pending = pinning.lock_async(buffer[100:200], device=device)
        assert (pending.done(), pending.progress) == (True, 100)
        assert whole.region is not None
        assert whole.region.references == 2
        pending.wait().unlock()
        second = pinning.lock_async(buffer[200:300], device=device).wait()
        pinning.unlock(buffer[200:300], device=device)
        assert second.region is None and whole.region is not None
    assert device.count("data_lock") == 1


def test_waiting_for_what_is_locked_so_far(device: FakeDevice, buffer: np.ndarray) -> None:
    with device.stopping("data_lock", start(buffer) + 2 * PIECE) as gate:
        pending = pinning.lock_async(buffer, device=device, piece=PIECE)
        pending.wait(2 * PIECE, timeout=WAIT)
        assert gate.reached.wait(WAIT)
        assert (pending.progress, pending.done()) == (2 * PIECE, False)
        region = pinning.pinned_map(device).find(start(buffer))
        assert region and region.size == 2 * PIECE  # a later copy may meet the borders to come
        assert region.borders == tuple(range(start(buffer) + PIECE, start(buffer) + SIZE, PIECE))
        with pytest.raises(TimeoutError, match=f"{2 * PIECE} bytes"):
            pending.wait(timeout=0.1)
        with pytest.raises(TimeoutError):
            pending.wait(timeout=0)
        gate.open()
    pending.wait(timeout=WAIT).unlock()
    assert device.count("data_lock") == PIECES


def test_a_copy_takes_each_part_of_what_grows_by_itself() -> None:
    # The host's device makes the copy: what matters is that the bytes are right while the region grows.
    source = np.arange(1 << 18, dtype=np.uint8)
    there = np.zeros_like(source)
    with pinning.lock_async(source, device="host:0", piece=1 << 14) as pending:
        pinning.copy(there, source)
        pending.wait(timeout=WAIT)
    assert (there == source).all()


def test_many_are_taken_by_few_threads(device: FakeDevice) -> None:
    buffers = [np.ones(PIECE, np.uint8) for _ in range(200)]
    before = set(threading.enumerate())
    with device.stopping("data_lock", start(buffers[0])) as gate:
        pending = [pinning.lock_async(each, device=device) for each in buffers]
        assert gate.reached.wait(WAIT)
        assert len(set(threading.enumerate()) - before) <= 1
        assert not any(each.done() for each in pending)
        pending[7].cancel()  # before its turn
        gate.open()
    for at, each in enumerate(pending):
        if at != 7:
            each.wait(timeout=WAIT).unlock()
    assert device.count("data_lock") == 199


# ---- pieces ----


@pytest.mark.parametrize("unit", [1, 7, 1 << 20, 24 << 20, 3 * (5 << 20)])
def test_borders_lie_between_units(unit: int) -> None:
    device = FakeDevice()
    size = (100 << 20) + 5
    buffer = np.zeros(size, np.uint8)
    lock = pinning.lock_async(buffer, device=device, unit=unit).wait(timeout=WAIT)
    region = lock.region
    assert region is not None
    ends = [base + length - start(buffer) for base, length in device.locked.items()]
    assert ends[-1] == size
    assert all(end % unit == 0 and end + start(buffer) in region.borders for end in ends[:-1])
    assert all(border < 16 << 20 or border % unit == 0 for border in (each - start(buffer) for each in region.borders))
    assert region.in_one_piece(start(buffer), unit)
    lock.unlock()
    assert device.locked == {}


def test_pieces_become_as_large_as_the_time_allows() -> None:
    class Slow(FakeDevice):
        def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int:
            time.sleep(size / (64 << 20) * 0.02)
            return super().data_lock(ptr, size, read_only)

    sizes = {}
    for stall_ms in (0.001, 1e6):
        device, buffer = Slow(), np.ones(128 << 20, np.uint8)
        pinning.lock_async(buffer, device=device, unit=1, stall_ms=stall_ms).wait(timeout=10 * WAIT).unlock()
        sizes[stall_ms] = [call.size for call in device.calls if call.method == "data_lock"]
    assert set(sizes[0.001]) == {16 << 20}
    assert sizes[1e6] == [16 << 20, 32 << 20, 64 << 20, 16 << 20]


def test_the_foreground_locks_in_units_too(device: FakeDevice, buffer: np.ndarray) -> None:
    with pinning.lock(np.ones(40 << 20, np.uint8), device=device, unit=10 << 20, stall_ms=1e-3) as lock:
        assert lock.region is not None
        assert lock.region.piece == 10 << 20
        assert list(device.locked.values()) == [10 << 20] * 4


@pytest.mark.parametrize("how", [{}, {"piece": SIZE}, {"unit": SIZE}, {"stall_ms": 1e3}])
def test_no_call_takes_more_than_the_vendor_can(buffer: np.ndarray, how: dict[str, float]) -> None:
    device = FakeDevice(largest_lock=PIECE - 1)
    for lock in (pinning.lock, lambda *args, **how: pinning.lock_async(*args, **how).wait(timeout=WAIT)):
        with lock(buffer, device=device, **how):  # type: ignore[operator]
            assert sum(device.locked.values()) == SIZE
        assert device.locked == {} and device.wrong == []


@pytest.mark.parametrize(
    "wrong",
    [
        *({"unit": 0}, {"unit": -1}, {"unit": 1 << 64}),
        *({"stall_ms": 0}, {"stall_ms": -1.0}, {"stall_ms": float("nan")}),
        *({"piece": 0}, {"piece": PIECE, "unit": 1}, {"piece": PIECE, "stall_ms": 1}),
    ],
)
def test_what_is_no_size_or_time_is_refused(device: FakeDevice, buffer: np.ndarray, wrong: dict[str, float]) -> None:
    for lock in (pinning.lock, pinning.lock_async):
        with pytest.raises(ArgumentError if len(wrong) > 1 else InvalidRangeError, match=next(iter(wrong))):
            lock(buffer, device=device, **wrong)  # type: ignore[operator]
    assert device.calls == []


@pytest.mark.parametrize("nbytes", [-1, SIZE + 1])
def test_to_wait_for_more_than_there_is_is_refused(device: FakeDevice, buffer: np.ndarray, nbytes: int) -> None:
    with pinning.lock_async(buffer, device=device) as pending, pytest.raises(InvalidRangeError, match=str(nbytes)):
        pending.wait(nbytes)


# ---- refusals ----


def test_what_cannot_be_locked_is_told_by_wait(device: FakeDevice, buffer: np.ndarray) -> None:
    with pinning.lock(buffer[100:200], device=device):
        pending = pinning.lock_async(buffer, device=device)
        with pytest.raises(PartialOverlapError):
            pending.wait(timeout=WAIT)
    with pytest.raises(TypeError):
        pinning.lock_async(object(), device=device)
    with pytest.raises(InvalidRangeError):
        pinning.lock_async(b"", device=device)
    unmapped = pinning.lock_async((1 << 20, 100), device=device)
    with pytest.raises(InvalidRangeError, match="not mapped"):
        unmapped.wait(timeout=WAIT)


def test_a_thread_that_cannot_start_is_in_the_way_of_no_later_lock(
    device: FakeDevice, buffer: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("_thread.start_new_thread", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            pinning.lock_async(buffer, device=device)
    with pinning.lock_async(buffer, device=device) as pending:
        assert pending.wait(timeout=WAIT).held


# ---- cancelled, closed or dropped before it is done ----


@pytest.mark.parametrize("refused", [False, True])
def test_cancelled_while_a_piece_is_being_locked(device: FakeDevice, buffer: np.ndarray, refused: bool) -> None:
    with device.stopping("data_lock", start(buffer) + PIECE) as gate:
        pending = pinning.lock_async(buffer, device=device, piece=PIECE)
        assert gate.reached.wait(WAIT)
        pending._abandon()
        if refused:
            device.fail(REFUSED)
        gate.open()
        with pytest.raises(VendorError) if refused else nullcontext():
            pending.cancel()
    assert pending.done()
    with pytest.raises(PinningError):
        pending.wait()
    if refused:
        assert device.locked
        pinning.unlock(buffer, device=device)  # of what is half unlocked
    pending.cancel()
    assert (device.locked, pending.progress) == ({}, 0)
    pinning.lock(buffer, device=device).unlock()


def test_a_lock_of_others_is_not_what_a_refused_one_has_left(device: FakeDevice, buffer: np.ndarray) -> None:
    device.fail(REFUSED)
    pending = pinning.lock_async(buffer, device=device)
    with pytest.raises(VendorError):
        pending.wait(timeout=WAIT)
    with device.stopping("data_lock", start(buffer)) as gate:
        other = Background(lambda: pinning.lock(buffer, device=device))
        assert gate.reached.wait(WAIT)
        pending.cancel()
    other.result().unlock()  # type: ignore[attr-defined]


def test_unlocked_by_address_while_it_is_being_locked(device: FakeDevice, buffer: np.ndarray) -> None:
    with device.stopping("data_lock", start(buffer) + PIECE) as gate:
        pending = pinning.lock_async(buffer, device=device, piece=PIECE)
        assert gate.reached.wait(WAIT)
        unlocking = Background(lambda: pinning.unlock(buffer, device=device))
        unlocking.join(0.1)
    unlocking.result()
    lock = pending.wait(timeout=WAIT)
    assert (lock.held, device.locked) == (False, {})
    assert "held no more" not in repr(lock)


def test_cancelled_while_it_waits_for_its_pages(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    began, populating = threading.Event(), Mock(error=None)
    populating.side_effect = lambda *how, **more: began.set() or populating  # and none of it comes
    monkeypatch.setattr("pinning.locking.lock_async.Populating", populating)
    memory = mmap.mmap(-1, SIZE)
    pending = pinning.lock_async(memory, device=device, piece=PIECE)
    assert began.wait(WAIT)
    time.sleep(0.05)  # until it waits
    Background(pending.cancel).result()
    assert populating.stop.called
    assert device.locked == {}


def test_cancelled_once_done(device: FakeDevice, buffer: np.ndarray) -> None:
    pending = pinning.lock_async(buffer, device=device, piece=PIECE)
    lock = pending.wait(timeout=WAIT)
    device.fail(REFUSED)
    with pytest.raises(VendorError):
        pending.cancel()
    assert lock.held
    pending.cancel()
    assert not lock.held
    assert device.locked == {}


def test_the_map_is_closed_meanwhile(device: FakeDevice, buffer: np.ndarray) -> None:
    pinned = pinning.pinned_map(device)
    with device.stopping("data_lock", start(buffer) + PIECE) as gate:
        pending = pinning.lock_async(buffer, device=device, piece=PIECE)
        waiting = pinning.lock_async(np.ones(10, np.uint8), device=device)
        assert gate.reached.wait(WAIT)
        closing = Background(pinned.close)
        while "closed" not in repr(pinned) and closing.is_alive():
            closing.join(0.001)
        gate.open()
        closing.result()
    for each in (pending, waiting):
        with pytest.raises(PinningError):
            each.wait(timeout=WAIT)
    assert device.locked == {}
    with pytest.raises(PinningError, match="closed"):
        pinning.lock_async(buffer, device=device)


def test_one_that_is_dropped_warns_and_is_undone(device: FakeDevice, buffer: np.ndarray) -> None:
    with device.stopping("data_lock", start(buffer) + PIECE) as gate:
        pending = pinning.lock_async(buffer, device=device, piece=PIECE)
        assert gate.reached.wait(WAIT)
        with pytest.warns(ResourceWarning, match="dropped before it was done"):
            del pending
            gc.collect()
        gate.open()
    assert eventually(lambda: device.locked == {})


def test_a_lock_that_nobody_has_fetched_warns(device: FakeDevice, buffer: np.ndarray) -> None:
    pending = pinning.lock_async(buffer, device=device)
    pending.wait(SIZE, timeout=WAIT)
    while not pending.done():
        time.sleep(0.001)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del pending
        assert eventually(lambda: gc.collect() >= 0 and not device.locked)  # the thread drops the last reference
    assert any(issubclass(each.category, ResourceWarning) for each in told)


# ---- asyncio ----


def test_it_can_be_awaited(device: FakeDevice, buffer: np.ndarray) -> None:
    async def main() -> None:
        with device.stopping("data_lock", start(buffer)) as gate:
            pending = pinning.lock_async(buffer, device=device)
            waiting = asyncio.create_task(pending)
            impatient = asyncio.create_task(pending)
            await asyncio.sleep(0.01)
            assert not waiting.done()
            impatient.cancel()
            with pytest.raises(asyncio.CancelledError):
                await impatient
            gate.open()
            lock = await asyncio.wait_for(waiting, WAIT)
        assert lock is await pending
        assert lock.held
        lock.unlock()
        device.fail(REFUSED)
        with pytest.raises(VendorError):
            await pinning.lock_async(buffer, device=device)

    asyncio.run(main())


async def _wait(pending: PendingLock) -> pinning.Lock:
    return await pending


def test_the_loop_may_go_before_the_lock(device: FakeDevice, buffer: np.ndarray) -> None:
    with device.stopping("data_lock", start(buffer)) as gate:
        pending = pinning.lock_async(buffer, device=device)

        async def main() -> None:
            asyncio.ensure_future(_wait(pending)).cancel()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_wait(pending), 0.01)

        asyncio.run(main())
        gate.open()
    pending.wait(timeout=WAIT).unlock()


# ---- signals and exit ----


def test_ctrl_c_ends_the_wait_and_not_the_lock(device: FakeDevice, buffer: np.ndarray) -> None:
    with device.stopping("data_lock", start(buffer)) as gate:
        pending = pinning.lock_async(buffer, device=device)
        assert gate.reached.wait(WAIT)
        main = threading.main_thread().ident
        assert main is not None
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
            pending.wait(timeout=WAIT)
        gate.open()
    pending.wait(timeout=WAIT).unlock()


PROGRAM = f"""
import atexit, sys, time
class Last:
    def __call__(self): print("left", len(device.locked), len(device.calls) < 256)
atexit.register(Last())
sys.path.insert(0, {str(SUPPORT)!r})
import numpy, pinning
from fake_device import FakeDevice
class Slow(FakeDevice):
    def data_lock(self, ptr, size, read_only):
        time.sleep(0.01)
        return super().data_lock(ptr, size, read_only)
device = Slow()
pending = pinning.lock_async(numpy.ones(1 << 24, "u1"), device=device, piece=1 << 16)
waiting = pinning.lock_async(numpy.ones(100, "u1"), device=device)
pending.wait(1 << 17)
"""


def test_a_program_may_end_with_one_pending() -> None:
    command = [sys.executable, "-X", "dev", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "left 0 True\n"), done.stderr
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("in_child", [False, True])
def test_locks_are_taken_in_the_order_of_the_calls(buffer: np.ndarray, in_child: bool) -> None:
    def take_two() -> None:
        device, other = FakeDevice(), np.ones(SIZE, np.uint8)
        with device.stopping("data_lock", start(buffer)) as gate:
            first = pinning.lock_async(buffer, device=device)
            second = pinning.lock_async(other, device=device)
            assert gate.reached.wait(WAIT)
            time.sleep(0.05)  # time for the second, which must not be taken
            assert device.count("data_lock") == 1
            gate.open()
            second.wait()
            assert first.done()
        for pending in (first, second):
            pending.cancel()

    take_two()
    if in_child:
        run_in_child(take_two)

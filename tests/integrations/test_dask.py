# SPDX-License-Identifier: Apache-2.0
"""`pinning.dask`: which frames of a worker are locked, and when their memory is reused."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy
import pytest

import pinning
from fake_device import FakeDevice
from pinning import VendorError
from pinning.conformance.faults import eventually

pytest.importorskip("distributed", reason="needs Dask: pip install distributed")

from pinning import dask as of_dask

MINUTE = 60
SIZE = 1 << 16


class Worker:
    def __init__(self) -> None:
        self.metrics: dict[str, object] = {}


def locked(frame: memoryview) -> bool:
    return pinning.is_locked(frame, device="host:0")


def test_frames_are_locked_while_a_worker_has_the_plugin() -> None:
    before = of_dask.utils.host_array
    plugin, workers = of_dask.LockedFrames(4 * SIZE, "host:0"), [Worker(), Worker()]
    for worker in workers:
        plugin.setup(worker)
    frame = of_dask.tcp.host_array(SIZE)
    assert frame.nbytes == SIZE and frame.format == "B" and not frame.readonly
    assert eventually(partial(locked, frame))
    merged = of_dask.utils.host_array_from_buffers([bytes(SIZE), bytearray(b"1" * SIZE)])
    assert locked(merged) and merged[-1] == ord("1")
    assert not locked(of_dask.tcp.host_array(SIZE - 1)), "what is small is not worth it"
    assert workers[0].metrics["locked_bytes"](workers[0]) >= 4 * SIZE  # type: ignore[operator]

    plugin.teardown(workers[0])
    assert of_dask.tcp.host_array is not before
    plugin.teardown(workers[1])
    assert of_dask.tcp.host_array is of_dask.utils.host_array is before
    assert workers[0].metrics == workers[1].metrics == {}
    array = numpy.frombuffer(frame, "u1")
    del merged, frame
    gc.collect()
    assert pinning.is_locked(array, device="host:0"), "what somebody has stays"
    at = array.ctypes.data
    del array
    assert eventually(lambda: pinning.find(at, device="host:0") is None)


def test_dropped_frames_are_reused_and_frames_without_room_are_plain() -> None:
    plugin, worker = of_dask.LockedFrames(4 * SIZE, "host:0"), Worker()
    plugin.setup(worker)
    kept = [of_dask.tcp.host_array(SIZE) for _ in range(4)]
    assert eventually(lambda: all(map(locked, kept)))
    assert not locked(of_dask.tcp.host_array(SIZE))
    kept.clear()
    assert eventually(lambda: locked(of_dask.tcp.host_array(SIZE)))
    plugin.teardown(worker)


class SlowDevice(FakeDevice):
    """Completes its work only once `done` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.done = threading.Event()


def test_what_the_device_may_still_read_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SlowDevice()
    waits = threading.Event()

    def wait() -> None:
        waits.set()
        assert device.done.wait(MINUTE)

    device.synchronize = wait  # type: ignore[attr-defined]
    monkeypatch.setattr(of_dask, "MemoryDevice", SlowDevice)
    frames = of_dask._Frames(pinning.Arena(2 * SIZE, device), device, SIZE)
    first = frames.allocate(SIZE)
    assert first is not None and frames.allocate(2 * SIZE) is None
    at = numpy.frombuffer(first, "u1").ctypes.data
    del first
    assert waits.wait(MINUTE)
    second, third = frames.allocate(SIZE), frames.allocate(SIZE)
    assert second is not None and numpy.frombuffer(second, "u1").ctypes.data != at and third is None
    device.done.set()
    assert eventually(lambda: frames.allocate(SIZE) is not None)
    frames.close()
    del second
    gc.collect()
    assert eventually(lambda: device.locked == {})


def test_a_lock_that_is_refused_is_said(caplog: pytest.LogCaptureFixture) -> None:
    device = FakeDevice()
    device.fail(VendorError("fakeRegister", 2, "FAKE_OUT_OF_MEMORY"))
    frames = of_dask._Frames(pinning.Arena(SIZE, device), device, SIZE)
    assert eventually(lambda: caplog.records)
    assert "FAKE_OUT_OF_MEMORY" in caplog.text and frames.allocate(SIZE) is None
    frames.close()


def test_an_arena_that_is_closed_before_it_is_locked_and_used(monkeypatch: pytest.MonkeyPatch) -> None:
    device, closed = FakeDevice(), threading.Event()
    arena = pinning.Arena(SIZE, device)
    wait = arena.wait

    def wait_and_more(*given: object) -> None:
        assert closed.wait(MINUTE)
        wait()

    monkeypatch.setattr(arena, "wait", wait_and_more)
    of_dask._Frames(arena, device, SIZE).close()
    closed.set()
    assert eventually(lambda: arena.closed)
    assert device.locked == {}


def test_a_frame_that_was_asked_for_as_the_arena_closed_holds_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    arena = pinning.Arena(SIZE, device)
    arena.wait()
    close, late = arena.close, []

    def close_late() -> None:
        if not late:
            late.append(arena.allocate(SIZE))
        close()

    monkeypatch.setattr(arena, "close", close_late)
    frames = of_dask._Frames(arena, device, SIZE)
    frames.close()
    assert eventually(lambda: late)
    frames._dropped.put(late[0])
    assert eventually(lambda: arena.closed)


def test_a_worker_that_cannot_have_the_arena_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pinning.dask")
    before, worker = of_dask.tcp.host_array, Worker()
    for plugin in (of_dask.LockedFrames(1 << 50, "host:0"), of_dask.LockedFrames(SIZE, "none:0")):
        plugin.setup(worker)
        plugin.teardown(worker)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert of_dask.tcp.host_array is before and worker.metrics == {}


def test_with_dask_itself(tmp_path: Path) -> None:
    with pinning.lock(bytearray(5 << 20), device="host:0"):
        pass  # otherwise conftest.py skips the test
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / "with_dask.py", tmp_path],
        capture_output=True,
        text=True,
        timeout=8 * MINUTE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dask: all right" in done.stdout


def test_wrong_arguments_are_refused_where_they_are_given() -> None:
    for arguments, text in (
        ((None,), "nbytes is None; it must be an integer"),
        ((SIZE, 0), "device is 0; give a name, such as 'cuda:0'"),
        ((SIZE, None, "x"), "smallest is 'x'"),
    ):
        with pytest.raises(TypeError, match=text):
            of_dask.LockedFrames(*arguments)
    assert repr(of_dask.LockedFrames(SIZE, "host:0")) == f"<LockedFrames of {SIZE} bytes, for host:0>"

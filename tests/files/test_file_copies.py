# SPDX-License-Identifier: Apache-2.0
"""Copies from files on the host."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

import pinning
from child_process import run_in_child
from fake_device import Background
from fake_memory import FakeMemoryDevice, FakeQueue
from file_copies import *  # noqa: F403
from file_copies import SIZE, fetch, held_back
from noise import noise
from pinning.conformance.faults import eventually


@pytest.fixture
def queue() -> Iterator[pinning.Queue]:
    with pinning.Queue("host") as queue:
        yield queue
    pinning.copies.trim_staging()


@pytest.mark.parametrize("stages", [True, False])
def test_a_device_written_in_python(file: Path, stages: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If its queues cannot wait for words, the caller reads the file; for host memory, the queue calls a function."""
    monkeypatch.setattr(FakeQueue, "waits_for_values", stages)
    device = FakeMemoryDevice(held=False)
    array = numpy.zeros(SIZE, numpy.uint8)
    with pinning.Queue(device) as queue, pinning.alloc(SIZE, device=device) as there:
        copy = pinning.copy_file(there, file, queue=queue)
        assert copy.path == ("staged" if stages else "plain")
        assert (fetch(there, queue) == noise(SIZE)).all()
        pinning.copy_file(array, file, queue=queue)
        assert (array == noise(SIZE)).all()
        os.truncate(file, SIZE // 2)
        with pytest.raises(pinning.InvalidRangeError):
            pinning.copy_file(array, file, queue=queue)
        os.truncate(file, 0)
        with pytest.raises(pinning.InvalidRangeError, match="is empty"):
            pinning.copy_file(array, file, queue=queue)
        queue.synchronize()
    device.let_go()
    gc.collect()
    pinning.copies.trim_staging()
    pinning.pinned_map(device).close()


def test_a_block_is_copied_before_the_next_is_read_into_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeQueue, "waits_for_values", False)
    data, file = noise(9 << 20), tmp_path / "large"
    data.tofile(file)
    device = FakeMemoryDevice()
    with pinning.Queue(device) as queue, pinning.alloc(data.size, device=device) as there:
        copying = Background(lambda: pinning.copy_file(there, file, queue=queue))
        assert eventually(lambda: len(device.queues[-1].pending()) > 0)
        time.sleep(0.05)  # time to read more, which must not be
        device.let_go()
        copying.result()
        assert (fetch(there, queue) == data).all()


def test_a_block_is_filled_before_it_is_written_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeQueue, "waits_for_values", False)
    data, file, device = noise(9 << 20), tmp_path / "saved", FakeMemoryDevice(held=False)
    there = pinning.arrays.to_device(data, device=device)
    for each in device.queues:
        each.held = True
    saving = Background(lambda: pinning.save_file({"a": there}, file))
    assert eventually(lambda: any(queue.pending() for queue in device.queues))
    device.let_go()
    saving.result()
    assert (pinning.load_file(file, "host", framework="numpy")["a"] == data).all()


@pytest.mark.parametrize("folder", ["/dev/shm", None])
def test_memory_that_is_gone(tmp_path: Path, folder: str | None) -> None:
    """Of a mapped file that was truncated: an error, on every file system and way to write and read."""
    target = (Path(folder) if folder else tmp_path) / f"pinning-test-{os.getpid()}"
    program = f"""
import os
import numpy, pinning
path, target = {str(tmp_path / "mapped")!r}, {str(target)!r}
def gone(left):
    with open(path, "wb") as file:
        file.truncate(9 << 20)
    array = numpy.memmap(path, "u1", "r+")
    os.truncate(path, left)
    return array
most = (9 << 20) - 4096
for fsync in (False, True):
    for left, save in ((4096, pinning.save_file), (most, pinning.save_file), (most, pinning.save_file_async)):
        try:
            save({{"a": gone(left)}}, target, fsync=fsync)
        except pinning.FileError as error:
            assert "mapped file" in str(error) and error.filename == target, error
        else:
            raise AssertionError
assert not os.path.exists(target)
pinning.save_file({{"a": numpy.zeros(9 << 20, "u1")}}, target, fsync=True)
with open(target) as file:
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
for left in (4096, most):
    try:
        pinning.copy_file(gone(left), target, 0, 9 << 20)
    except pinning.FileError as error:
        assert "mapped file" in str(error), error
    else:
        raise AssertionError
"""
    try:
        subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=300)
    finally:
        target.unlink(missing_ok=True)


def test_a_fork_while_a_file_is_copied(queue: pinning.Queue, file: Path, small_ring: None) -> None:
    array = numpy.zeros(SIZE, numpy.uint8)

    def child() -> None:
        mine = numpy.zeros(SIZE, numpy.uint8)
        with pinning.Queue("host") as queue_of_child:
            pinning.copy_file(mine, file, queue=queue_of_child)
        assert (mine == noise(SIZE)).all()
        with pytest.raises(pinning.PinningError, match="fork"):
            copy.wait()

    with held_back(queue):
        copy = pinning.copy_file_async(array, file, queue=queue)
        run_in_child(child)
    copy.wait()
    assert (array == noise(SIZE)).all()

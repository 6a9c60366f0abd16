# SPDX-License-Identifier: Apache-2.0
"""Tests of copies from files, for any device: used by `test_file_copies.py` and `vendors/cuda/standin_files.py`."""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy
import pytest

import pinning
from noise import noise
from pinning.conformance.faults import eventually
from pinning.copies import costs
from pinning.copies.work import bytes_moved

SIZE = 24 << 20  # more than a small ring


def descriptors_of(path: Path) -> int:
    """How many descriptors of a file this process has."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            found += each.readlink() == path
        except FileNotFoundError:  # the descriptor of this iteration itself
            continue
    return found


def evict(path: Path) -> None:
    """Evict a file from the page cache, if its disk allows it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def held_back(queue: pinning.Queue) -> Iterator[None]:
    """Keep a queue from doing anything until the end of the block."""
    go = threading.Event()
    held = queue.call(lambda: go.wait(600))
    try:
        yield
    finally:
        go.set()
    held.wait()


@pytest.fixture
def small_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring so small that most of a file of SIZE bytes cannot be read before the queue reaches the copy."""
    pinning.copies.trim_staging()
    monkeypatch.setattr(costs, "ring_bytes", 4 << 20)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "bytes of a file"
    path.write_bytes(noise(SIZE).tobytes())
    return path


def fetch(there: pinning.Allocation, queue: pinning.Queue) -> numpy.ndarray:
    back = numpy.zeros(there.nbytes, numpy.uint8)
    pinning.copy(back, there, queue=queue)
    return back


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize(("offset", "nbytes"), [(0, SIZE), (1, 5), (4095, 8193), (12345, 20_000_001), (SIZE - 1, 1)])
def test_any_part_of_a_file(queue: pinning.Queue, file: Path, offset: int, nbytes: int, cold: bool) -> None:
    if cold:
        evict(file)
    with pinning.alloc(nbytes, device=queue.device) as there:
        copy = pinning.copy_file_async(there, file, offset, nbytes, queue)
        copy.wait()
        assert (fetch(there, queue) == noise(SIZE)[offset : offset + nbytes]).all()
    assert copy.path == "staged"
    assert eventually(lambda: descriptors_of(file) == 0)


def test_into_memory_of_the_host_which_the_next_copy_reads(queue: pinning.Queue, file: Path) -> None:
    array = numpy.zeros(SIZE, numpy.uint8)
    with pinning.alloc(2 * SIZE, device=queue.device) as busy, pinning.alloc(SIZE, device=queue.device) as there:
        pinning.fill_async(busy, 1, queue=queue)  # what writes known bytes: the copies wait for it only in their turn
        pinning.copy_file_async(array, file, queue=queue)
        pinning.copy_async(there, array, queue=queue)
        assert (fetch(there, queue) == noise(SIZE)).all()
    assert (array == noise(SIZE)).all()


def test_the_sizes_need_not_be_named(queue: pinning.Queue, file: Path) -> None:
    with pinning.alloc(SIZE - 100, device=queue.device) as there:
        pinning.copy_file(there, os.fsencode(file), 100, queue=queue)
        assert (fetch(there, queue) == noise(SIZE)[100:]).all()
        pinning.copy_file(there.ptr, str(file), 100, queue=queue)
        with pytest.raises(pinning.InvalidRangeError, match="give nbytes"):
            pinning.copy_file(there, file, queue=queue)


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(-1, None), (SIZE, None), (SIZE + 5, 1), (0, 0), (0, -1), (0, SIZE + 1), (SIZE - 5, 6)]
)
def test_bytes_that_there_are_not(queue: pinning.Queue, file: Path, offset: int, nbytes: int | None) -> None:
    with pinning.alloc(2 * SIZE, device=queue.device) as there, pytest.raises(pinning.InvalidRangeError):
        pinning.copy_file(there, file, offset, nbytes, queue)
    assert descriptors_of(file) == 0


def test_no_more_than_there_is_room_for(queue: pinning.Queue, file: Path) -> None:
    with pinning.alloc(1000, device=queue.device) as there, pytest.raises(pinning.InvalidRangeError, match="1000"):
        pinning.copy_file(there, file, 0, 1001, queue)
    with pytest.raises(pinning.InvalidRangeError, match="read-only"):
        pinning.copy_file(bytes(10), file, 0, 10, queue)


def test_what_is_no_regular_file(queue: pinning.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = numpy.zeros(16, numpy.uint8)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        pinning.copy_file(array, tmp_path / "none", queue=queue)
    with pytest.raises(pinning.FileError, match="a folder"):
        pinning.copy_file(array, tmp_path, queue=queue)
    with pytest.raises(pinning.FileError, match="a pipe"):  # and does not wait for a writer
        pinning.copy_file(array, tmp_path / "pipe", queue=queue)
    with pytest.raises(pinning.FileError, match="a device"):
        pinning.copy_file(array, "/dev/zero", queue=queue)
    with pytest.raises(ValueError, match="null character"):
        pinning.copy_file(array, "a\0b", queue=queue)
    with socket.socket(socket.AF_UNIX) as unix:
        monkeypatch.chdir(tmp_path)  # because a socket's path must be short
        unix.bind("socket")
        with pytest.raises(OSError, match="socket"):
            pinning.copy_file(array, "socket", queue=queue)


def test_a_file_that_ends_too_early(queue: pinning.Queue, file: Path, small_ring: None) -> None:
    """The copy fails, and work before and after it does not; bytes that could not be read are not counted."""
    before = sum(bytes_moved().values())
    with pinning.alloc(SIZE, device=queue.device) as there:
        with held_back(queue):
            copy = pinning.copy_file_async(there, file, queue=queue)
            os.truncate(file, SIZE // 2)
            after = queue.submit(None)
            waits = queue.submit(None, (copy,))
        with pytest.raises(pinning.FileError, match="truncated") as caught:
            copy.wait()
        assert caught.value.filename == str(file)
        assert sum(bytes_moved().values()) - before <= SIZE // 2
        after.wait()
        with pytest.raises(pinning.FileError):
            waits.wait()
        with pytest.raises(pinning.FileError):
            copy.done()
        file.write_bytes(noise(SIZE, 2).tobytes())
        pinning.copy_file(there, file, queue=queue)
        assert (fetch(there, queue) == noise(SIZE, 2)).all()
        queue.synchronize()
    assert eventually(lambda: descriptors_of(file) == 0)


def test_a_failure_that_nobody_waits_for_is_told(
    queue: pinning.Queue, file: Path, small_ring: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: told.append(unraisable.exc_value))
    with pinning.alloc(SIZE, device=queue.device) as there:
        with held_back(queue):
            pinning.copy_file_async(there, file, queue=queue)
            os.truncate(file, SIZE // 2)
        queue.synchronize()
        gc.collect()
        assert eventually(lambda: len(told) == 1)
    assert isinstance(told[0], pinning.FileError)


def test_cancelled(queue: pinning.Queue, file: Path, small_ring: None) -> None:
    with pinning.alloc(SIZE, device=queue.device) as there:
        with held_back(queue):
            copy = pinning.copy_file_async(there, file, queue=queue)
            copy.cancel()
        with pytest.raises(pinning.FileError, match="cancelled"):
            copy.wait()
        pinning.copy_file(there, file, queue=queue)
        assert (fetch(there, queue) == noise(SIZE)).all()


def test_it_waits_for_who_writes_the_file(queue: pinning.Queue, file: Path) -> None:
    with pinning.alloc(SIZE, device=queue.device) as there, pinning.Queue(queue.device) as other:
        go = threading.Event()

        def write() -> None:
            go.wait(600)
            with file.open("r+b") as out:
                out.write(noise(SIZE, 3).tobytes())

        written = other.call(write)
        copy = pinning.copy_file_async(there, file, queue=queue, wait_for=[written])
        go.set()
        copy.wait()
        assert (fetch(there, queue) == noise(SIZE, 3)).all()


def test_a_file_that_is_replaced_meanwhile(queue: pinning.Queue, file: Path, tmp_path: Path, small_ring: None) -> None:
    with pinning.alloc(SIZE, device=queue.device) as there:
        with held_back(queue):
            copy = pinning.copy_file_async(there, file, queue=queue)
            (tmp_path / "new").write_bytes(bytes(SIZE))
            (tmp_path / "new").rename(file)
        copy.wait()
        assert (fetch(there, queue) == noise(SIZE)).all()


def test_many_at_once(queue: pinning.Queue, file: Path) -> None:
    parts = 16
    part = SIZE // parts
    with pinning.alloc(SIZE, device=queue.device) as there, pinning.Queue(queue.device) as other:
        copies = [
            pinning.copy_file_async(there.ptr + i * part, file, i * part, part, (queue, other)[i % 2])
            for i in range(parts)
        ]
        for copy in copies:
            copy.wait()
        assert (fetch(there, queue) == noise(SIZE)).all()

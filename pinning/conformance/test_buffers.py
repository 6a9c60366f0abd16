# SPDX-License-Identifier: Apache-2.0
"""Usual buffers: arrays, bytes, shared memory, mapped files."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy
import pytest

import pinning
from pinning import Buffer, PinningError
from pinning.conformance.memory import PAGE
from pinning.plugin import Device

CONTENTS = bytes(range(256)) * (4 * PAGE // 256)


def lock_and_compare(device: Device, buffer: Buffer, contents: Callable[[], bytes]) -> None:
    before = contents()
    with pinning.lock(buffer, device=device) as lock:
        assert lock.region is not None
        assert lock.region.device_ptr_of(lock.ptr) == lock.device_ptr
        assert contents() == before
    assert not lock.held
    assert contents() == before


@pytest.mark.parametrize("made", [bytes, bytearray], ids=["bytes", "bytearray"])
def test_bytes(locking: Device, made: Callable[[bytes], bytes]) -> None:
    buffer = made(CONTENTS + b"odd")
    lock_and_compare(locking, buffer, lambda: bytes(buffer))


def test_an_array_and_parts_of_it(locking: Device) -> None:
    array = numpy.arange(4000)
    with pinning.lock(array, device=locking) as whole:
        for part in (array[::2], array[::-1], array[2000:], array[-1:]):
            with pinning.lock(part, device=locking) as lock:
                assert lock.device_ptr - whole.device_ptr == lock.ptr - whole.ptr
    assert (array == numpy.arange(4000)).all()


def test_many_buffers_at_once(locking: Device) -> None:
    arrays = [numpy.full(size, 7, numpy.uint8) for size in (1, 100, 5000, 20_000)]
    with pinning.locked(*arrays, device=locking) as locks:
        assert [lock.size for lock in locks] == [1, 100, 5000, 20_000]
    assert all((array == 7).all() for array in arrays)


def test_anonymous_shared_memory(locking: Device) -> None:
    with mmap.mmap(-1, 4 * PAGE) as shared:
        shared[:] = CONTENTS
        lock_and_compare(locking, shared, lambda: shared[:])


def test_posix_shared_memory(locking: Device) -> None:
    memory = SharedMemory(create=True, size=4 * PAGE)
    try:
        lock_and_compare(locking, memory, lambda: bytes(memory.buf or b""))
    finally:
        memory.close()
        memory.unlink()


FILES = {
    "shared and writable": (mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
    "shared and read only": (mmap.MAP_SHARED, mmap.PROT_READ),
    "private and writable": (mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE),
    "private and read only": (mmap.MAP_PRIVATE, mmap.PROT_READ),
}


@contextmanager
def mapped(path: Path, kind: str) -> Iterator[mmap.mmap]:
    flags, prot = FILES[kind]
    path.write_bytes(CONTENTS)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, flags=flags, prot=prot) as mapping:
        yield mapping


@pytest.mark.parametrize("kind", FILES)
def test_a_mapped_file_is_locked_or_refused(locking: Device, tmp_path: Path, kind: str) -> None:
    path, refusal = tmp_path / "data", ""
    with mapped(path, kind) as mapping:
        try:
            lock_and_compare(locking, mapping, lambda: mapping[:])
        except PinningError as error:
            refusal = str(error)
        assert mapping[:] == CONTENTS
    assert path.read_bytes() == CONTENTS
    if refusal:
        pytest.skip(f"{locking.name} refuses it: {refusal}")

# SPDX-License-Identifier: Apache-2.0
"""The buffers that the demo locks: four kinds, as large as the limits of this machine allow."""

from __future__ import annotations

import mmap
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy

from pinning.cli.machine import Bytes, bound, memory_at
from pinning.cli.output import Step
from pinning.cli.units import size as bytes_text
from pinning.errors import LockLimitError
from pinning.interop.memory_of import host_buffer
from pinning.plugin import Device

FILE_SIZE = 256 << 20
CHUNK = 32 << 20
_WANTED = {"NumPy array": 64 << 20, "memory-mapped file": FILE_SIZE, "shared memory": 32 << 20, "bytearray": 16 << 20}


@dataclass(frozen=True)
class Fit:
    """How much of each buffer to lock."""

    sizes: dict[str, int]  # bytes by the buffer's name
    limited_by: str | None = None  # the limit that reduced the sizes, and its value
    remedy: str = ""  # the command that raises that limit; empty if there is none


@dataclass(frozen=True)
class DemoBuffer:
    """A buffer filled with its pattern."""

    name: str
    owner: object  # passed to `pinning.lock`
    ptr: int
    size: int
    locked: int  # the bytes from its start that are to be locked
    seed: int  # distinguishes its pattern from the others


def fit(device: Device) -> Fit:
    """Fit the buffers to the vendor's limit and to the available memory.

    Raises
    ------
    LockLimitError
        There is no room for a page of each.
    """
    # A third, because locked buffers are also copied, and the file may be in memory too.
    room, limited_by, remedy = bound(device, memory_share=3)
    if sum(_WANTED.values()) + len(_WANTED) * mmap.PAGESIZE <= room:
        return Fit(dict(_WANTED))
    share = room // (len(_WANTED) + 1) // mmap.PAGESIZE * mmap.PAGESIZE  # One share is for pages locked in part.
    if share <= 0:
        raise LockLimitError(f"{limited_by}, too little for the demo; to raise it: {remedy}")
    return Fit({name: min(size, share) for name, size in _WANTED.items()}, limited_by, remedy)


@contextmanager
def real_buffers(sizes: dict[str, int], step: Step) -> Iterator[tuple[list[DemoBuffer], dict[str, str]]]:
    """The four buffers, filled, and by name why one is missing: the disk or /dev/shm is read-only, or has no room.

    The file and the segment are already unlinked: nothing is left to clean up, however the process ends.
    """
    with ExitStack() as stack, _letting_go():
        seeds = {name: seed for seed, name in enumerate(sizes, start=1)}
        owners: dict[str, object] = {"NumPy array": numpy.empty(sizes["NumPy array"], numpy.uint8)}
        missing: dict[str, str] = {}
        made: dict[str, AbstractContextManager[object]] = {
            "memory-mapped file": _mapped_file(seeds["memory-mapped file"], step),
            "shared memory": _segment(sizes["shared memory"]),
        }
        for name, one in made.items():
            try:
                owners[name] = stack.enter_context(one)
            except OSError as error:
                missing[name] = str(error)
        owners["bytearray"] = bytearray(sizes["bytearray"])
        buffers = []
        for name, owner in owners.items():
            ptr, size, *_ = host_buffer(owner)
            buffers.append(DemoBuffer(name, owner, ptr, size, min(size, sizes[name]), seeds[name]))
            if not isinstance(owner, mmap.mmap):
                for start in range(0, size, CHUNK):
                    part = memory_at(ptr + start, min(CHUNK, size - start))
                    part[:] = pattern(seeds[name], start, part.size)
                    step(f"Filling the {name}", start + part.size, size)
        yield buffers, missing


def pattern(seed: int, start: int, size: int) -> Bytes:
    """Bytes ``[start, start + size)`` of a pattern without two equal 64-bit words, so that a byte out of place shows.

    `start` is a multiple of 8.
    """
    words = numpy.arange(start // 8, -(-(start + size) // 8), dtype=numpy.uint64)
    words |= numpy.uint64(seed << 56)
    words *= numpy.uint64(0x9E3779B97F4A7C15)  # odd, so that distinct words stay distinct
    return words.view(numpy.uint8)[:size]


@contextmanager
def _letting_go() -> Iterator[None]:
    """Clear the frames of an error's traceback: their references would keep the buffers from being closed."""
    try:
        yield
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        raise


@contextmanager
def _mapped_file(seed: int, step: Step) -> Iterator[mmap.mmap]:
    folder = Path(tempfile.gettempdir())
    _need_room(folder, FILE_SIZE, "make room, or set TMPDIR to a folder that has it")
    with tempfile.TemporaryFile() as file:
        for start in range(0, FILE_SIZE, CHUNK):
            file.write(pattern(seed, start, CHUNK).data)
            step("Writing the file", start + CHUNK, FILE_SIZE)
        file.flush()
        # A private mapping: CUDA refuses shared writable mappings of files on most file systems.
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
            yield mapped


@contextmanager
def _segment(size: int) -> Iterator[SharedMemory]:
    _need_room(Path("/dev/shm"), size, "give it more, such as with --shm-size for a container")
    segment = SharedMemory(create=True, size=size)
    try:
        segment.unlink()
        yield segment
    finally:
        segment.close()


def _need_room(folder: Path, size: int, remedy: str) -> None:
    # Checked first: a write to mapped memory for which the file system has no room kills the process.
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OSError(f"{folder} has {bytes_text(free)} free and the demo needs {bytes_text(size)}; {remedy}")

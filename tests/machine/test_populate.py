# SPDX-License-Identifier: Apache-2.0
"""Populating a range, judged by what mincore and /proc/self/smaps say afterwards."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from c_library import libc
from fake_device import Background
from mapped_memory import map_apart
from pinning.errors import InvalidRangeError, LockLimitError
from pinning.machine.populate import PIECE, Populating, huge_page_mode, is_resident, populate

PAGE = mmap.PAGESIZE
MIB = 1 << 20
FILE = 5 * MIB  # More pages than one process_vm_readv takes.

needs_populate = pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (5, 14),
    reason="needs MADV_POPULATE_READ and _WRITE, which came with Linux 5.14",
)

Map = Callable[..., int]


@pytest.fixture
def new_memory() -> Iterator[Map]:
    """Return a function that maps memory, apart from all other mappings; a test may unmap some of it."""
    mapped: list[tuple[int, int]] = []

    def map_memory(
        size: int, file: int = -1, access: int = mmap.PROT_READ | mmap.PROT_WRITE, shared: bool = False
    ) -> int:
        kind = (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | (mmap.MAP_ANONYMOUS if file < 0 else 0)
        start = map_apart(size, access, kind, file)
        mapped.append((start, size))
        return start

    yield map_memory
    for start, size in mapped:
        libc.munmap(start, size)


@pytest.fixture
def cold_file(tmp_path: Path) -> Iterator[int]:
    """A file of `FILE` bytes, none of it in memory."""
    path = tmp_path / "data"
    path.write_bytes(b"hello   " * (FILE // 8))
    file = os.open(path, os.O_RDWR)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    start: int = libc.mmap(None, FILE, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    cached = any(resident(start, FILE))
    libc.munmap(start, FILE)
    if cached:
        pytest.skip("needs a temporary folder on a file system that gives up cached pages when told")
    yield file
    os.close(file)


def resident(start: int, size: int) -> list[bool]:
    pages = ctypes.create_string_buffer(size // PAGE)
    assert libc.mincore(start, size, pages) == 0
    return [page != 0 for page in pages.raw]


def smaps(start: int) -> dict[str, str]:
    """The fields of /proc/self/smaps for the mapping that contains an address."""
    said: dict[str, str] = {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            said = {}
            inside = int(bounds[1], 16) <= start < int(bounds[2], 16)
        else:
            name, value = line.split(":", 1)
            said[name] = value.strip()
            if inside and name == "VmFlags":
                return said
    raise AssertionError(f"{start:#x} is not mapped")


def view(start: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))


@needs_populate
class TestPopulate:
    @pytest.mark.parametrize(("offset", "size"), [(0, 1), (0, PAGE), (PAGE - 1, 2), (100, 3 * PAGE), (0, 64 * PAGE)])
    def test_brings_in_every_page_it_touches_and_no_other(self, new_memory: Map, offset: int, size: int) -> None:
        start = new_memory(80 * PAGE)
        populate(start + offset, size)
        last = (offset + size - 1) // PAGE
        assert resident(start, 80 * PAGE) == [page <= last for page in range(80)]
        assert not view(start, 80 * PAGE).any()

    def test_private_memory_is_allocated_and_not_only_mapped(self, new_memory: Map) -> None:
        """A lock needs private pages, where a read would map the zero page."""
        start = new_memory(4 * MIB)
        populate(start, 4 * MIB)
        assert smaps(start)["Anonymous"] == "4096 kB"

    def test_contents_stay_as_they_are_while_another_thread_writes(self, new_memory: Map) -> None:
        size = 64 * MIB
        start = new_memory(size)
        data = view(start, size)
        data[: size // 4] = 7
        populating = Background(lambda: populate(start, size, piece=PAGE))
        data[size // 2 :: PAGE] = 9
        populating.result()
        assert all(resident(start, size))
        assert (data[: size // 4] == 7).all()
        assert (data[size // 2 :: PAGE] == 9).all()
        assert not data[size // 4 : size // 2].any()

    def test_private_mapping_of_a_file_gets_its_copy(self, new_memory: Map, cold_file: int) -> None:
        start = new_memory(FILE, cold_file)
        populate(start, FILE)
        assert all(resident(start, FILE))
        assert smaps(start)["Anonymous"] == f"{FILE // 1024} kB"
        view(start, 1)[0] = ord("j")
        assert view(start, 8).tobytes() == b"jello   "
        assert os.pread(cold_file, 8, 0) == b"hello   "

    @pytest.mark.parametrize("access", [mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE])
    def test_shared_mapping_of_a_file_is_read_and_not_made_dirty(
        self, new_memory: Map, cold_file: int, access: int
    ) -> None:
        before = os.fstat(cold_file).st_mtime_ns
        start = new_memory(FILE, cold_file, access, shared=True)
        populate(start, FILE)
        assert all(resident(start, FILE))
        said = smaps(start)
        assert said["Rss"] == f"{FILE // 1024} kB"
        assert said["Private_Dirty"] == said["Shared_Dirty"] == "0 kB"
        assert os.fstat(cold_file).st_mtime_ns == before
        assert view(start, FILE).tobytes() == b"hello   " * (FILE // 8)

    def test_range_of_several_mappings(self, new_memory: Map) -> None:
        start = new_memory(6 * PAGE)
        assert libc.mprotect(start + 2 * PAGE, PAGE, mmap.PROT_READ) == 0
        populate(start + PAGE, 4 * PAGE)
        assert resident(start, 6 * PAGE) == [False, True, True, True, True, False]

    @pytest.mark.skipif(
        not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="needs a kernel with transparent huge pages"
    )
    @pytest.mark.parametrize(("size", "asks"), [(8 * MIB, True), (1 * MIB, False)])
    def test_asks_for_huge_pages_where_one_fits(self, new_memory: Map, size: int, asks: bool) -> None:
        start = new_memory(64 * MIB)
        populate(start, size)
        assert ("hg" in smaps(start)["VmFlags"].split()) is asks
        assert "hg" not in smaps(start + 63 * MIB)["VmFlags"].split()


class TestProgress:
    def test_after_every_piece_up_to_all_of_it(self, new_memory: Map) -> None:
        start = new_memory(8 * PAGE)
        calls: list[tuple[int, int]] = []
        size = 5 * PAGE
        populate(start + 10, size, progress=lambda *call: calls.append(call), piece=2 * PAGE)
        assert calls == [(2 * PAGE - 10, size), (4 * PAGE - 10, size), (size, size)]

    def test_once_when_there_is_nothing_to_do(self, new_memory: Map) -> None:
        start = new_memory(8 * PAGE)
        view(start, 8 * PAGE)[:] = 1
        calls: list[tuple[int, int]] = []
        populate(start, 8 * PAGE, progress=lambda *call: calls.append(call), piece=PAGE)
        assert calls == [(8 * PAGE, 8 * PAGE)]

    @needs_populate
    def test_interrupt_comes_through_between_two_pieces(self, new_memory: Map) -> None:
        start = new_memory(8 * PAGE)

        def press_control_c(done: int, total: int) -> None:
            if done == 4 * PAGE:
                signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            populate(start, 8 * PAGE, progress=press_control_c, piece=2 * PAGE)
        assert resident(start, 8 * PAGE) == [True] * 4 + [False] * 4

    def test_what_the_callback_raises_reaches_the_caller(self, new_memory: Map) -> None:
        def fail(done: int, total: int) -> None:
            raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            populate(new_memory(2 * PAGE), 2 * PAGE, progress=fail, piece=PAGE)

    @pytest.mark.parametrize("piece", [0, -1])
    def test_bad_piece(self, new_memory: Map, piece: int) -> None:
        with pytest.raises(ValueError, match=f"piece is {piece}"):
            populate(new_memory(PAGE), PAGE, piece=piece)


class TestNoSuchMemory:
    def test_unmapped(self, new_memory: Map) -> None:
        start = new_memory(4 * PAGE)
        libc.munmap(start, 4 * PAGE)
        for ask in (populate, is_resident):
            with pytest.raises(InvalidRangeError, match=rf"not mapped.*{start:#x}"):
                ask(start + 5, PAGE)

    def test_hole_in_a_large_range_is_found_before_anything_is_touched(self, new_memory: Map) -> None:
        size = 256 * MIB
        start = new_memory(size)
        libc.munmap(start + 100 * PAGE, PAGE)
        with pytest.raises(InvalidRangeError, match="not mapped"):
            populate(start, size)
        assert not any(resident(start, 100 * PAGE))

    @pytest.mark.parametrize("start", [1 << 47, 1 << 63, (1 << 64) - 2 * PAGE])
    def test_address_that_no_process_has(self, start: int) -> None:
        with pytest.raises(InvalidRangeError, match="not mapped"):
            populate(start, PAGE)

    def test_memory_that_may_not_be_read(self, new_memory: Map) -> None:
        with pytest.raises(InvalidRangeError, match="not readable"):
            populate(new_memory(PAGE, access=0), PAGE)

    @needs_populate
    @pytest.mark.parametrize("shared", [True, False])
    def test_file_that_is_shorter_than_its_mapping(self, new_memory: Map, cold_file: int, shared: bool) -> None:
        start = new_memory(FILE, cold_file, shared=shared)
        os.ftruncate(cold_file, PAGE)
        with pytest.raises(InvalidRangeError, match="its file is shorter"):
            populate(start, FILE)

    def test_no_memory_left(self, new_memory: Map, monkeypatch: pytest.MonkeyPatch) -> None:
        refuse_madvise(monkeypatch, errno.ENOMEM)
        with pytest.raises(LockLimitError, match="memory ran out"):
            populate(new_memory(PAGE), PAGE)


class TestWithoutMadvPopulate:
    """On Linux before 5.14."""

    @pytest.fixture(autouse=True)
    def old_kernel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        refuse_madvise(monkeypatch, errno.EINVAL)

    @pytest.mark.parametrize("size", [1, FILE, FILE // 2])
    def test_file_is_read(self, new_memory: Map, cold_file: int, size: int) -> None:
        start = new_memory(FILE, cold_file, mmap.PROT_READ, shared=True)
        populate(start, size)
        assert all(resident(start, size + PAGE - 1 & -PAGE))
        assert int(smaps(start)["Rss"].split()[0]) * 1024 >= size // PAGE * PAGE

    def test_private_memory_is_left_to_the_lock(self, new_memory: Map) -> None:
        start = new_memory(4 * PAGE)
        populate(start, 4 * PAGE)
        assert not any(resident(start, 4 * PAGE))

    def test_file_that_is_shorter_than_its_mapping_does_no_harm(self, new_memory: Map, cold_file: int) -> None:
        start = new_memory(FILE, cold_file, shared=True)
        os.ftruncate(cold_file, PAGE)
        populate(start, FILE)
        assert resident(start, PAGE) == [True]


class TestIsResident:
    def test_every_page_of_a_small_range_counts(self, new_memory: Map) -> None:
        start = new_memory(100 * PAGE)
        data = view(start, 100 * PAGE)
        data[::PAGE] = 1
        assert is_resident(start, 100 * PAGE)
        assert is_resident(start + 5, 1)
        mmap_advise_away(start + 42 * PAGE, PAGE)
        assert not is_resident(start, 100 * PAGE)
        assert is_resident(start, 42 * PAGE)
        assert not is_resident(start, 42 * PAGE + 1)

    @pytest.mark.parametrize("missing", [(0, 1), (1, 8), (7, 16), (63, 64)])
    def test_large_range_of_which_a_part_is_missing(self, new_memory: Map, missing: tuple[int, int]) -> None:
        size = 64 * MIB
        start = new_memory(size)
        view(start, size)[::PAGE] = 1
        assert is_resident(start, size)
        first, numerator = missing
        mmap_advise_away(start + size * first // numerator & -PAGE, size // numerator)
        assert not is_resident(start, size)


class TestThreads:
    @pytest.mark.parametrize("started", [0, 1])
    def test_pages_come_in_however_few_can_be_started(
        self, new_memory: Map, monkeypatch: pytest.MonkeyPatch, started: int
    ) -> None:
        start, left = threading.Thread.start, iter(range(started))

        def start_a_few(thread: threading.Thread) -> None:
            if next(left, None) is None:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_a_few)
        size = 3 * PIECE + PAGE
        memory, reached = new_memory(size), threading.Event()
        populating = Populating(memory, size, lambda done: reached.set() if done == size else None, threads=3)
        assert reached.wait(60)
        populating.stop()
        assert populating.error is None and is_resident(memory, size)


class TestHugePageMode:
    @pytest.mark.parametrize("mode", ["always", "madvise", "never"])
    def test_the_one_in_brackets(self, tmp_path: Path, mode: str) -> None:
        setting = tmp_path / "enabled"
        setting.write_text("always madvise never\n".replace(mode, f"[{mode}]"))
        assert huge_page_mode(setting) == mode

    def test_kernel_without_huge_pages(self, tmp_path: Path) -> None:
        assert huge_page_mode(tmp_path / "enabled") == "never"

    def test_this_machine(self) -> None:
        assert huge_page_mode() in ("always", "madvise", "never")


def refuse_madvise(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def madvise(start: int, size: int, advice: int) -> int:
        ctypes.set_errno(code)
        return -1

    module = sys.modules[populate.__module__]
    real = module._libc
    stand_in = SimpleNamespace(madvise=madvise, mincore=real.mincore, process_vm_readv=real.process_vm_readv)
    monkeypatch.setattr(module, "_libc", stand_in)


def mmap_advise_away(start: int, size: int) -> None:
    """Take pages out of memory again."""
    madvise = libc.madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert madvise(start, size, mmap.MADV_DONTNEED) == 0

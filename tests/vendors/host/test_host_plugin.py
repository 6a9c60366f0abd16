# SPDX-License-Identifier: Apache-2.0
"""The host plugin against the kernel: /proc/self/smaps must report exactly the expected pages as locked."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c_library import libc
from child_process import run_as_ordinary_user, run_in_child
from fake_device import in_threads
from mapped_memory import locked_pages, map_apart
from pinning import PinnedMap
from pinning.errors import InvalidRangeError, LockLimitError, VendorError
from pinning.plugin import MemoryInfo, MemoryKind, PinnedInfo
from pinning_host import plugin
from pinning_host.device import HostDevice

PAGE = mmap.PAGESIZE
Range = tuple[int, int]


class Arena:
    """Pages that a test locks, unmaps and protects as it likes."""

    def __init__(self, pages: int) -> None:
        self.start = map_apart(pages * PAGE)
        self.size = pages * PAGE

    def page(self, number: int) -> int:
        return self.start + number * PAGE

    @property
    def locked(self) -> set[int]:
        return locked_pages(self.start, self.start + self.size)


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(8)
    yield made
    assert made.locked == set()
    unmap_memory(made.start, made.size)


@pytest.fixture(scope="module")
def device() -> HostDevice:
    return plugin.device(0)


class TestLock:
    def test_locks_every_page_it_touches_and_no_other(self, device: HostDevice, arena: Arena) -> None:
        ptr = arena.page(2) - 1
        assert device.data_lock(ptr, PAGE + 2, None) == ptr
        assert arena.locked == {1, 2, 3}
        device.data_unlock(ptr)
        assert arena.locked == set()

    def test_page_that_two_ranges_share_is_locked_until_both_are_gone(self, device: HostDevice, arena: Arena) -> None:
        first, second = arena.page(0), arena.page(1) + 100
        device.data_lock(first, PAGE + 100, None)
        device.data_lock(second, PAGE, None)
        device.data_unlock(first)
        assert arena.locked == {1, 2}
        device.data_unlock(second)
        assert arena.locked == set()

    @pytest.mark.parametrize("access", [mmap.ACCESS_READ, mmap.ACCESS_WRITE, mmap.ACCESS_COPY])
    def test_file_backed_memory(self, device: HostDevice, tmp_path: Path, access: int) -> None:
        path = tmp_path / "data"
        path.write_bytes(b"x" * 3 * PAGE)
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=access) as mapping:
            ptr = address_of(mapping)
            device.data_lock(ptr, 3 * PAGE, access == mmap.ACCESS_READ)
            assert locked_pages(ptr, ptr + 3 * PAGE) == {0, 1, 2}
            device.data_unlock(ptr)
            assert locked_pages(ptr, ptr + 3 * PAGE) == set()


class TestFailedLock:
    def test_unmapped_memory(self, device: HostDevice, arena: Arena) -> None:
        unmap_memory(arena.page(2), PAGE)
        with pytest.raises(VendorError) as failure:
            device.data_lock(arena.start, 4 * PAGE, None)
        assert (failure.value.call, failure.value.code, failure.value.name) == ("mlock", errno.ENOMEM, "ENOMEM")
        assert "not mapped" in failure.value.advice
        assert arena.locked == set()

    def test_what_others_hold_stays_locked(self, device: HostDevice, arena: Arena) -> None:
        protect(arena.page(3), PAGE, 0)
        device.data_lock(arena.page(1), PAGE, None)
        with pytest.raises(VendorError, match="not readable"):
            device.data_lock(arena.start, 8 * PAGE, None)
        assert arena.locked == {1}
        device.data_unlock(arena.page(1))

    def test_what_the_program_itself_has_locked_stays_locked(self, device: HostDevice, arena: Arena) -> None:
        unmap_memory(arena.page(3), PAGE)
        lock_oneself(arena.page(1), PAGE)
        with pytest.raises(VendorError, match="not mapped"):
            device.data_lock(arena.start, 8 * PAGE, None)
        assert arena.locked == {1}
        unmap_memory(arena.page(1), PAGE)

    def test_all_is_undone_where_the_program_has_locked_a_part(self, device: HostDevice, arena: Arena) -> None:
        protect(arena.page(3), PAGE, 0)
        lock_oneself(arena.page(1), PAGE)
        with pytest.raises(VendorError, match="not readable"):
            device.data_lock(arena.start, 8 * PAGE, None)
        assert arena.locked == set()

    def test_file_that_is_shorter_than_its_mapping(self, device: HostDevice, tmp_path: Path) -> None:
        path = tmp_path / "data"
        path.write_bytes(b"x" * 4 * PAGE)
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
            os.truncate(path, PAGE)
            ptr = address_of(mapping)
            with pytest.raises(VendorError, match="past the end of its file"):
                device.data_lock(ptr, 4 * PAGE, False)
            assert locked_pages(ptr, ptr + 4 * PAGE) == set()

    def test_ranges_at_the_ends_of_all_addresses(self, device: HostDevice) -> None:
        for ptr, size in [(1, (1 << 64) - 1), ((1 << 64) - 10, 10), ((1 << 64) - PAGE, 1), (8192, (1 << 64) - 8192)]:
            with pytest.raises(VendorError, match="not mapped"):
                device.data_lock(ptr, size, None)
            assert device.is_pinned_ptr(ptr) is None
        with pytest.raises(InvalidRangeError):
            device.data_lock(8192, 0, None)


class TestFailedUnlock:
    def test_memory_that_was_unmapped_while_locked(self, device: HostDevice, arena: Arena) -> None:
        device.data_lock(arena.start, 6 * PAGE, None)
        unmap_memory(arena.page(1), 2 * PAGE)
        unmap_memory(arena.page(4), PAGE)
        device.data_unlock(arena.start)
        assert arena.locked == set()

    def test_it_is_refused_if_what_is_mapped_cannot_be_read(self, device: HostDevice, arena: Arena) -> None:
        def check() -> None:
            device.data_lock(arena.start, 4 * PAGE, None)
            unmap_memory(arena.page(1), PAGE)
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
            with pytest.raises(VendorError, match="munlock failed: ENOMEM"):
                device.data_unlock(arena.start)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert arena.locked == {0, 2, 3}
            device.data_unlock(arena.start)
            assert arena.locked == set()

        run_in_child(check)

    def test_new_memory_where_locked_memory_was_unmapped(self, device: HostDevice, arena: Arena) -> None:
        device.data_lock(arena.start, 2 * PAGE, None)
        map_again(arena.start, 2 * PAGE)
        assert arena.locked == set()
        device.data_lock(arena.start, 2 * PAGE, None)
        assert arena.locked == {0, 1}
        device.data_unlock(arena.start)
        device.data_unlock(arena.start)
        assert arena.locked == set()


class TestLimit:
    def test_ordinary_user(self, device: HostDevice, arena: Arena) -> None:
        def check() -> None:
            device.data_lock(arena.start, 3 * PAGE, None)
            limit = device.lock_limit()
            assert limit is not None
            assert limit[:3] == ("RLIMIT_MEMLOCK", 8 << 20, 3 * PAGE)
            assert "prlimit --memlock=unlimited --pid $$" in limit.remedy
            big = map_apart(9 << 20)
            with pytest.raises(LockLimitError, match="mlock failed: ENOMEM") as failure:
                device.data_lock(big, 9 << 20, None)
            assert "RLIMIT_MEMLOCK allows 8388608 bytes" in str(failure.value)
            assert limit.remedy in str(failure.value)
            mapped = mapped_bytes()
            for _ in range(20):
                with pytest.raises(LockLimitError, match="RLIMIT_MEMLOCK allows 8388608 bytes"):
                    device.allocate(9 << 20, MemoryKind.HOST)
            assert mapped_bytes() - mapped < 10 * (9 << 20)
            unmap_memory(big, PAGE)
            with pytest.raises(VendorError, match="not mapped"):
                device.data_lock(big, 2 * PAGE, None)
            assert arena.locked == {0, 1, 2}
            device.data_unlock(arena.start)
            limit = device.lock_limit()
            assert limit is not None
            assert limit.used == 0

        run_as_ordinary_user(check)

    def test_what_the_program_itself_has_locked_stays_locked(self, device: HostDevice) -> None:
        def check() -> None:
            big = map_apart(9 << 20)
            lock_oneself(big, PAGE)
            with pytest.raises(LockLimitError, match=f"8388608 bytes, {PAGE} are locked"):
                device.data_lock(big, 9 << 20, None)
            assert locked_pages(big, big + (9 << 20)) == {0}

        run_as_ordinary_user(check)

    def test_root_of_a_user_namespace(self, device: HostDevice) -> None:
        try:
            subprocess.run(["unshare", "-r", "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("needs a user namespace: unshare -r")

        def check() -> None:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 << 20, 8 << 20))
            assert ctypes.CDLL(None).unshare(0x10000000) == 0  # CLONE_NEWUSER
            limit = device.lock_limit()
            assert limit is not None and limit.limit == 8 << 20

        run_in_child(check)

    def test_soft_limit_below_the_hard_one_can_be_raised_without_privileges(self, device: HostDevice) -> None:
        def check() -> None:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 8 << 20))
            limit = device.lock_limit()
            assert limit is not None
            assert (limit.limit, limit.remedy) == (1 << 20, "ulimit -l 8192  # in the shell that starts the program")

        run_as_ordinary_user(check)

    def test_nothing_may_be_locked(self, device: HostDevice, arena: Arena) -> None:
        def check() -> None:
            with pytest.raises(LockLimitError, match=r"mlock failed: EPERM .* RLIMIT_MEMLOCK allows 0 bytes"):
                device.data_lock(arena.start, 1, None)

        run_as_ordinary_user(check, memlock=0)

    def test_capability_lifts_the_limit(self, device: HostDevice) -> None:
        def check() -> None:
            if os.geteuid() != 0:
                pytest.skip("needs CAP_IPC_LOCK")
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (PAGE, PAGE))
            big = map_apart(1 << 20)
            try:
                device.data_lock(big, 1 << 20, None)
            except LockLimitError:
                pytest.skip("needs CAP_IPC_LOCK; this root has none")
            assert device.lock_limit() is None

        run_in_child(check)


class TestThreads:
    @pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
    def test_many_threads(self, device: HostDevice, seed: int) -> None:
        """The pages of a range are locked while a thread holds it; at the end exactly those still held are locked."""
        arena = Arena(12)
        held: list[list[Range]] = [[] for _ in range(4)]

        def work(number: int) -> None:
            chance = random.Random(seed * 100 + number)
            mine = held[number]
            for _ in range(150):
                if mine and chance.random() < 0.5:
                    ptr, _ = mine.pop(chance.randrange(len(mine)))
                    device.data_unlock(ptr)
                else:
                    # Each thread has its own bases, so it never unlocks another thread's range.
                    ptr = arena.start + chance.randrange(10 * PAGE) // 4 * 4 + number
                    size = chance.randrange(1, 2 * PAGE)
                    if any(ptr == base for base, _ in mine):
                        continue
                    device.data_lock(ptr, size, None)
                    mine.append((ptr, size))
                assert pages_of(mine, arena) <= arena.locked

        in_threads(work, range(4))
        everything = [each for mine in held for each in mine]
        assert everything
        assert arena.locked == pages_of(everything, arena)
        for ptr, _ in everything:
            device.data_unlock(ptr)
        assert arena.locked == set()
        unmap_memory(arena.start, arena.size)


class TestOneAccount:
    """All locks of host memory in this process share one count for each page."""

    def test_maps_of_ones_own(self, device: HostDevice, arena: Arena) -> None:
        with PinnedMap(device) as one, PinnedMap(device) as other:
            one.lock(arena.start, 2 * PAGE)
            other.lock(arena.page(1), 2 * PAGE)
            device.data_lock(arena.page(1) + 8, 8, None)
            one.unlock(arena.start)
            assert arena.locked == {1, 2}
            other.unlock(arena.page(1))
            assert arena.locked == {1}
            device.data_unlock(arena.page(1) + 8)
            assert arena.locked == set()

    @settings(max_examples=25, deadline=None)
    @given(st.data())
    def test_agrees_with_a_count_for_each_page(self, data: st.DataObject) -> None:
        pages = 12
        device, arena = plugin.device(0), Arena(pages)
        ranges = st.tuples(st.integers(0, pages - 1), st.integers(1, pages)).filter(lambda ends: ends[0] < ends[1])
        model = [0] * pages
        held: list[Range] = []
        try:
            for _ in range(data.draw(st.integers(1, 12))):
                # 0 locks a new range; else the base of an old one is unlocked, the smallest if there are several.
                chosen = data.draw(st.integers(0, len(held)))
                if chosen:
                    start = held[chosen - 1][0]
                    _, end = gone = min(each for each in held if each[0] == start)
                    held.remove(gone)
                    device.data_unlock(arena.page(start))
                    by = -1
                else:
                    start, end = data.draw(ranges)
                    device.data_lock(arena.page(start), (end - start) * PAGE, None)
                    held.append((start, end))
                    by = 1
                for page in range(start, end):
                    model[page] += by
                assert arena.locked == {page for page in range(pages) if model[page]}
                probed = data.draw(st.integers(0, pages - 1))
                around = [end - start for start, end in held if start <= probed < end]
                info = device.is_pinned_ptr(arena.page(probed) + 5)
                assert (info.size if info else 0) == max(around, default=0) * PAGE
                assert info is None or info.base <= arena.page(probed) < info.base + info.size
        finally:  # also if the example is given up half way: its locks would count against the limit of the next ones
            for start, _ in held:
                device.data_unlock(arena.page(start))
            locked = arena.locked
            unmap_memory(arena.start, arena.size)
        assert locked == set()


class TestMemory:
    def test_what_is_known_of_it(self, device: HostDevice) -> None:
        for kind, locked, index in [
            (MemoryKind.HOST, {0, 1}, None),
            (MemoryKind.DEVICE, set(), 0),
            (MemoryKind.SHARED, set(), 0),
        ]:
            ptr = device.allocate(PAGE + 1, kind)
            assert locked_pages(ptr, ptr + 2 * PAGE) == locked
            for inside in (ptr, ptr + PAGE):
                assert device.memory_info(inside) == MemoryInfo(kind, ptr, PAGE + 1, index)
            assert device.memory_info(ptr + PAGE + 1) is None
            with pytest.raises(InvalidRangeError, match=f"not {MemoryKind(kind).name}|{ptr:#x}"):
                device.free(ptr, MemoryKind.DEVICE if kind is MemoryKind.HOST else MemoryKind.HOST)
            device.free(ptr, kind)
            assert device.memory_info(ptr) is None

    def test_memory_that_is_freed_while_it_is_locked(self, device: HostDevice) -> None:
        ptr = device.allocate(4 * PAGE, MemoryKind.HOST)
        device.data_lock(ptr, PAGE, None)
        device.free(ptr, MemoryKind.HOST)
        assert device.is_pinned_ptr(ptr) == PinnedInfo(ptr, PAGE, ptr)
        device.data_unlock(ptr)
        assert device.is_pinned_ptr(ptr) is None

    def test_locks_of_what_comes_to_where_it_was_are_undone(self, device: HostDevice) -> None:
        ptr = device.allocate(PAGE, MemoryKind.HOST)
        device.free(ptr, MemoryKind.HOST)
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        there = libc.mmap(ptr, PAGE, mmap.PROT_READ | mmap.PROT_WRITE, kind, -1, 0)  # elsewhere, if another is there
        device.data_lock(there, PAGE, None)
        device.data_unlock(there)
        locked = locked_pages(there, there + PAGE)
        unmap_memory(there, PAGE)
        assert locked == set()

    @pytest.mark.parametrize(("size", "name"), [(0, "EINVAL"), (1 << 60, "ENOMEM")])
    def test_failed_allocation(self, device: HostDevice, size: int, name: str) -> None:
        with pytest.raises(VendorError, match=f"mmap failed: {name} .*{size} bytes"):
            device.allocate(size)


def address_of(buffer: object) -> int:
    import numpy

    return numpy.frombuffer(buffer, numpy.uint8).ctypes.data  # type: ignore[call-overload, no-any-return]


def pages_of(ranges: list[Range], arena: Arena) -> set[int]:
    return {
        page
        for ptr, size in ranges
        for page in range((ptr - arena.start) // PAGE, (ptr + size - 1 - arena.start) // PAGE + 1)
    }


def unmap_memory(start: int, size: int) -> None:
    assert libc.munmap(start, size) == 0


def lock_oneself(start: int, size: int) -> None:
    assert libc.mlock(ctypes.c_void_p(start), ctypes.c_size_t(size)) == 0


def protect(start: int, size: int, access: int) -> None:
    assert libc.mprotect(start, size, access) == 0


def map_again(start: int, size: int) -> None:
    """Replace the memory by new memory at the same addresses."""
    map_fixed = 0x10
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | map_fixed
    assert libc.mmap(start, size, mmap.PROT_READ | mmap.PROT_WRITE, kind, -1, 0) == start


def mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * PAGE

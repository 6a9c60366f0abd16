# SPDX-License-Identifier: Apache-2.0
"""Refusing a lock for which there is no room."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import pinning
from child_process import run_as_ordinary_user, run_in_child
from limits import needs_room_to_lock
from own_process import run
from pinning.budget import checks as module
from pinning.budget.checks import WORTH_A_LOOK, check_limit, check_memory, check_room
from pinning.budget.limits import check_lock
from pinning.errors import InvalidRangeError, LockLimitError
from pinning.locking.mapped import lock_mapped, unlock_unmapped
from pinning.machine.control_group import memory_group
from pinning.machine.room import Room, cgroup_memory, system_memory
from pinning.plugin import LockLimit, PinnedInfo
from pinning_host import plugin

GIB = 1 << 30


class FakeDevice:
    name = "fake:0"

    def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int:
        return ptr

    def data_unlock(self, ptr: int) -> None: ...

    def is_pinned_ptr(self, ptr: int) -> PinnedInfo | None: ...


class FakeLimitedDevice(FakeDevice):
    largest_lock = 1 << 40

    def __init__(self, limit: LockLimit | None) -> None:
        self._limit = limit

    def lock_limit(self) -> LockLimit | None:
        return self._limit


def machine(root: Path, total: int, available: int) -> Callable[[], Room]:
    """`system_memory` of a made-up machine with this memory, in bytes."""
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal:       {total >> 10} kB\nMemFree:        123 kB\nMemAvailable:   {available >> 10} kB\n"
    )
    return partial(system_memory, root)


@pytest.fixture
def plenty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with 64 GiB, 32 of them available, and no control groups."""
    monkeypatch.setattr(module, "system_memory", machine(tmp_path, 64 * GIB, 32 * GIB))
    monkeypatch.setattr(module, "cgroup_memory", lambda: iter(()))


@pytest.mark.usefixtures("plenty")
class TestMemory:
    def test_memory_of_the_machine(self) -> None:
        check_memory(32 * GIB)
        with pytest.raises(LockLimitError, match=rf"{32 * GIB + 1} bytes .* the machine's memory .* {64 * GIB} bytes"):
            check_memory(32 * GIB + 1)

    def test_host_memory_that_is_allocated(self) -> None:
        with pytest.raises(LockLimitError, match="the machine's memory"):
            pinning.alloc(33 * GIB, "host", device="host")

    def test_resident_pages_need_no_more_memory(self) -> None:
        pinning.budget(64 * GIB)
        try:
            check_lock(48 * GIB, FakeDevice(), resident=True)
            with pytest.raises(LockLimitError, match="the machine's memory"):
                check_lock(48 * GIB, FakeDevice(), resident=False)
        finally:
            pinning.budget(1.0)

    def test_control_group(self, monkeypatch: pytest.MonkeyPatch) -> None:
        groups = [
            Room("the inner group", 8 * GIB, 4 * GIB, "raise a"),
            Room("the outer group", 9 * GIB, GIB, "raise b"),
        ]
        monkeypatch.setattr(module, "cgroup_memory", lambda: iter(groups))
        check_memory(GIB)
        with pytest.raises(LockLimitError, match=r"outer group .* raise b"):
            check_memory(2 * GIB)
        with pytest.raises(LockLimitError, match=r"inner group .* raise a"):
            check_memory(5 * GIB)

    def test_small_locks_do_not_look_at_memory(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(module, "system_memory", machine(tmp_path, 1 << 10, 0))
        check_memory(module.WORTH_A_LOOK - 1)
        with pytest.raises(LockLimitError):
            check_memory(module.WORTH_A_LOOK)


def test_a_lock_larger_than_all_memory_is_refused() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < system_memory().free <= system_memory().limit == total
    with pytest.raises(LockLimitError):
        check_memory(total + 1)


class TestLimitOfTheDevice:
    def test_fresh_pages_need_what_is_left(self) -> None:
        device = FakeLimitedDevice(LockLimit("RLIMIT_TEST", 10000, 4000, "testlimit -u"))
        check_room(6000, device)
        with pytest.raises(LockLimitError) as refusal:
            check_room(6001, device)
        for part in ("6001 bytes", "RLIMIT_TEST", "10000 bytes", "6000 bytes", "testlimit -u"):
            assert part in str(refusal.value)

    def test_pages_that_may_be_locked_already_need_no_more_than_the_limit(self) -> None:
        device = FakeLimitedDevice(LockLimit("RLIMIT_TEST", 10000, 4000, "testlimit -u"))
        check_limit(10000, device)
        with pytest.raises(LockLimitError, match="RLIMIT_TEST"):
            check_limit(10001, device)

    def test_limit_that_is_exceeded_already(self) -> None:
        device = FakeLimitedDevice(LockLimit("RLIMIT_TEST", 1000, 4000, "testlimit -u"))
        with pytest.raises(LockLimitError, match="of which 0 bytes"):
            check_room(1, device)

    @pytest.mark.parametrize("device", [FakeDevice(), FakeLimitedDevice(None)])
    def test_device_without_a_limit(self, device: FakeDevice) -> None:
        check_room(16 * GIB, device)

    def test_ordinary_user_learns_the_command(self) -> None:
        def check() -> None:
            device = plugin.device(0)
            check_room(8 << 20, device)
            with pytest.raises(LockLimitError, match=r"RLIMIT_MEMLOCK .* 8388608 bytes .* prlimit --memlock=unlimited"):
                check_room((8 << 20) + 1, device)

        run_as_ordinary_user(check)

    def test_pages_that_are_locked_count_once(self) -> None:
        def check() -> None:
            memory = np.frombuffer(mmap.mmap(-1, 8 << 20), "u1")
            assert ctypes.CDLL(None).mlock(ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(6 << 20)) == 0
            pinning.lock(memory, device="host").unlock()

        run_as_ordinary_user(check)


def test_control_groups_can_be_read() -> None:
    assert all(0 < group.limit < 1 << 62 for group in cgroup_memory())


def write_group(folder: Path, version: int, limit: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    limit_file, used_file, prefix = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        2: ("memory.max", "memory.current", ""),
    }[version]
    (folder / limit_file).write_text(f"{limit}\n")
    (folder / used_file).write_text(f"{used}\n")
    stat = {"anon": used - cached, f"{prefix}inactive_file": cached - cached // 4, f"{prefix}active_file": cached // 4}
    (folder / "memory.stat").write_text("".join(f"{name} {value}\n" for name, value in stat.items()))


def write_membership(root: Path, lines: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)


class TestControlGroups:
    def test_version_2_with_the_groups_around(self, tmp_path: Path) -> None:
        write_membership(tmp_path, "0::/outer/middle/inner\n")
        mount = tmp_path / "sys/fs/cgroup"
        write_group(mount / "outer", 2, "1000", 900, 500)
        write_group(mount / "outer/middle", 2, "max", 700, 100)
        write_group(mount / "outer/middle/inner", 2, "800", 300, 0)
        write_group(mount / "stranger", 2, "1", 1, 0)
        inner, outer = cgroup_memory(tmp_path)
        assert (inner.limit, inner.free) == (800, 500)
        assert (outer.limit, outer.free) == (1000, 600), "files in the cache give way"
        assert "/outer/middle/inner" in inner.name
        assert str(mount / "outer/memory.max") in outer.remedy

    def test_version_1_beside_version_2(self, tmp_path: Path) -> None:
        write_membership(tmp_path, "9:name=systemd:/x\n4:cpu,memory:/outer/inner\n1:cpuset:/y\n0::/z\n")
        mount = tmp_path / "sys/fs/cgroup/memory"
        write_group(mount, 1, "9223372036854771712", 5000, 0)
        write_group(mount / "outer", 1, "1000", 900, 400)
        write_group(mount / "outer/inner", 1, "9223372036854771712", 900, 400)
        (outer,) = cgroup_memory(tmp_path)
        assert (outer.limit, outer.free) == (1000, 500)
        assert "memory.limit_in_bytes" in outer.remedy

    @pytest.mark.parametrize(("version", "line"), [(2, "0::/"), (2, "0::/../other"), (1, "4:memory:/docker/0123")])
    def test_container_sees_its_own_group_as_the_root(self, tmp_path: Path, version: int, line: str) -> None:
        write_membership(tmp_path, f"{line}\n")
        mount = tmp_path / "sys/fs/cgroup" / ("memory" if version == 1 else "")
        write_group(mount, version, "1000", 100, 0)
        (group,) = cgroup_memory(tmp_path)
        assert (group.limit, group.free) == (1000, 900)

    def test_no_limits(self, tmp_path: Path) -> None:
        assert list(cgroup_memory(tmp_path)) == [], "no proc, no sys"
        write_membership(tmp_path, "0::/user.slice\n")
        assert list(cgroup_memory(tmp_path)) == [], "no such group"
        write_group(tmp_path / "sys/fs/cgroup/user.slice", 2, "max", 100, 0)
        assert list(cgroup_memory(tmp_path)) == [], "no limit"

    def test_group_name_with_a_colon(self, tmp_path: Path) -> None:
        write_membership(tmp_path, "0::/a:b\n")
        write_group(tmp_path / "sys/fs/cgroup/a:b", 2, "10", 1, 0)
        (group,) = cgroup_memory(tmp_path)
        assert group.free == 9


def test_without_descriptors_what_cannot_be_read_does_not_bind() -> None:
    def child() -> None:
        pinning.lock(bytearray(10), device="host").unlock()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))  # as if all were taken
        with pytest.raises(OSError):
            os.open("/dev/null", os.O_RDONLY)
        pinning.lock(bytearray(9000), device="host").unlock()
        pinning.lock(mmap.mmap(-1, 1 << 20), device="host").unlock()
        check_lock(WORTH_A_LOOK, pinning.device("host"), resident=False)
        with pytest.raises(InvalidRangeError):
            pinning.lock((mmap.PAGESIZE, 10), device="host")

    run_in_child(child)


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with 256 MiB of memory: the file that takes its processes."""
    mount, _, names = memory_group(Path("/"))
    group = mount / f"pinning-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / names.limit).write_text(str(256 << 20))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"needs to make a control group of memory: {error.strerror}")
    yield group / "cgroup.procs"
    while (group / "cgroup.procs").read_text():
        time.sleep(0.01)
    group.rmdir()


def test_in_a_small_control_group_what_does_not_fit_is_refused(small_group: Path) -> None:
    needs_room_to_lock(512 << 20)
    said = run(f"""
        import mmap, os, pathlib, numpy, pinning
        pathlib.Path({str(small_group)!r}).write_text(str(os.getpid()))
        MIB = 1 << 20
        def refused(call):
            try:
                call()
            except pinning.LockLimitError as error:
                return {small_group.parent.name!r} in str(error)
        with pinning.lock(mmap.mmap(-1, 64 * MIB), device="host"):
            pass
        print(refused(lambda: pinning.lock(mmap.mmap(-1, 512 * MIB), device="host")))
        print(refused(lambda: pinning.lock_async(mmap.mmap(-1, 512 * MIB), device="host").wait()))
        print(refused(lambda: pinning.Arena(512 * MIB, "host")))
        print(refused(lambda: pinning.alloc(512 * MIB, "host", device="host")))
        locks = []
        print(refused(lambda: [locks.append(pinning.lock(mmap.mmap(-1, 32 * MIB), device="host")) for _ in range(9)]))
        print(4 <= len(locks) < 8)
        for lock in locks:
            lock.unlock()
        here, there = numpy.ones(48 * MIB, "u1"), numpy.empty(48 * MIB, "u1")
        pinning.copy(there, here, queue=pinning.Queue("host"))
        print(numpy.array_equal(here, there), pinning.budget().used == 0)
    """)
    assert said.split() == ["True"] * 8


# ---- idle regions ----


@pytest.fixture
def idle() -> Iterator[None]:
    pinning.budget(idle=True)
    yield
    pinning.budget(1.0, idle=False)


def locked_whole(memory: mmap.mmap) -> None:
    pinning.lock(memory, device="host").unlock()


def locked_in_the_background(memory: mmap.mmap) -> None:
    pinning.lock_async(memory, device="host").wait().unlock()


def locked_as_it_is_mapped(memory: mmap.mmap) -> None:
    assert lock_mapped(memory, device="host")
    unlock_unmapped(memory, device="host")


def in_an_arena(memory: mmap.mmap) -> None:
    with pinning.Arena(len(memory), "host") as arena:
        arena.wait()


def allocated(memory: mmap.mmap) -> None:
    pinning.alloc(len(memory), "host", device="host").free()


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(
    "lock", [locked_whole, locked_in_the_background, locked_as_it_is_mapped, in_an_arena, allocated]
)
def test_what_is_idle_gives_way(lock: Callable[[mmap.mmap], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINNING_LOCK_MAPPED", "mandatory")

    def child() -> None:
        owners = [mmap.mmap(-1, 2 << 20, prot=mmap.PROT_READ) for _ in range(3)]
        for each in owners:
            locked_whole(each)
        assert pinning.budget().idle == 6 << 20
        lock(mmap.mmap(-1, 3 << 20))
        assert pinning.budget().idle >= 2 << 20, "no more than is needed"
        pinning.lock(owners[2], device="host").unlock()

    run_as_ordinary_user(child)


@pytest.mark.usefixtures("idle")
def test_a_lock_that_would_not_fit_anyway_takes_nothing() -> None:
    def child() -> None:
        owners = [mmap.mmap(-1, 2 << 20, prot=mmap.PROT_READ) for _ in range(3)]
        for each in owners:
            locked_whole(each)
        with pytest.raises(LockLimitError, match="RLIMIT_MEMLOCK"):
            pinning.lock(mmap.mmap(-1, 9 << 20), device="host")
        assert pinning.budget().idle == 6 << 20

    run_as_ordinary_user(child)


@pytest.mark.usefixtures("idle")
def test_threads_that_need_what_is_idle_find_it() -> None:
    def child() -> None:
        owners = [mmap.mmap(-1, 3 << 20, prot=mmap.PROT_READ) for _ in range(6)]
        with ThreadPoolExecutor(2) as threads:  # both locks fit if all idle regions are given back
            for _ in threads.map(locked_whole, owners * 30):
                pass

    run_as_ordinary_user(child)

# SPDX-License-Identifier: Apache-2.0
"""Memory that is unmapped, moved, replaced or discarded while it is locked."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

import pinning
from child_process import run_in_child
from fake_device import FakeDevice
from pinning.map import watch_problem

SIZE = 16 * mmap.PAGESIZE
CYCLES = int(os.environ.get("PINNING_WATCH_CYCLES", "300"))
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
FIXED = 0x10
DONTNEED = 4
MAYMOVE = 1

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mmap.restype = ctypes.c_void_p
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.mremap.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]

watched = pytest.mark.skipif(
    watch_problem() is not None, reason=f"the kernel does not tell of memory that leaves: {watch_problem()}"
)


def pages(at: int | None = None, flags: int = ANONYMOUS, file: int = -1) -> int:
    ptr: int = libc.mmap(at, SIZE, READ_WRITE, flags | (0 if at is None else FIXED), file, 0)
    assert ptr != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    ctypes.memset(ptr, 1, SIZE)
    return ptr


def unmapped(ptr: int) -> None:
    assert libc.munmap(ptr, SIZE) == 0


def unmapped_in_part(ptr: int) -> None:
    assert libc.munmap(ptr + mmap.PAGESIZE, mmap.PAGESIZE) == 0


def replaced(ptr: int) -> None:
    pages(ptr)


def moved(ptr: int) -> None:
    there = libc.mremap(ptr, SIZE, 64 * SIZE, MAYMOVE)
    assert there != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    assert libc.munmap(there, 64 * SIZE) == 0


def discarded(ptr: int) -> None:
    assert libc.madvise(ptr, SIZE, DONTNEED) == 0, os.strerror(ctypes.get_errno())


WAYS: list[Callable[[int], None]] = [unmapped, unmapped_in_part, replaced, moved, discarded]
# A device that locks nothing for the kernel, as a GPU does; the host's mlock would forbid some of these.
ways = pytest.mark.parametrize("leave", WAYS, ids=lambda way: way.__name__)


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@watched
@ways
def test_the_region_goes_at_once(device: FakeDevice, leave: Callable[[int], None]) -> None:
    ptr = pages()
    lock, part = pinning.lock((ptr, SIZE), device=device), pinning.lock((ptr + 100, 1), device=device)
    other = pinning.lock(numpy.ones(100_000, "u1"), device=device)
    leave(ptr)
    assert not lock.held
    assert not part.held
    assert not pinning.is_locked((ptr, SIZE), device=device)
    assert other.held
    lock.unlock()
    part.unlock()
    with pytest.raises(pinning.NotLockedError):
        pinning.unlock(ptr, device=device)
    assert pinning.regions(device) == [other.region]
    other.unlock()
    assert device.locked == {}


@watched
@ways
def test_a_new_lock_is_of_the_memory_that_is_there_now(device: FakeDevice, leave: Callable[[int], None]) -> None:
    ptr = pages()
    old = pinning.lock((ptr, SIZE), device=device)
    leave(ptr)
    pages(ptr)
    with pinning.lock((ptr, SIZE), device=device) as lock:
        assert lock.region is not None
        assert lock.region.references == 1
        old.unlock()
        assert lock.held
    assert device.locked == {}
    unmapped(ptr)


@watched
def test_shared_memory(device: FakeDevice) -> None:
    file = os.memfd_create("pages")
    os.truncate(file, SIZE)
    ptr = pages(flags=mmap.MAP_SHARED, file=file)
    lock = pinning.lock((ptr, SIZE), device=device)
    unmapped(ptr)
    os.close(file)
    assert not lock.held


@watched
def test_a_large_block_of_malloc(device: FakeDevice) -> None:
    ptr = libc.malloc(64 << 20)
    lock = pinning.lock((ptr, 1000), device=device)
    libc.free(ptr)
    assert not lock.held


@watched
def test_an_owner_whose_memory_is_discarded(device: FakeDevice) -> None:
    owner = mmap.mmap(-1, SIZE)
    owner[:] = b"1" * SIZE
    with pinning.lock(owner, device=device) as lock:
        owner.madvise(mmap.MADV_DONTNEED)
        assert not lock.held


@watched
def test_a_registration(device: FakeDevice) -> None:
    ptr = pages()
    on = pinning.pinned_map(device)
    on.register(ptr, SIZE, 1 << 40)
    unmapped(ptr)
    assert on.find(ptr) is None
    with pytest.raises(pinning.NotLockedError):
        on.unregister(ptr)


@watched
def test_of_the_host_nothing_stays_locked_by_the_kernel() -> None:
    def locked_by_the_kernel() -> int:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmLck"))

    before = locked_by_the_kernel()
    ptr = pages()
    lock = pinning.lock((ptr, SIZE), device="host")
    unmapped_in_part(ptr)
    assert not lock.held
    lock.unlock()
    pinning.pinned_map("host").undo_left()
    assert locked_by_the_kernel() == before
    unmapped(ptr)


@watched
def test_a_child_of_fork_watches_for_itself(device: FakeDevice) -> None:
    ptr = pages()
    with pinning.lock((ptr, SIZE), device=device) as lock:

        def child() -> None:
            unmapped(ptr)
            own = pages()
            held = pinning.lock((own, SIZE), device=FakeDevice())
            assert held.held
            unmapped(own)
            assert not held.held

        run_in_child(child)
        assert lock.held
    unmapped(ptr)


@watched
def test_cycles_beside_readers_and_others_that_lock(device: FakeDevice) -> None:
    stale: list[str] = []

    def cycle(number: int) -> None:
        for i in range(CYCLES):
            ptr = pages()
            lock = pinning.lock((ptr, SIZE), device=device)
            if lock.region is None or lock.region.references != 1:
                stale.append(f"{i}: counted on a region of memory that has gone: {lock.region}")
            leave = WAYS[(i + number) % len(WAYS)]
            leave(ptr)
            if lock.held:
                stale.append(f"{i}: held after {leave.__name__}")
            lock.unlock()
            if leave not in (unmapped, moved):
                unmapped(ptr)

    def read() -> None:
        while not done.is_set():
            for region in pinning.regions(device):
                pinning.is_locked((region.start, region.size), device=device)

    done = threading.Event()
    workers = [threading.Thread(target=cycle, args=(number,)) for number in range(2)]
    reader = threading.Thread(target=read)
    for thread in (*workers, reader):
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    reader.join()
    assert stale == []
    pinning.pinned_map(device).undo_left()
    assert device.locked == {}


FORBIDDEN = """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
NR, ALLOW, EPERM = 323, 0x7FFF0000, 0x00050001
code = b"".join(struct.pack("HBBI", *each) for each in [
    (0x20, 0, 0, 0),        # load the system call's number
    (0x15, 0, 1, NR),       # userfaultfd?
    (0x06, 0, 0, EPERM),
    (0x06, 0, 0, ALLOW),
])
buffer = ctypes.create_string_buffer(code)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
program = Program(4, ctypes.addressof(buffer))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(program)) == 0
"""
WITHOUT = """
import numpy, pinning
from pinning.map import watch_problem
problem = watch_problem()
array = numpy.ones(100_000)
with pinning.lock(array, device="host") as lock:
    assert lock.held
print(problem)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the filter names the system call of x86-64")
def test_where_the_kernel_forbids_it_locks_work_and_it_is_said_why() -> None:
    done = subprocess.run([sys.executable, "-c", FORBIDDEN + WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "userfaultfd: Operation not permitted" in done.stdout
    assert "seccomp" in done.stdout


def test_it_can_be_switched_off() -> None:
    environment = {**os.environ, "PINNING_WATCH": "0"}
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "PINNING_WATCH=0 is set\n"

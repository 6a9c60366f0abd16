# SPDX-License-Identifier: Apache-2.0
"""All ways to unmap, move or discard memory while it is locked; as a program: ``leaving.py [forbidden] CYCLES``.

It counts stale locks in CYCLES cycles of each of two threads, beside readers, copies and other mappings. With
``forbidden`` the kernel refuses userfaultfd, as under Docker's seccomp filter.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import os
import signal
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable

import numpy

import pinning
from c_library import libc
from fake_device import FakeDevice
from pinning.map.pinned_map import hears_of_calls, watch_problem

SIZE = 16 * mmap.PAGESIZE
LARGE = 1 << 30  # a block that malloc always maps by itself: no free part of the heap is as large
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
FIXED = 0x10
FIXED_NOREPLACE = 0x100000
DONTNEED = 4
MAYMOVE = 1
DONTUNMAP = 4
FORKS_EVERY = 100  # cycles
CHILD_SECONDS = 300

mremap = ctypes.CDLL(None, use_errno=True).mremap  # with a target
mremap.argtypes = [*libc.mremap.argtypes, ctypes.c_void_p]
mremap.restype = ctypes.c_void_p


def pages(at: int | None = None, flags: int = ANONYMOUS, file: int = -1, size: int = SIZE) -> int:
    ptr: int = libc.mmap(at, size, READ_WRITE, flags | (0 if at is None else FIXED), file, 0)
    assert ptr != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    ctypes.memset(ptr, 1, size)
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


def emptied(ptr: int) -> None:
    """The pages are moved, and the mapping stays (Linux 5.7)."""
    there = mremap(ptr, SIZE, SIZE, MAYMOVE | DONTUNMAP, None)
    assert there != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    assert libc.munmap(there, SIZE) == 0


def discarded(ptr: int) -> None:
    assert libc.madvise(ptr, SIZE, DONTNEED) == 0, os.strerror(ctypes.get_errno())


WAYS: list[Callable[[int], None]] = [unmapped, unmapped_in_part, replaced, moved, emptied, discarded]
# Offset and size of what is no longer mapped: another thread's mapping may be there, and must not be touched.
GIVEN_BACK = {unmapped: (0, SIZE), unmapped_in_part: (mmap.PAGESIZE, mmap.PAGESIZE), moved: (0, SIZE)}


def unmap_the_rest(ptr: int, leave: Callable[[int], None]) -> None:
    """Unmap what `leave` has left mapped of the pages at `ptr`."""
    offset, size = GIVEN_BACK.get(leave, (0, 0))
    for start, end in ((0, offset), (offset + size, SIZE)):
        assert start == end or libc.munmap(ptr + start, end - start) == 0


def mapped_anew(ptr: int, leave: Callable[[int], None]) -> bool:
    """Map again what `leave` has unmapped of the pages at `ptr`; False if another mapping is there now."""
    offset, size = GIVEN_BACK.get(leave, (0, 0))
    start = ptr + offset
    if size and libc.mmap(start, size, READ_WRITE, ANONYMOUS | FIXED_NOREPLACE, -1, 0) != start:
        return False
    ctypes.memset(ptr, 1, SIZE)
    return True


def block() -> int:
    ptr: int = libc.malloc(LARGE)
    ctypes.memset(ptr, 1, SIZE)
    return ptr


def is_held_in_a_child(lock: pinning.Lock) -> bool:
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_SECONDS)
        os._exit(int(lock.held))
    status = os.waitpid(child, 0)[1]
    assert not os.WIFSIGNALED(status), f"a child of fork ended by signal {os.WTERMSIG(status)}"
    return status != 0


def stale_after(cycles: int, device: FakeDevice) -> list[str]:
    """List stale regions in which locks were counted, and stale locks still held, while others look, copy and map."""
    stale: list[str] = []
    failures: list[BaseException] = []
    done = threading.Event()

    def cycle(number: int) -> None:
        ways = [*WAYS, libc.free]
        for i in range(cycles):
            leave = ways[(i + number) % len(ways)]
            ptr = block() if leave is libc.free else pages()
            lock = pinning.lock((ptr, SIZE), device=device)
            if lock.region is None or lock.region.references != 1:
                stale.append(f"{i}: counted on a region of memory that has gone: {lock.region}")
            if number == 0 and i % FORKS_EVERY == 0 and is_held_in_a_child(lock):
                stale.append(f"{i}: held in a child of fork")
            leave(ptr)
            if lock.held:
                stale.append(f"{i}: held after {leave.__name__}")
            lock.unlock()
            if leave is not libc.free:
                unmap_the_rest(ptr, leave)

    def read() -> None:
        while not done.is_set():
            for region in pinning.regions(device):
                pinning.is_locked((region.start, region.size), device=device)

    def copy() -> None:
        there, array = numpy.zeros(SIZE, "u1"), numpy.arange(SIZE, dtype="u1")
        with pinning.Queue("host") as queue, pinning.alloc(SIZE, device="host") as between:
            while not done.is_set():
                with pinning.lock(array, device="host"):
                    pinning.copy(between, array, queue=queue)
                pinning.copy(there, between, queue=queue)
                assert (there == array).all()

    def come() -> None:
        """Map pages in the places of memory that has gone; each must keep its content for a while."""
        there: deque[mmap.mmap] = deque()
        while not done.is_set():
            there.append(mmap.mmap(-1, mmap.PAGESIZE))
            there[-1][:1] = b"x"
            if len(there) == 100:
                assert all(page[:1] == b"x" for page in there)
                for _ in range(50):
                    there.popleft().close()

    def guarded(run: Callable[..., None], *given: int) -> None:
        try:
            run(*given)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=guarded, args=(cycle, number)) for number in range(2)]
    others = [threading.Thread(target=guarded, args=(each,)) for each in (read, copy, come)]
    for thread in (*workers, *others):
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    for thread in others:
        thread.join()
    if failures:
        raise failures[0]
    return stale


def forbid_userfaultfd() -> None:
    """Make userfaultfd fail in this process from now on, by a seccomp filter."""
    number = {"x86_64": 323, "aarch64": 282}[os.uname().machine]
    allow, eperm = 0x7FFF0000, 0x00050001
    steps = [
        (0x20, 0, 0, 0),  # load the system call's number
        (0x15, 0, 1, number),
        (0x06, 0, 0, eperm),
        (0x06, 0, 0, allow),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in steps))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    program = Program(len(steps), ctypes.addressof(code))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.byref(program)) == 0, os.strerror(ctypes.get_errno())  # PR_SET_SECCOMP


def main(arguments: list[str]) -> None:
    faulthandler.dump_traceback_later(CHILD_SECONDS, repeat=True)  # shows where it hangs, if it does
    if arguments[0] == "forbidden":
        forbid_userfaultfd()
    device = FakeDevice()
    stale = stale_after(int(arguments[-1]), device)
    pinning.pinned_map(device).drain_invalidations()
    print(
        json.dumps(
            {
                "problem": watch_problem(),
                "preloaded": hears_of_calls(),
                "stale": len(stale),
                "first": stale[:3],
                "locked": len(device.locked),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])

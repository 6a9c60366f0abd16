# SPDX-License-Identifier: Apache-2.0
"""mlock's lock follows the memory, in parts and to where it moves; no page stays locked or counted."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import pinning
from leaving import ANONYMOUS, MAYMOVE, READ_WRITE, libc, mremap, pages
from limits import locked_kib
from own_process import python
from pinning.map.pinned_map import watch_problem
from pinning_command.run import library

ROUNDS = 10 * int(os.environ.get("PINNING_WATCH_CYCLES", "300"))
PAGE = mmap.PAGESIZE
COUNT = 4
SIZE = COUNT * PAGE
FIXED_NOREPLACE = 0x100000
MREMAP_FIXED = 2

watched = pytest.mark.skipif(
    watch_problem() is not None, reason=f"the kernel does not tell of memory that leaves: {watch_problem()}"
)


def mapped(ptr: int | None, size: int = SIZE) -> int:
    """Map new memory exactly at `ptr`, or anywhere if it is None or another thread uses those addresses by now."""
    found: int = libc.mmap(ptr, size, READ_WRITE, ANONYMOUS | (FIXED_NOREPLACE if ptr else 0), -1, 0)
    if found == ctypes.c_void_p(-1).value:
        return mapped(None, size)
    ctypes.memset(found, 1, size)
    return found


def in_the_foreground(ptr: int) -> pinning.Lock:
    return pinning.lock((ptr, SIZE), device="host")


def in_pieces(ptr: int) -> pinning.Lock:
    return pinning.lock((ptr, SIZE), device="host", piece=PAGE)


def in_the_background(ptr: int) -> pinning.Lock:
    return pinning.lock_async((ptr, SIZE), device="host").wait(timeout=60)


def leave_in_parts(lock: Callable[[int], pinning.Lock], first: int, rounds: int) -> None:
    ptr = mapped(None)
    for _ in range(rounds):
        held = lock(ptr)
        libc.munmap(ptr + first * PAGE, PAGE)
        held.unlock()
        for start, end in ((ptr, ptr + first * PAGE), (ptr + (first + 1) * PAGE, ptr + SIZE)):
            if start < end:
                libc.munmap(start, end - start)
        ptr = mapped(ptr)
    libc.munmap(ptr, SIZE)


@pytest.mark.parametrize("lock", [in_the_foreground, in_pieces, in_the_background], ids=lambda each: each.__name__)
@pytest.mark.parametrize("first", [0, 2])
def test_memory_that_leaves_in_parts_is_half_unlocked_never(lock: Callable[[int], pinning.Lock], first: int) -> None:
    before, used = locked_kib(), pinning.budget().used
    leave_in_parts(lock, first, ROUNDS)
    pinning.pinned_map("host").drain_invalidations()
    assert (locked_kib(), pinning.budget().used) == (before, used)


UNWATCHED = """
import sys, threading
import pinning, test_host_pages
from limits import locked_kib
from own_process import python
before = locked_kib()
done = threading.Event()
def others():  # which fill the hole, and leave another
    while not done.is_set():
        for each in [test_host_pages.mapped(None, test_host_pages.PAGE) for _ in range(8)]:
            test_host_pages.libc.munmap(each, test_host_pages.PAGE)
thread = threading.Thread(target=others)
thread.start()
for first in (0, 2):
    test_host_pages.leave_in_parts(test_host_pages.in_the_foreground, first, ROUNDS)
done.set()
thread.join()
assert (locked_kib(), pinning.budget().used, pinning.regions("host")) == (before, 0, [])
"""


def run(program: str, **variables: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), **variables}
    done = python("-W", "ignore", "-c", program, env=environment, timeout=1700)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_nor_where_nobody_tells_and_others_map_in_between() -> None:
    run(UNWATCHED.replace("ROUNDS", str(ROUNDS)), PINNING_WATCH="off")


IDLE = """
import ctypes, mmap
import pinning
from limits import locked_kib
from own_process import python
from test_host_pages import PAGE, SIZE, libc, mapped, settled_kib
pinning.budget(idle=True)
before, kept = locked_kib(), []
for number in range(ROUNDS):
    buffer = mmap.mmap(-1, SIZE)
    ptr = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    pinning.lock(buffer, device="host").unlock()
    assert len(pinning.regions("host", idle=True)) == 1
    first = ptr + number % 3 * PAGE
    libc.munmap(first, PAGE)
    libc.munmap(ptr, first - ptr)
    libc.munmap(first + PAGE, ptr + SIZE - first - PAGE)
    anew = mapped(ptr)
    with pinning.lock((anew, SIZE), device="host") as lock:
        assert lock.held
    if anew == ptr:
        del buffer  # which unmaps it
    else:
        kept.append(buffer)
        libc.munmap(anew, SIZE)
assert (settled_kib(), pinning.budget().used, pinning.regions("host", idle=True)) == (before, 0, [])
"""


@watched
def test_nor_where_it_is_idle() -> None:
    run(IDLE.replace("ROUNDS", str(ROUNDS)))


def settled_kib() -> int:
    pinning.pinned_map("host").drain_invalidations()
    return locked_kib()


def moved(ptr: int, size: int) -> int:
    """Move the memory to other addresses, and double its size."""
    while True:
        room: int = libc.mmap(None, 2 * size, 0, ANONYMOUS, -1, 0)
        found: int = mremap(ptr, size, 2 * size, MAYMOVE | MREMAP_FIXED, room)
        if found == room:
            return found
        # The kernel moves no memory of which a part is locked, as it is for a moment while locks of it are undone.
        assert ctypes.get_errno() == errno.EFAULT, os.strerror(ctypes.get_errno())


@watched
def test_memory_that_moves_is_unlocked_where_it_is() -> None:
    before = locked_kib()
    ptr, other = mapped(None), mapped(None)
    lock, beside = in_the_foreground(ptr), in_the_foreground(other)
    ptr = moved(ptr, SIZE)
    assert not lock.held
    assert settled_kib() == before + SIZE // 1024
    with pinning.lock((ptr, 2 * SIZE), device="host"):
        assert settled_kib() == before + 3 * SIZE // 1024
    beside.unlock()
    assert locked_kib() == before
    libc.munmap(ptr, 2 * SIZE)
    libc.munmap(other, SIZE)


@watched
def test_memory_that_grows_up_to_where_other_memory_is_locked_is_unlocked() -> None:
    before = locked_kib()
    ptr, room = mapped(None), mapped(None, 3 * SIZE)
    lock, beside = in_the_foreground(ptr), in_the_foreground(room + 2 * SIZE)
    assert mremap(ptr, SIZE, 2 * SIZE, MAYMOVE | MREMAP_FIXED, room) == room
    assert (lock.held, beside.held) == (False, True)
    assert settled_kib() == before + SIZE // 1024
    beside.unlock()
    assert locked_kib() == before
    libc.munmap(room, 3 * SIZE)


OVER = """
import pinning
from limits import locked_kib
from own_process import python
from test_host_pages import COUNT, MAYMOVE, MREMAP_FIXED, PAGE, SIZE, libc, mapped, mremap, settled_kib
before = locked_kib()
for number in range(ROUNDS):
    old, new = mapped(None), mapped(None)
    locks = [pinning.lock((old + page * PAGE, 10), device="host") for page in range(COUNT)]
    locks.append(pinning.lock((new, SIZE), device="host"))
    libc.munmap(old, SIZE)
    assert mremap(new, SIZE, SIZE, MAYMOVE | MREMAP_FIXED, old) == old
    there = old
    if number % 2:  # a part moves on
        there = libc.mmap(None, SIZE, 0, 0x22, -1, 0)
        assert mremap(old + PAGE, PAGE, PAGE, MAYMOVE | MREMAP_FIXED, there) == there
    assert not any(lock.held for lock in locks)
    assert settled_kib() == before, number
    libc.munmap(there, SIZE)
    libc.munmap(old, PAGE)
    libc.munmap(old + 2 * PAGE, SIZE - 2 * PAGE)
"""


@watched
def test_memory_that_moves_to_where_other_memory_was_locked() -> None:
    run(OVER.replace("ROUNDS", str(ROUNDS // 10)))


AGAIN = """
import pinning
from limits import locked_kib
from own_process import python
from test_host_pages import PAGE, SIZE, libc, mapped, moved, settled_kib
before = locked_kib()
for _ in range(ROUNDS):
    ptr = mapped(None)
    locks = [
        pinning.lock((ptr, 2 * PAGE - 100), device="host"),
        pinning.lock((ptr + 2 * PAGE - 100, 2 * PAGE + 100), device="host"),
    ]
    ptr, size = moved(moved(ptr, SIZE), 2 * SIZE), 4 * SIZE
    assert not any(lock.held for lock in locks)
    assert settled_kib() == before
    libc.munmap(ptr, size)
"""


@watched
def test_memory_that_moves_again_before_that() -> None:
    run(AGAIN.replace("ROUNDS", str(ROUNDS // 10)))


@watched
def test_memory_that_a_move_added_is_unlocked_though_others_split_the_mapping() -> None:
    before = locked_kib()
    for _ in range(ROUNDS // 10):
        ptr = mapped(None)
        lock = in_the_foreground(ptr)
        ptr = moved(ptr, SIZE)
        libc.munlock(ctypes.c_void_p(ptr), ctypes.c_size_t(SIZE))
        assert (lock.held, settled_kib()) == (False, before)
        libc.munmap(ptr, 2 * SIZE)


@watched
def test_new_lock_at_the_moved_address_stays_locked() -> None:
    before = locked_kib()
    for _ in range(ROUNDS // 10):
        ptr = mapped(None)
        moving = in_the_foreground(ptr)
        ptr = moved(ptr, SIZE)
        assert not moving.held
        lock = pinning.lock((ptr + PAGE, PAGE), device="host")
        assert settled_kib() == before + PAGE // 1024
        assert lock.held
        libc.munmap(ptr, 2 * SIZE)
        assert not lock.held
        assert settled_kib() == before


@watched
@pytest.mark.parametrize("drained_first", [True, False])
def test_new_memory_is_not_counted_together_with_old_memory_of_another_map(drained_first: bool) -> None:
    before = locked_kib()
    ptr = mapped(None)
    with pinning.PinnedMap(pinning.device("host")) as other:
        other.lock(ptr, SIZE)
        pages(ptr, size=PAGE)
        lock = in_the_foreground(ptr)
        if drained_first:
            other.drain_invalidations()
            assert (lock.held, locked_kib()) == (True, before + SIZE // 1024)
        lock.unlock()
        assert locked_kib() == before
    assert locked_kib() == before
    libc.munmap(ptr, SIZE)


PRELOADED = """
import ctypes
import leaving, pinning, test_host_pages
from pinning.map.pinned_map import hears_of_calls
from test_host_pages import MAYMOVE, MREMAP_FIXED, PAGE, SIZE, libc, mapped, moved, mremap, settled_kib
FORBID
with pinning.lock(bytearray(10), device="host"):
    assert hears_of_calls()
before = settled_kib()
ptr = mapped(None)
lock = pinning.lock((ptr, PAGE // 2), device="host")
other = pinning.lock((ptr + PAGE // 2, SIZE - PAGE // 2), device="host")
ptr = moved(ptr, SIZE)
assert not lock.held and not other.held and settled_kib() == before, "mremap"
source, target = mapped(None), mapped(None, 2 * SIZE)
tail = pinning.lock((target + SIZE, SIZE), device="host")
assert mremap(source, SIZE, 2 * SIZE, MAYMOVE | MREMAP_FIXED, target) == target
assert not tail.held and settled_kib() == before, "mremap to where it grows into a lock"
block = libc.malloc(1 << 30)
lock = pinning.lock((block, 10_000), device="host")
block = libc.realloc(block, (1 << 30) + (1 << 20))
assert not lock.held and settled_kib() == before, "realloc"
lock = pinning.lock((ptr, SIZE), device="host")
assert libc.madvise(ptr, SIZE, leaving.DONTNEED) == 0 and not lock.held and settled_kib() == before, "madvise"
lock = pinning.lock((ptr, SIZE), device="host")
assert libc.madvise(ptr, SIZE, 9) == -1 and not lock.held and settled_kib() == before, "MADV_REMOVE, refused"
with pinning.PinnedMap(pinning.device("host")) as other:
    other.lock(ptr, SIZE)
    libc.munmap(ptr, SIZE)
    assert libc.mmap(ptr, SIZE, 3, 0x32, -1, 0) == ptr
    with pinning.lock((ptr, SIZE), device="host"):
        assert settled_kib() == before + SIZE // 1024, "another map, locked"
    assert settled_kib() == before, "another map"
small = [libc.malloc(3000) for _ in range(3)]
locks = [pinning.lock((each, 3000), device="host") for each in small]
libc.free(small[1])
assert [lock.held for lock in locks] == [True, False, True] or not all(lock.held for lock in locks)
for lock in locks: lock.unlock()
for each in (small[0], small[2]): libc.free(each)
assert settled_kib() == before, "free"
"""


@pytest.mark.parametrize(
    "forbid",
    [
        pytest.param("", marks=watched),
        pytest.param(
            "leaving.forbid_userfaultfd()",
            marks=pytest.mark.skipif(
                os.uname().machine not in ("x86_64", "aarch64"),
                reason="the filter knows the system calls of x86-64 and AArch64",
            ),
        ),
    ],
    ids=["told", "forbidden"],
)
def test_nothing_stays_locked_where_calls_are_seen(forbid: str) -> None:
    run(PRELOADED.replace("FORBID", forbid), LD_PRELOAD=str(library()))

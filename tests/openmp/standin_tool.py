# SPDX-License-Identifier: Apache-2.0
"""What the tool locks, and when, seen by the driver. Run with the tool loaded first and the stand-in as the driver.

PINNING_LOCK_MIN_BYTES is one page, PINNING_LOCK_BUDGET 1 MiB, and a buffer is locked at its second transfer.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest
from ompt_runtime import ASSOCIATE, Runtime, address_on
from programs import TOOL, kernel_tells

import pinning
from c_library import c_library, libc
from fake_device import Background, in_threads
from mapped_memory import PAGE, READ_WRITE, Memory
from standins.libcuda import DRIVER
from standins.standin import StandIn

FIXED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
REGISTERED = 1 << 47  # between the stand-in's host and device addresses of registered memory

tool = ctypes.CDLL(str(TOOL))
tool.llvm_omp_target_lock_mem.restype = ctypes.c_void_p
tool.llvm_omp_target_lock_mem.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
tool.llvm_omp_target_unlock_mem.argtypes = [ctypes.c_void_p, ctypes.c_int]
unseen = c_library("libc.so.6")  # the C library's own functions, not those that the tool interposes
runtime = Runtime(tool, "sm_90", "sm_90", "a strange one", "generic-64bit")


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[StandIn]:
    standin = DRIVER.standin(tmp_path / "calls")
    standin.configure()
    yield standin
    standin.configure()


@pytest.fixture
def memory() -> Iterator[Memory]:
    """16 pages at addresses that no other test has had. They are unmapped at the end, which also ends their locks."""
    memory = Memory(16)
    yield memory
    assert libc.mmap(memory.ptr, memory.size, 0, FIXED, -1, 0) == memory.ptr


def move(memory: Memory, first: float, pages: float, device: int = 0, times: int = 1) -> None:
    for _ in range(times):
        with runtime.to_device(at(memory, first), int(pages * PAGE), device):
            pass


def at(memory: Memory, page: float) -> int:
    return memory.ptr + int(page * PAGE)


def locked(standin: StandIn, memory: Memory) -> set[tuple[float, float]]:
    """The first page and the number of pages of each registration in the memory."""
    inside = ((start - memory.ptr, size) for start, size in standin.registrations())
    return {(start / PAGE, size / PAGE) for start, size in inside if 0 <= start < memory.size}


def test_a_mapped_buffer_is_locked_whole_at_its_second_transfer(standin: StandIn, memory: Memory) -> None:
    runtime.map(at(memory, 1), 4 * PAGE)
    move(memory, 1, 4)
    assert locked(standin, memory) == set()
    move(memory, 2, 1)
    assert locked(standin, memory) == {(1, 4)}
    with runtime.from_device(at(memory, 1), 4 * PAGE):
        assert locked(standin, memory) == {(1, 4)}
    assert len(standin.calls("cuMemHostRegister")) == 1
    runtime.unmap(at(memory, 1))


def test_transfers_are_counted_over_mappings(standin: StandIn, memory: Memory) -> None:
    for _ in range(2):
        runtime.map(memory.ptr, 4 * PAGE)
        move(memory, 0, 4)
        runtime.unmap(memory.ptr)
    assert locked(standin, memory) == {(0, 4)}


def test_transfers_of_a_buffer_of_another_size_are_counted_anew(standin: StandIn, memory: Memory) -> None:
    for pages in (4, 5, 4):
        runtime.map(memory.ptr, pages * PAGE)
        move(memory, 0, pages)
        runtime.unmap(memory.ptr)
    assert locked(standin, memory) == set()


def test_a_lock_stays_until_the_memory_is_unmapped(standin: StandIn, memory: Memory) -> None:
    runtime.map(memory.ptr, 4 * PAGE)
    move(memory, 0, 4, times=2)
    runtime.unmap(memory.ptr)
    assert locked(standin, memory) == {(0, 4)}
    memory.unmap(15)
    assert locked(standin, memory) == {(0, 4)}
    memory.unmap(3)
    assert locked(standin, memory) == set()


@pytest.mark.parametrize("advice", [4, 8])  # MADV_DONTNEED, MADV_FREE
def test_pages_that_are_given_back_are_unlocked_first(standin: StandIn, memory: Memory, advice: int) -> None:
    move(memory, 0, 4, times=2)
    assert locked(standin, memory) == {(0, 4)}
    assert libc.madvise(at(memory, 4), PAGE, advice) == 0
    assert locked(standin, memory) == {(0, 4)}
    assert libc.madvise(at(memory, 3), PAGE, advice) == 0
    assert locked(standin, memory) == set()


def test_advice_that_keeps_the_pages_keeps_the_lock(standin: StandIn, memory: Memory) -> None:
    move(memory, 0, 4, times=2)
    assert libc.madvise(memory.ptr, memory.size, 14) == 0  # MADV_HUGEPAGE
    assert locked(standin, memory) == {(0, 4)}


def test_an_unlock_waits_for_transfers_that_began_while_another_was_waiting(standin: StandIn, memory: Memory) -> None:
    for first in (0, 8):
        move(memory, first, 4, times=2)
    standin.configure("delay=cuCtxSynchronize:60000")
    unmapping = Background(lambda: memory.unmap(0))
    standin.wait_for("cuCtxSynchronize")
    move(memory, 8, 4)
    standin.configure()
    unmapping.result()
    assert locked(standin, memory) == {(8, 4)}
    memory.unmap(8)
    assert standin.calls("cuCtxSynchronize")


def test_memory_that_moves_is_unlocked_first(standin: StandIn) -> None:
    memory = Memory(16)
    move(memory, 0, 4, times=2)
    moved = libc.mremap(memory.ptr, memory.size, 2 * memory.size, 1)
    assert standin.registrations() == set()
    libc.munmap(moved, 2 * memory.size)


needs_userfaultfd = pytest.mark.skipif(not kernel_tells(), reason="needs userfaultfd, which is refused here")


@needs_userfaultfd
@pytest.mark.parametrize("how", ["munmap", "mmap", "madvise"])
@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "not mapped"])
def test_memory_that_goes_where_the_tool_does_not_see_it_is_locked_anew(
    standin: StandIn, memory: Memory, how: str, mapped: bool
) -> None:
    if mapped:
        runtime.map(memory.ptr, 4 * PAGE)
    move(memory, 0, 4, times=2)
    assert locked(standin, memory) == {(0, 4)}
    if how == "madvise":
        if unseen.madvise(at(memory, 1), PAGE, 24) != 0:  # the stand-in locks by mlock
            pytest.skip("needs a kernel that has MADV_DONTNEED_LOCKED")
    else:
        if how == "munmap":
            assert unseen.munmap(memory.ptr, 2 * PAGE) == 0
        assert unseen.mmap(memory.ptr, 2 * PAGE, READ_WRITE, FIXED, -1, 0) == memory.ptr
    with runtime.to_device(memory.ptr, 4 * PAGE):
        assert locked(standin, memory) == {(0, 4)}
        assert len(standin.calls("cuMemHostUnregister")) == 1
        assert len(standin.calls("cuMemHostRegister")) == 2
    if mapped:
        runtime.unmap(memory.ptr)


@needs_userfaultfd
def test_a_lock_of_the_programs_own_goes_with_its_memory_where_the_tool_does_not_see_it(
    standin: StandIn, memory: Memory
) -> None:
    for _ in range(2):
        assert tool.llvm_omp_target_lock_mem(memory.ptr, 4 * PAGE, 0) == memory.ptr + REGISTERED
        assert unseen.mmap(memory.ptr, 4 * PAGE, READ_WRITE, FIXED, -1, 0) == memory.ptr
    tool.llvm_omp_target_unlock_mem(memory.ptr, 0)
    assert tool.llvm_omp_target_lock_mem(memory.ptr, 4 * PAGE, 0) == memory.ptr + REGISTERED
    assert len(standin.calls("cuMemHostRegister")) == 3
    tool.llvm_omp_target_unlock_mem(memory.ptr, 0)
    assert locked(standin, memory) == set()


@pytest.mark.parametrize("size", [5 * PAGE, 1 << 20], ids=["of the heap", "mapped"])
@pytest.mark.parametrize("how", ["free", "realloc"])
def test_freed_memory_is_unlocked_first(standin: StandIn, size: int, how: str) -> None:
    ptr = libc.malloc(size)
    inside = ptr + 100
    runtime.map(inside, size - 200)
    for _ in range(2):
        with runtime.to_device(inside, size - 200):
            pass
    assert (inside, size - 200) in standin.registrations()
    if how == "free":
        libc.free(ptr)
    else:
        ptr = libc.realloc(ptr, 2 * size)
        libc.free(ptr)
    assert standin.registrations() == set()
    runtime.unmap(inside)


def test_copies_of_locked_memory_are_complete_before_it_is_unlocked(standin: StandIn, memory: Memory) -> None:
    move(memory, 0, 4, times=3)
    assert libc.madvise(memory.ptr, PAGE, 4) == 0
    names = [call.split()[0] for call in standin.calls()]
    assert names.index("cuCtxSynchronize") < names.index("cuMemHostUnregister")


def test_a_transfer_that_crosses_a_lock_releases_it(standin: StandIn, memory: Memory) -> None:
    move(memory, 2, 4, times=2)
    assert locked(standin, memory) == {(2, 4)}
    with runtime.to_device(at(memory, 4), 6 * PAGE):
        assert locked(standin, memory) == set()
    move(memory, 4, 6)
    assert locked(standin, memory) == {(4, 6)}


def test_a_buffer_around_locks_is_locked_in_their_place(standin: StandIn, memory: Memory) -> None:
    runtime.map(memory.ptr, 16 * PAGE)
    move(memory, 0, 1)
    runtime.unmap(memory.ptr)
    move(memory, 2, 2, times=2)
    move(memory, 6, 2, times=2)
    assert locked(standin, memory) == {(2, 2), (6, 2)}
    runtime.map(memory.ptr, 16 * PAGE)
    with runtime.from_device(at(memory, 10), PAGE):
        assert locked(standin, memory) == {(0, 16)}
    runtime.unmap(memory.ptr)


def test_a_small_transfer_over_an_edge_is_seen_too(standin: StandIn, memory: Memory) -> None:
    move(memory, 2, 2, times=2)
    with runtime.to_device(at(memory, 4) - 4, 8):
        assert locked(standin, memory) == set()


def test_buffers_that_cross_each_other_are_locked_ever_more_seldom(standin: StandIn, memory: Memory) -> None:
    locks = []
    for _ in range(200):
        move(memory, 0, 4)
        move(memory, 2, 4)
        locks.append(len(standin.calls("cuMemHostRegister")))
    assert locks[3] > 2
    assert locks[-1] - locks[99] <= 3


@pytest.mark.parametrize("programs_own", [False, True])
def test_a_lock_that_the_driver_does_not_undo_stays_and_is_tried_again(
    standin: StandIn, memory: Memory, programs_own: bool
) -> None:
    if programs_own:
        tool.llvm_omp_target_lock_mem(at(memory, 2), 2 * PAGE, 0)
        standin.configure("fail=cuMemHostUnregister:1:999")
        tool.llvm_omp_target_unlock_mem(at(memory, 2), 0)
    else:
        move(memory, 2, 2, times=2)
        standin.configure("fail=cuMemHostUnregister:1:999")
        move(memory, 0, 16)
    assert locked(standin, memory) == {(2, 2)}
    move(memory, 0, 16, times=3)
    assert locked(standin, memory) == {(0, 16)}


def test_after_a_refusal_it_is_tried_again_ever_more_seldom(standin: StandIn, memory: Memory) -> None:
    standin.configure(";".join(f"fail=cuMemHostRegister:{n}:2" for n in range(1, 10)))
    runtime.map(memory.ptr, 4 * PAGE)
    tries = []
    for _ in range(40):
        move(memory, 0, 4)
        tries.append(len(standin.calls("cuMemHostRegister")))
    assert [tries.index(n) + 1 for n in range(1, tries[-1] + 1)] == [2, 4, 8, 16, 32]
    runtime.unmap(memory.ptr)


def test_what_is_refused_takes_no_room_in_the_budget(standin: StandIn, memory: Memory) -> None:
    others = [Memory(16) for _ in range(20)]  # 64 KiB each, 1 MiB is the budget
    for other in others:
        standin.configure("fail=cuMemHostRegister:1:2")
        move(other, 0, 16, times=2)
        assert len(standin.calls("cuMemHostRegister")) == 1
    standin.configure()
    move(memory, 0, 16, times=2)
    assert locked(standin, memory) == {(0, 16)}


def test_what_the_program_has_registered_itself_is_used_and_left(standin: StandIn, memory: Memory) -> None:
    cuda = ctypes.CDLL(DRIVER.soname)
    move(memory, 8, 1, times=2)  # starts the driver
    context, device = ctypes.c_void_p(), ctypes.c_int(0)
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    assert cuda.cuMemHostRegister_v2(ctypes.c_void_p(memory.ptr), ctypes.c_size_t(4 * PAGE), 3) == 0
    move(memory, 0, 4, times=3)
    assert locked(standin, memory) == {(0, 4), (8, 1)}
    libc.madvise(memory.ptr, 4 * PAGE, 4)  # the kernel refuses it for locked pages
    assert locked(standin, memory) == {(0, 4), (8, 1)}
    assert cuda.cuMemHostUnregister(ctypes.c_void_p(memory.ptr)) == 0
    cuda.cuCtxPopCurrent_v2(ctypes.byref(context))


def test_two_devices_share_one_lock(standin: StandIn, memory: Memory) -> None:
    runtime.map(memory.ptr, 4 * PAGE, 0)
    runtime.map(memory.ptr, 4 * PAGE, 1)
    move(memory, 0, 4, device=0)
    move(memory, 0, 4, device=1, times=3)
    assert locked(standin, memory) == {(0, 4)}
    assert len(standin.calls("cuMemHostRegister")) == 1
    runtime.unmap(memory.ptr, 0)
    runtime.unmap(memory.ptr, 1)


def test_memory_that_is_associated_is_locked_as_what_is_mapped(standin: StandIn, memory: Memory) -> None:
    runtime.map(memory.ptr, 4 * PAGE, how=ASSOCIATE)
    move(memory, 1, 1, times=2)
    assert locked(standin, memory) == {(0, 4)}
    runtime.disassociate(memory.ptr)


def test_a_pointer_that_goes_into_a_mapped_structure_is_no_transfer_of_it(standin: StandIn, memory: Memory) -> None:
    runtime.map(memory.ptr, 4 * PAGE)
    for _ in range(5):
        runtime.transfer_between(at(memory, 8), address_on(0, memory.ptr) + 8, 8)
    assert locked(standin, memory) == set()
    runtime.unmap(memory.ptr)


def test_an_unknown_device_is_none_of_the_tools_business(standin: StandIn, memory: Memory) -> None:
    runtime.map(memory.ptr, 4 * PAGE, 2)
    move(memory, 0, 4, device=2, times=3)
    runtime.unmap(memory.ptr, 2)
    assert standin.calls() == []


def test_read_only_data_is_locked_for_reading(standin: StandIn, memory: Memory) -> None:
    memory.protect(0, 1)
    runtime.map(memory.ptr, PAGE)
    move(memory, 0, 1, times=2)
    (call,) = standin.calls("cuMemHostRegister")
    assert int(call.split()[3]) & 8
    runtime.unmap(memory.ptr)


def test_two_threads_that_move_one_buffer_make_one_lock(standin: StandIn, memory: Memory) -> None:
    standin.configure("delay=cuMemHostRegister:50")
    runtime.map(memory.ptr, 4 * PAGE)
    move(memory, 0, 4)

    def one(_: int) -> set[tuple[float, float]]:
        with runtime.to_device(memory.ptr, 4 * PAGE):
            return locked(standin, memory)

    assert in_threads(one, range(4)) == [{(0, 4)}] * 4
    assert len(standin.calls("cuMemHostRegister")) == 1
    runtime.unmap(memory.ptr)


def test_no_lock_is_made_that_a_small_transfer_of_another_thread_crosses(standin: StandIn, memory: Memory) -> None:
    move(memory, 0, 4)
    with runtime.to_device(at(memory, 4) - 8, 16):  # below PINNING_LOCK_MIN_BYTES, and no lock is near
        Background(lambda: move(memory, 0, 4)).result()
        assert locked(standin, memory) == set()
    move(memory, 0, 4)
    assert locked(standin, memory) == {(0, 4)}


def test_memory_freed_by_one_thread_while_another_locks_it_does_not_stay_locked(
    standin: StandIn, memory: Memory
) -> None:
    standin.configure("delay=cuMemHostRegister:50")
    move(memory, 0, 4)
    mover = Background(lambda: move(memory, 0, 4))
    standin.wait_for("cuMemHostRegister")
    assert libc.madvise(memory.ptr, PAGE, 4) == 0
    assert locked(standin, memory) == set()
    mover.result()


def test_memory_is_not_freed_while_another_thread_gives_its_lock_back_for_the_budget(
    standin: StandIn, memory: Memory
) -> None:
    move(memory, 0, 4, times=2)
    other = Memory(254)  # of 256 that the budget allows
    move(other, 0, 254)
    standin.configure("delay=cuMemHostUnregister:300")
    mover = Background(lambda: move(other, 0, 254))
    standin.wait_for("cuMemHostUnregister")
    memory.unmap(3)
    assert locked(standin, memory) == set()
    mover.result()
    assert locked(standin, other) == {(0, 254)}
    assert libc.munmap(other.ptr, other.size) == 0


def test_no_transfer_crosses_locks_that_another_thread_gives_back_for_the_budget(standin: StandIn) -> None:
    for _ in range(4):  # in every other one it meets a lock that the other thread has just begun to give back
        memory, other = Memory(16), Memory(256)  # all that the budget allows
        for first in (0, 4, 8, 12):
            move(memory, first, 4, times=2)
        move(other, 0, 256)
        standin.configure("delay=cuMemHostUnregister:50")
        mover = Background(lambda other=other: move(other, 0, 256))
        standin.wait_for("cuMemHostUnregister")
        with runtime.to_device(at(memory, 2), 12 * PAGE):
            assert locked(standin, memory) == set()
        standin.configure()
        mover.result()
        for each in (memory, other):
            assert libc.munmap(each.ptr, each.size) == 0


@pytest.mark.parametrize("what", ["a free", "a transfer that crosses it"])
def test_a_lock_is_not_undone_while_a_transfer_in_it_is_being_submitted(
    standin: StandIn, memory: Memory, what: str
) -> None:
    move(memory, 0, 4, times=2)
    with runtime.to_device(memory.ptr, 4 * PAGE):
        undoing = Background(lambda: memory.unmap(0) if what == "a free" else move(memory, 2, 4))
        undoing.join(0.2)  # enough to undo it, if the thread did not wait
        assert undoing.is_alive()
        assert locked(standin, memory) == {(0, 4)}
    undoing.result()
    assert locked(standin, memory) == set()


def test_a_lock_of_the_programs_own(standin: StandIn, memory: Memory) -> None:
    assert tool.llvm_omp_target_lock_mem(at(memory, 1), 4 * PAGE, 0) == at(memory, 1) + REGISTERED
    assert tool.llvm_omp_target_lock_mem(at(memory, 2), PAGE, 1) == at(memory, 2) + REGISTERED
    assert locked(standin, memory) == {(1, 4)}
    tool.llvm_omp_target_unlock_mem(at(memory, 3), 0)
    assert locked(standin, memory) == {(1, 4)}
    tool.llvm_omp_target_unlock_mem(at(memory, 1), 0)
    assert locked(standin, memory) == set()
    tool.llvm_omp_target_unlock_mem(at(memory, 1), 0)  # one too many


@pytest.mark.parametrize(("first", "pages"), [(0, 2), (4, 4), (0, 16)], ids=["head", "tail", "around"])
def test_a_lock_of_the_programs_own_that_overlaps_another_is_refused(
    standin: StandIn, memory: Memory, first: float, pages: int
) -> None:
    tool.llvm_omp_target_lock_mem(at(memory, 1), 4 * PAGE, 0)
    assert tool.llvm_omp_target_lock_mem(at(memory, first), pages * PAGE, 0) is None
    assert locked(standin, memory) == {(1, 4)}
    tool.llvm_omp_target_unlock_mem(at(memory, 1), 0)


def test_nothing_and_nowhere_cannot_be_locked(standin: StandIn, memory: Memory) -> None:
    assert tool.llvm_omp_target_lock_mem(None, PAGE, 0) is None
    assert tool.llvm_omp_target_lock_mem(memory.ptr, 0, 0) is None
    assert tool.llvm_omp_target_lock_mem(memory.ptr, (1 << 64) - 1, 0) is None
    assert standin.calls("cuMemHostRegister") == []


def test_the_programs_own_locks_end_at_a_transfer_that_crosses_them(standin: StandIn, memory: Memory) -> None:
    for _ in range(2):
        tool.llvm_omp_target_lock_mem(at(memory, 1), 2 * PAGE, 0)
    with runtime.to_device(at(memory, 2), 4 * PAGE):
        assert locked(standin, memory) == set()
    tool.llvm_omp_target_unlock_mem(at(memory, 1), 0)  # does nothing


def test_a_buffer_around_the_programs_own_lock_is_not_locked(standin: StandIn, memory: Memory) -> None:
    tool.llvm_omp_target_lock_mem(at(memory, 1), 2 * PAGE, 0)
    runtime.map(memory.ptr, 8 * PAGE)
    move(memory, 5, 1, times=4)
    assert locked(standin, memory) == {(1, 2)}
    runtime.unmap(memory.ptr)
    tool.llvm_omp_target_unlock_mem(at(memory, 1), 0)
    assert locked(standin, memory) == set()


def test_a_buffer_locked_by_the_program_and_mapped_stays_locked_for_either(standin: StandIn, memory: Memory) -> None:
    runtime.map(memory.ptr, 4 * PAGE)
    tool.llvm_omp_target_lock_mem(memory.ptr, 4 * PAGE, 0)
    move(memory, 0, 4)
    tool.llvm_omp_target_unlock_mem(memory.ptr, 0)
    assert locked(standin, memory) == {(0, 4)}
    runtime.unmap(memory.ptr)


def test_pythons_map_of_the_device_and_the_tools_are_one(standin: StandIn, memory: Memory) -> None:
    whole, half = (memory.ptr, 4 * PAGE), (memory.ptr, 2 * PAGE)
    runtime.map(memory.ptr, 4 * PAGE, 3)
    move(memory, 0, 4, device=3, times=2)
    found = pinning.find(*half, device="host:0")
    assert found is not None
    assert (found.start, found.size, found.references) == (*whole, 1)
    with pinning.lock(half, device="host:0") as lock:
        libc.madvise(memory.ptr, PAGE, 4)  # both locks end before the kernel is called, which may refuse
        assert not lock.held
        assert pinning.find(*half, device="host:0") is None
    assert pinning.find(*half, device="host:0") is None
    assert locked(standin, memory) == set()
    runtime.unmap(memory.ptr, 3)

# SPDX-License-Identifier: Apache-2.0
"""The host locker's own rules, on the stand-in for mlock: slow calls, and calls that fail half way."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator

import pytest

import pinning
from child_process import run_in_child
from fake_device import Background
from mapped_memory import PAGE, Memory, locked_pages
from pinning import PinningError, VendorError
from standins.standin import StandIn

DEVICE = pinning.device("host")
LONG = 60_000  # milliseconds, or until the next configuration


@pytest.fixture
def memory(standin: StandIn) -> Iterator[Memory]:
    memory = Memory(8)
    yield memory
    assert locked(memory) == set()


def locked(memory: Memory) -> set[int]:
    return locked_pages(memory.ptr, memory.ptr + 8 * PAGE)


def in_thread(standin: StandIn, call: str, act: Callable[[], object]) -> Background:
    """Start a thread; return once it is inside this C library call."""
    standin.configure(f"delay={call}:{LONG}")
    thread = Background(act)
    standin.wait_for(call)
    return thread


def test_an_unlock_that_fails_half_way(standin: StandIn, memory: Memory) -> None:
    ptr = memory.ptr
    DEVICE.data_lock(ptr + PAGE, PAGE, None)  # splits the pages that only the other lock has into two runs
    DEVICE.data_lock(ptr, 3 * PAGE, None)
    standin.configure(f"fail=munlock:2:{errno.EAGAIN}")
    with pytest.raises(VendorError, match=r"munlock failed: EAGAIN \(11\); .*still locked") as failure:
        DEVICE.data_unlock(ptr)
    assert (failure.value.call, failure.value.code, failure.value.name) == ("munlock", errno.EAGAIN, "EAGAIN")
    assert len(standin.calls("munlock")) == 2
    standin.configure()
    assert locked(memory) == {0, 1, 2}
    assert DEVICE.is_pinned_ptr(ptr) == (ptr, 3 * PAGE, ptr)
    DEVICE.data_unlock(ptr)
    assert locked(memory) == {1}
    DEVICE.data_unlock(ptr + PAGE)


@pytest.mark.parametrize(
    "lock",
    [
        lambda ptr: DEVICE.data_lock(ptr, PAGE, None),
        lambda ptr: pinning.pinned_map(DEVICE).lock(ptr, PAGE),
        lambda ptr: pinning.pinned_map(DEVICE).lock_mapped(ptr, PAGE, "on"),
    ],
)
def test_ctrl_c_during_a_lock_without_a_handle_leaves_nothing_locked(
    standin: StandIn, memory: Memory, lock: Callable[[int], object]
) -> None:
    def interrupt() -> None:
        standin.wait_for("mlock")
        os.kill(os.getpid(), signal.SIGINT)
        standin.configure()

    standin.configure(f"delay=mlock:{LONG}")
    interrupting = Background(interrupt)
    with pytest.raises(KeyboardInterrupt):
        lock(memory.ptr)
    interrupting.result()
    assert locked(memory) == set()
    assert memory.ptr not in pinning.pinned_map(DEVICE)
    with pytest.raises(PinningError):
        DEVICE.data_unlock(memory.ptr)


def test_a_lock_of_a_page_that_is_being_unlocked(standin: StandIn, memory: Memory) -> None:
    ptr = memory.ptr
    DEVICE.data_lock(ptr, 2 * PAGE, None)
    unlocking = in_thread(standin, "munlock", lambda: DEVICE.data_unlock(ptr))
    locking = Background(lambda: DEVICE.data_lock(ptr + PAGE, 2 * PAGE, None))
    DEVICE.data_lock(ptr + 3 * PAGE, PAGE, None)  # a lock of the next page does not wait
    assert DEVICE.is_pinned_ptr(ptr + 3 * PAGE)
    standin.configure()
    for thread in (unlocking, locking):
        thread.result()
    assert locked(memory) == {1, 2, 3}
    DEVICE.data_unlock(ptr + PAGE)
    DEVICE.data_unlock(ptr + 3 * PAGE)


def test_the_child_of_a_process_whose_other_thread_is_locking(standin: StandIn, memory: Memory) -> None:
    def in_child() -> None:
        standin.configure()
        DEVICE.data_lock(memory.ptr, PAGE, None)
        assert locked(memory) == {0}
        DEVICE.free(DEVICE.allocate(PAGE, pinning.MemoryKind.HOST), pinning.MemoryKind.HOST)
        queue = DEVICE.make_queue()
        queue.copy(memory.ptr, memory.ptr + 2 * PAGE, PAGE)
        queue.synchronize()

    thread = in_thread(standin, "mlock", lambda: DEVICE.data_lock(memory.ptr, PAGE, None))
    run_in_child(in_child)
    standin.configure()
    thread.result()
    DEVICE.data_unlock(memory.ptr)


def test_memory_that_cannot_be_locked_is_given_back(standin: StandIn) -> None:
    standin.configure(f"fail=mlock:1:{errno.EAGAIN}")
    with pytest.raises(VendorError, match="mlock failed: EAGAIN"):
        DEVICE.allocate(64 * PAGE, pinning.MemoryKind.HOST)
    ((_, start, size),) = (call.split() for call in standin.calls("mlock"))
    assert int(size) == 64 * PAGE
    assert DEVICE.memory_info(int(start, 16)) is None
    assert DEVICE.is_pinned_ptr(int(start, 16)) is None

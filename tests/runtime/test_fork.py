# SPDX-License-Identifier: Apache-2.0
"""A child of fork has none of its parent's locks, on a native device and on one in Python."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest

import pinning
from child_process import run_in_child
from fake_device import WAIT, FakeDevice
from folders import SUPPORT
from own_process import python
from pinning import Arena, PendingLock, PinningError
from pinning.locking.mapped import lock_mapped, unlock_unmapped
from pinning.plugin import Device

PAGE = mmap.PAGESIZE
SIZE = 8 * PAGE


@pytest.fixture(params=["host", "python"])
def device(request: pytest.FixtureRequest) -> Device:
    return pinning.device("host") if request.param == "host" else FakeDevice()


@pytest.fixture
def stopped(device: Device) -> Iterator[threading.Event]:
    """From now on a lock locks all its pieces, but does not succeed before the event."""
    opened = threading.Event()
    registrar = pinning.pinned_map(device).add_registrar(lambda ptr, size: opened.wait(), lambda handle: None)
    yield opened
    opened.set()
    registrar.remove()


@pytest.fixture
def pending(device: Device, stopped: threading.Event) -> Iterator[PendingLock]:
    made = pinning.lock_async(mmap.mmap(-1, SIZE), device=device, piece=PAGE)
    made.wait(SIZE - PAGE, timeout=WAIT)
    yield made
    stopped.set()
    made.wait(timeout=WAIT).unlock()


def waited(pending: PendingLock) -> None:
    with pytest.raises(PinningError, match="fork"):
        pending.wait()


def waited_for_some(pending: PendingLock) -> None:
    with pytest.raises(PinningError, match="fork"):
        pending.wait(1)


def awaited(pending: PendingLock) -> None:
    async def main() -> None:
        await pending

    with pytest.raises(PinningError, match="fork"):
        asyncio.run(main())


def left(pending: PendingLock) -> None:
    with pending:
        pass


def told(pending: PendingLock) -> None:
    assert (pending.done(), pending.progress) == (True, 0)
    assert "of the parent process" in repr(pending)


@pytest.mark.parametrize(
    "use", [told, waited, waited_for_some, awaited, left, PendingLock.cancel], ids=lambda use: use.__name__
)
def test_a_pending_lock_is_the_parents(
    device: Device, pending: PendingLock, use: Callable[[PendingLock], None]
) -> None:
    def child() -> None:
        use(pending)
        pinning.lock_async(bytearray(100), device=device).wait(timeout=WAIT).unlock()

    run_in_child(child)


def test_a_pending_lock_that_the_child_drops(device: Device, stopped: threading.Event) -> None:
    pendings = [pinning.lock_async(mmap.mmap(-1, SIZE), device=device, piece=PAGE) for _ in range(2)]
    pendings[0].wait(SIZE - PAGE, timeout=WAIT)

    def child() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pendings.clear()
            gc.collect()

    run_in_child(child)
    stopped.set()
    for each in pendings:
        each.wait(timeout=WAIT).unlock()


def test_an_arena_that_is_being_locked(device: Device, stopped: threading.Event) -> None:
    with Arena(SIZE, device, unit=PAGE, shared=True) as arena:

        def child() -> None:
            memoryview(arena)[:3] = b"abc"
            arena.close()

        run_in_child(child)
        stopped.set()
        arena.wait(timeout=WAIT)
        assert memoryview(arena)[:3] == b"abc"


def test_registrars_and_what_is_locked_are_the_parents(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINNING_LOCK_MAPPED", "on")
    on, calls = pinning.pinned_map(device), list[tuple[str, int]]()

    def register(ptr: int, size: int) -> int:
        calls.append(("register", ptr))
        return ptr

    registrar = on.add_registrar(register, lambda ptr: calls.append(("unregister", ptr)))
    memory, mapped = bytearray(SIZE // 2), bytearray(SIZE // 2)
    lock = pinning.lock(memory, device=device)
    assert lock_mapped(mapped, device=device)
    before = list(calls)

    def child() -> None:
        if isinstance(device, FakeDevice):
            device.locked.clear()  # the child's vendor has locked nothing
        assert "removed" in repr(registrar)
        assert not lock.held
        unlock_unmapped(mapped, device=device)
        with pinning.lock(memory, device=device) as own:
            assert own.held
            lock.unlock()
            assert own.held
        assert lock_mapped(mapped, device=device)
        unlock_unmapped(mapped, device=device)
        registrar.remove()
        assert (len(on), calls) == (0, before)
        on.close()
        assert calls == before

    run_in_child(child)
    assert lock.held
    assert calls == before
    lock.unlock()
    unlock_unmapped(mapped, device=device)
    registrar.remove()
    assert len(calls) == 4


EARLY = """
import gc, os, sys
def early():
    global locks, pending
    gc.collect()
    locks = [pinning.lock(bytearray(10_000), device=each) for each in ("host", DEVICE)]
    pending = [pinning.lock_async(bytearray(10_000), device=each) for each in ("host", DEVICE)]
os.register_at_fork(after_in_child=early)  # the handlers run in the order in which they come
sys.path.insert(0, SUPPORT)
import pinning
from fake_device import FakeDevice
DEVICE = FakeDevice()
parents = [pinning.lock(bytearray(10_000), device=each) for each in ("host", DEVICE)]
earlier = [pinning.lock_async(bytearray(10_000), device=each) for each in ("host", DEVICE)]
if (child := os.fork()) == 0:
    DEVICE.wrong.clear()
    assert not any(lock.held for lock in parents)
    assert all(lock.held for lock in locks)
    locks += [each.wait(timeout=60) for each in pending]
    assert [len(pinning.pinned_map(each)) for each in ("host", DEVICE)] == [2, 2]
    assert pinning.budget().used == 40_000
    for lock in locks:
        lock.unlock()
    assert [len(pinning.pinned_map(each)) for each in ("host", DEVICE)] == [0, 0]
    assert pinning.budget().used == 0
    sys.exit()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
for lock in (*parents, *[each.wait() for each in earlier]):
    lock.unlock()
"""


def test_a_handler_before_the_packages_own_may_lock() -> None:
    program = EARLY.replace("SUPPORT", repr(str(SUPPORT)))
    done = python("-W", "ignore", "-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# In the child, whose own lock must not be counted together with those of objects that it has dropped.
DROPPED = """
import gc, os, pinning
arenas = [pinning.Arena(8192, "host") for _ in range(3)]
for each in arenas:
    each.wait()
child = os.fork()
if not child:
    del arenas, each
    gc.collect()
    arena = pinning.Arena(8192, "host")
    arena.wait()
    try:
        pinning.unlock(arena.ptr)
    except pinning.NotLockedError:
        os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_the_child_counts_no_locks_that_it_has_dropped() -> None:
    memory_is_filled_when_it_is_freed = {**os.environ, "PYTHONMALLOC": "debug"}
    done = python("-W", "ignore", "-c", DROPPED, env=memory_is_filled_when_it_is_freed)
    assert (done.stdout, done.stderr) == ("3\n", "")

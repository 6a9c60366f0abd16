# SPDX-License-Identifier: Apache-2.0
"""Copies: which path each takes and why, that the bytes arrive, in order, and what happens when the vendor refuses."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress

import numpy
import pytest

import own_process
import pinning
from child_process import run_in_child
from fake_device import WAIT, Background, in_threads
from fake_memory import FakeMemoryDevice, FakeQueue
from limits import needs_room_to_lock
from noise import noise
from pinning import InvalidRangeError, MemoryConnection, MemoryKind, StillInUseError, VendorError
from pinning.cli.status import status_of
from pinning.conformance.faults import eventually
from pinning.copies import CopyPath, Reason, costs, links, trim_staging
from pinning.plugin import LockLimit, VendorQueue
from pinning.queues import pending
from pinning.queues.staging import staging_of
from small_links import shrink

KIB, MIB = 1 << 10, 1 << 20
SIZE = 3 * MIB + 5


@pytest.fixture(autouse=True)
def small_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage from 1 MiB on, through small rings, so that copies have many chunks."""
    monkeypatch.setattr(costs, "stage_to_device", MIB)
    monkeypatch.setattr(costs, "stage_to_host", MIB)
    monkeypatch.setattr(costs, "ring_bytes", 4 * 512 * KIB)
    monkeypatch.setattr(costs, "staging_bytes", 4 * MIB)
    monkeypatch.setattr(costs, "threads", 2)


def bytes_of(allocation: pinning.Allocation) -> numpy.ndarray:
    """The bytes of a fake device's memory, which is ordinary memory."""
    import ctypes

    return numpy.ctypeslib.as_array((ctypes.c_uint8 * allocation.size).from_address(allocation.ptr))


def run(device: FakeMemoryDevice, over: Callable[[], bool]) -> None:
    """Have the device do its work until `over()` is true; a staged copy also needs its threads to make progress."""
    end = time.monotonic() + 30
    while not over():
        if not device.release():
            time.sleep(0.001)
        assert time.monotonic() < end, "the copy does not end"


def let_go(*devices: FakeMemoryDevice, after: float = 0.0) -> None:
    """Have devices whose queues wait for each other do all their work."""
    time.sleep(after)
    for device in devices:
        device.let_go()
    while any(queue.pending() for device in devices for queue in device.queues):
        for device in devices:
            device.release_unheld()
        time.sleep(0.001)


# ---- paths ----


def test_locked_memory_is_copied_directly(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    array = noise(SIZE)
    with pinning.alloc(SIZE, device=device) as there, pinning.lock(array, device=device):
        copy = pinning.copy_async(there, array, queue=queue)
        copy.wait()
        assert copy.path == "direct"
        assert pinning.explain(there, array, queue=queue).reason_code is Reason.LOCKED
        assert (bytes_of(there) == array).all()
        back = numpy.zeros_like(array)
        with pinning.lock(back, device=device):
            assert pinning.copy(back, there, queue=queue).path is CopyPath.DIRECT
        assert (back == array).all()


@pytest.mark.parametrize("size", [MIB, MIB + 1, SIZE, 9 * MIB + 77])
def test_large_pageable_memory_is_staged(device: FakeMemoryDevice, queue: pinning.Queue, size: int) -> None:
    array, back = noise(size), numpy.zeros(size, numpy.uint8)
    with pinning.alloc(size, device=device) as there:
        calls = len(device.vendor_calls)
        assert pinning.explain(there, array, queue=queue).reason_code is Reason.LARGE
        assert [call for call in device.vendor_calls[calls:] if call.startswith("queue.")] == []  # nothing is copied
        copy = pinning.copy_async(there, array, queue=queue)
        run(device, copy.done)
        assert copy.path == "staged"
        assert (bytes_of(there) == array).all()
        again = pinning.copy_async(back, there, queue=queue)
        run(device, again.done)
        assert again.path == "staged"
        assert (back == array).all()


@pytest.mark.parametrize("method", ["copy", "fill", "record"])
def test_ctrl_c_once_the_vendor_has_submitted_keeps_what_is_used(
    device: FakeMemoryDevice, queue: pinning.Queue, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    submit = getattr(FakeQueue, method)

    def interrupted(*arguments: object) -> None:
        submit(*arguments)
        monkeypatch.undo()
        raise KeyboardInterrupt

    device.held = True
    with pinning.Queue(device) as queue, pinning.alloc(4096, device=device) as there:
        if method == "record":
            assert queue.handle  # shared, so that each operation is recorded at once
        monkeypatch.setattr(FakeQueue, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            pinning.fill_async(there, 1, queue=queue) if method == "fill" else pinning.copy_async(
                there, noise(4096), queue=queue
            )
        with pytest.raises(StillInUseError):
            there.free()
        device.let_go()
        queue.synchronize()


def test_a_source_that_work_writes_in_the_middle_of_which_more_was_submitted() -> None:
    written, source, result = noise(SIZE), numpy.zeros(SIZE, numpy.uint8), numpy.zeros(SIZE, numpy.uint8)
    go, inner = threading.Event(), list[pinning.Event]()
    waiting = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: go.wait(WAIT))
    with pinning.Queue("host") as queue, pinning.alloc(SIZE, device="host") as there:

        def submit(vendor: VendorQueue) -> None:
            inner.append(queue.submit(None))
            vendor.call(ctypes.cast(waiting, ctypes.c_void_p).value or 0, 0)
            vendor.copy(source.ctypes.data, written.ctypes.data, SIZE)

        queue.submit(submit, keep=(source, written))
        inner[0].wait()
        releasing = threading.Timer(0.05, go.set)
        releasing.start()
        pinning.copy_async(there, source, queue=queue)
        pinning.copy(result, there, queue=queue)
    assert (result == written).all()


def test_native_threads_take_no_signals() -> None:
    """They would take those that the program waits for. In a process of its own, where they begin."""
    said = own_process.run("""
        import pathlib, re, numpy, pinning
        def threads():
            tasks = pathlib.Path("/proc/self/task").iterdir()
            return {task.name: ((task / "comm").read_text().strip(), (task / "status").read_text()) for task in tasks}
        before = threads()
        array = numpy.zeros(4 << 20, "u1")
        with pinning.lock(array[:4096], device="host"):
            pinning.copy(array, array.copy(), queue=pinning.queues.default_queue("host"))
            begun = [each for name, each in threads().items() if name not in before]
        native = [status for name, status in begun if name not in ("pinning service", "pinning defer")]
        masks = [int(re.search("SigBlk:[^0-9a-f]*([0-9a-f]+)", status)[1], 16) for status in native]
        blocked = [[bool(mask & 1 << (number - 1)) for number in (10, 14, 15, 17)] for mask in masks]
        print(len(blocked) > 1, all(map(all, blocked)))
    """)
    assert said == "True True\n"


@pytest.mark.parametrize("bytes_locked", [0, 4096])
def test_what_the_vendor_refuses_is_not_counted(
    device: FakeMemoryDevice, queue: pinning.Queue, monkeypatch: pytest.MonkeyPatch, bytes_locked: int
) -> None:
    def refuse(queue: FakeQueue, dst: int, src: int, size: int) -> None:
        raise VendorError("fakeCopy", 1, "FAKE_FAILURE")

    array = noise(4096)
    with pinning.alloc(4096, device=device) as there, ExitStack() as locks:
        if bytes_locked:
            locks.enter_context(pinning.lock(array, device=device))
        before = moved()
        monkeypatch.setattr(FakeQueue, "copy", refuse)
        with pytest.raises(VendorError):
            pinning.copy(there, array, queue=queue)
        monkeypatch.undo()
        assert moved() == before
        pinning.copy(there, array, queue=queue)
        assert sum(moved().values()) == sum(before.values()) + 4096


@pytest.mark.parametrize("refusing", [0, 1])
def test_a_ring_that_one_device_does_not_free_keeps_no_other(refusing: int) -> None:
    devices = [FakeMemoryDevice(f"fake:{i}", held=False) for i in range(2)]
    for device in devices:
        with pinning.alloc(SIZE, device=device) as there, pinning.Queue(device) as queue:
            assert pinning.copy(there, noise(SIZE), queue=queue).path == "staged"
    devices[refusing].fail_call(calls_before=1)  # it is asked first whether it still knows the memory
    with pytest.raises(VendorError):
        trim_staging()
    assert [staging_of(device).empty for device in devices] == [refusing == 1, refusing == 0]
    trim_staging()
    assert all(staging_of(device).empty for device in devices)


def test_a_limit_without_room_for_staging(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    device.limit = LockLimit("a limit", 3 << 20, 2 << 20, "raise it")
    array, beside = noise(SIZE), numpy.zeros(SIZE, numpy.uint8)
    device.held = False
    with pinning.alloc(SIZE, device=device) as there:
        for _ in range(2):
            plan = pinning.explain(there, array, queue=queue)
            assert plan.path == "plain"
            assert "but a limit leaves 1048576 bytes (1 MiB) to lock, and staging needs" in plan.reason
            pinning.copy(beside, array, queue=queue)  # within the host: by a ring that has no blocks
            assert (beside == array).all()


def test_host_memory_to_host_memory_in_the_queues_turn(device: FakeMemoryDevice) -> None:
    device.held = True
    with pinning.Queue(device) as queue:
        here, there = noise(1000), numpy.zeros(1000, numpy.uint8)
        copy = pinning.copy_async(there, here, queue=queue)
        time.sleep(0.01)
        assert not there.any()
        run(device, copy.done)
        assert (there == here).all()
        assert copy.path == "plain"
        assert pinning.explain(there, here, queue=queue).reason_code is Reason.IN_HOST
        device.let_go()


def test_memory_of_the_host_is_copied_without_the_interpreter() -> None:
    """Another library may wait for the device and hold the GIL all the while."""
    here, there = noise(SIZE), numpy.zeros(SIZE, numpy.uint8)
    interval = sys.getswitchinterval()
    with pinning.Queue("host") as queue:
        sys.setswitchinterval(1000)  # seconds, for which this thread keeps the GIL
        try:
            copy = pinning.copy_async(there, here, queue=queue)
            end = time.monotonic() + 60
            while not numpy.array_equal(there, here):
                assert time.monotonic() < end, "the copy waits for the GIL"
        finally:
            sys.setswitchinterval(interval)
        copy.wait()


def test_ranges_of_the_host_may_overlap(queue: pinning.Queue, device: FakeMemoryDevice) -> None:
    array = noise(SIZE)
    expected = array[:-1000].copy()
    run(device, pinning.copy_async(array[1000:], array[:-1000], queue=queue).done)
    assert (array[1000:] == expected).all()
    expected[1000:] = array[:-2000]
    size = 3 * SIZE
    other, beside = noise(size, 2), numpy.zeros(size, "u1")  # most of what is written is new memory
    run(device, pinning.copy_batch_async([beside, array[1000:-1000]], [other, array[:-2000]], queue=queue).done)
    assert (array[1000:-1000] == expected[1000:]).all()
    assert (beside == other).all()


def test_where_no_memory_can_be_pinned_copies_are_plain(
    device: FakeMemoryDevice, queue: pinning.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = device.allocate

    def limited(size: int, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        if kind is MemoryKind.HOST:
            raise pinning.LockLimitError("RLIMIT_MEMLOCK")
        return allocate(size, kind)

    monkeypatch.setattr(device, "allocate", limited)
    array, back = noise(SIZE), numpy.zeros(SIZE, numpy.uint8)
    with pinning.alloc(SIZE, device=device) as there:
        copy = pinning.copy(there, array, queue=queue)
        assert copy.path == "plain"
        assert "refused" in copy.reason
        pinning.copy(back, there, queue=queue)
        assert (back == array).all()
        run(device, pinning.copy_async(back, noise(SIZE, 2), queue=queue).done)  # in the host: needs no pinned memory
        assert (back == noise(SIZE, 2)).all()


def test_a_child_of_a_fork_stages_with_threads_of_its_own() -> None:
    needs_room_to_lock(4 << 20)  # for the ring
    array, back = noise(SIZE), numpy.zeros(SIZE, numpy.uint8)

    def there_and_back() -> None:
        with pinning.Queue("host") as queue, pinning.alloc(SIZE, MemoryKind.DEVICE, device="host") as there:
            copy = pinning.copy_async(there, array, queue=queue)
            assert copy.path == "staged", copy.reason
            pinning.copy(back, there, queue=queue)
        assert (back == array).all()
        back[:] = 0

    there_and_back()
    run_in_child(there_and_back)
    there_and_back()


def test_memory_that_someone_else_has_pinned_is_not_staged(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    array = noise(SIZE)
    device.data_lock(array.ctypes.data, SIZE, False)  # behind the map's back
    with pinning.alloc(SIZE, device=device) as there:
        assert pinning.copy(there, array, queue=queue).path == "direct"
    device.data_unlock(array.ctypes.data)


def test_a_copy_is_split_where_locks_begin_and_end(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    array = noise(SIZE)
    a, b = array[100 : 100 + 64 * KIB], array[256 * KIB : 512 * KIB]
    with (
        pinning.alloc(SIZE, device=device) as there,
        pinning.lock(a, device=device),
        pinning.lock(b, device=device, piece=100 * KIB),
    ):
        plan = pinning.explain(there, array, queue=queue)
        assert [step.size for step in plan.steps] == [
            *(100, 64 * KIB, 192 * KIB - 100),
            *(100 * KIB, 100 * KIB, 56 * KIB),
            SIZE - 512 * KIB,
        ]
        assert [step.path for step in plan.steps] == ["plain", "direct", "plain", *["direct"] * 3, "staged"]
        assert plan.reason_code is Reason.SMALL
        assert str(plan).count("\n") == 7
        copy = pinning.copy_async(there, array, queue=queue)
        run(device, copy.done)
        assert (bytes_of(there) == array).all()
        back = numpy.zeros_like(array)
        run(device, pinning.copy_async(back, there, queue=queue).done)
        assert (back == array).all()


@pytest.mark.parametrize("connection", [None, MemoryConnection.NONE, MemoryConnection.MIGRATABLE])
def test_memory_of_one_device_or_two(
    device: FakeMemoryDevice, queue: pinning.Queue, connection: MemoryConnection | None
) -> None:
    other = device
    path, code = CopyPath.DIRECT, Reason.ON_DEVICE
    if connection is not None:
        other = FakeMemoryDevice("fake:1", held=False)
        other.connections[device] = connection
        code = Reason.CONNECTED
        if connection is MemoryConnection.NONE:
            path, code = CopyPath.STAGED, Reason.NOT_CONNECTED
    with pinning.alloc(SIZE, device=other) as there, pinning.alloc(SIZE, device=device) as here:
        bytes_of(there)[:] = noise(SIZE)
        assert pinning.explain(here, there, queue=queue).reason_code is code
        before = moved()
        assert pinning.copy(here, there, queue=queue).path is path
        assert moved() == {**before, path: before[path] + SIZE}
        assert (bytes_of(here) == noise(SIZE)).all()


def moved() -> dict[str, int]:
    """Bytes by path, as `pinning top` shows them."""
    with pinning.locked(numpy.zeros(1), device="host"):  # makes this process visible
        return status_of(os.getpid()).moved


def test_each_copy_through_the_host_has_a_block_of_its_own(device: FakeMemoryDevice) -> None:
    device.held = True  # it empties the blocks later than `other` fills them
    other = FakeMemoryDevice("fake:1", held=False)
    with ExitStack() as stack:
        there = [stack.enter_context(pinning.alloc(SIZE, device=other)) for _ in range(3)]
        here = [stack.enter_context(pinning.alloc(SIZE, device=device)) for _ in range(3)]
        for seed, each in enumerate(there):
            bytes_of(each)[:] = noise(SIZE, seed)
        queues = [stack.enter_context(pinning.Queue(other)) for _ in here]
        copies = [pinning.copy_async(*ends, queue=each) for *ends, each in zip(here, there, queues, strict=True)]

        def over() -> bool:
            other.release_unheld()
            return all(copy.done() for copy in copies)

        run(device, over)
        for seed, each in enumerate(here):
            assert (bytes_of(each) == noise(SIZE, seed)).all()


class LinkedDevice(FakeMemoryDevice):
    """Joined to all others."""

    def link_to(self, other: object) -> str:
        return "a link"


def test_what_fails_later_on_a_peer_and_whatever_is_refused_after_that_is_copied_again(
    device: FakeMemoryDevice, queue: pinning.Queue
) -> None:
    peer, source = LinkedDevice("fake:1", held=False), noise(64 * MIB)
    peer.connections[device] = MemoryConnection.UNIFIED
    queue.links = [peer]
    with pinning.alloc(source.nbytes, device=device) as there, pinning.locked(source, device=device):
        for refused in range(100):
            assert "over 2 links" in pinning.copy(there, source, queue=queue).reason
            source += 1
            assert eventually(lambda: pending.is_idle(peer))
            next(each for each in reversed(peer.queues) if not each.closed).fail_step()  # of the first block
            peer.fail_call(calls_before=refused)
            pinning.copy(there, source, queue=queue)
            over = bool(peer._call_failures)
            peer.fail_no_more()
            assert (bytes_of(there) == source).all(), refused
            trim_staging()
            if over:
                break
    assert refused > 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, VendorError("fakeWait", 1, "FAKE_FAILURE")])
def test_what_ends_a_wait_for_rounds_leaves_their_memory_alone(
    device: FakeMemoryDevice, monkeypatch: pytest.MonkeyPatch, error: type[BaseException] | BaseException
) -> None:
    shrink(monkeypatch.setattr)
    device.held, peer = True, LinkedDevice("fake:1", held=True)
    peer.connections[device] = MemoryConnection.UNIFIED
    queue = pinning.Queue(device, links=[peer])
    there, kept = pinning.alloc(8 * MIB, device=device), numpy.zeros(8 * MIB, numpy.uint8)
    array = kept[:]
    alive = weakref.ref(array)

    def wait(self: object) -> None:
        if error is not KeyboardInterrupt:
            Background(lambda: let_go(device, peer, after=0.1))
        raise error

    def copy(into: numpy.ndarray) -> None:
        with suppress(KeyboardInterrupt, VendorError):
            pinning.copy(into, there, queue=queue)

    monkeypatch.setattr(links.Rounds, "finish", wait)
    copy(array)
    pending_steps = [step for each in device.queues + peer.queues for step in each.pending()]
    del array
    gc.collect()
    if error is KeyboardInterrupt:
        assert pending_steps and alive() is not None
        with pytest.raises(StillInUseError):
            there.free()
    else:
        assert not pending_steps, "nothing stays submitted"
    let_go(device, peer)
    queue.close()
    there.free()
    assert eventually(lambda: pending.is_idle(peer))
    trim_staging()


def test_a_copy_through_the_host_that_is_refused_midway_is_over(
    device: FakeMemoryDevice, queue: pinning.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FakeMemoryDevice("fake:1", held=True)
    copy, calls = FakeQueue.copy, itertools.count()

    def refuse_second(self: FakeQueue, dst: int, src: int, size: int) -> None:
        if self.device is device and next(calls) == 1:
            Background(lambda: let_go(device, other, after=0.1))
            raise VendorError("fakeCopy", 1, "FAKE_FAILURE")
        copy(self, dst, src, size)

    monkeypatch.setattr(FakeQueue, "copy", refuse_second)
    with pinning.alloc(3 * SIZE, device=other) as there, pinning.alloc(3 * SIZE, device=device) as here:
        with pytest.raises(VendorError, match="fakeCopy"):
            pinning.copy_async(here, there, queue=queue)
        assert [each.pending() for each in device.queues + other.queues if each.pending()] == []


def test_bytes_of_a_refused_copy_are_not_counted(
    device: FakeMemoryDevice, queue: pinning.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, copy = noise(1000), FakeQueue.copy

    def refuse_second(self: FakeQueue, dst: int, src: int, size: int) -> None:
        if size == 400:
            raise VendorError("fakeCopy", 1, "FAKE_FAILURE")
        copy(self, dst, src, size)

    with pinning.alloc(1000, device=device) as there, pinning.locked(array[:600], device=device):
        before = moved()
        with monkeypatch.context() as patched, pytest.raises(VendorError, match="fakeCopy"):
            patched.setattr(FakeQueue, "copy", refuse_second)
            pinning.copy_async(there, array, queue=queue)
        assert moved() == before
        pinning.copy(there, array, queue=queue)
        assert moved() == {**before, CopyPath.DIRECT: before["direct"] + 600, CopyPath.PLAIN: before["plain"] + 400}


def test_rings_are_used_again_and_given_back(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    array = noise(SIZE)
    with pinning.alloc(SIZE, device=device) as there:
        for _ in range(5):
            run(device, pinning.copy_async(there, array, queue=queue).done)
        pinned = [size for size, kind in device.allocated.values() if kind is MemoryKind.HOST]
        assert len(pinned) == 1
        gc.collect()
        assert trim_staging() == costs.ring_bytes
        assert not any(kind is MemoryKind.HOST for _, kind in device.allocated.values())


def test_threads_stage_in_queues_of_their_own(device: FakeMemoryDevice) -> None:
    def copy(seed: int) -> bool:
        arrays = [noise(MIB + seed, seed + at) for at in range(3)]
        with pinning.Queue(device) as own, pinning.alloc(MIB + seed, device=device) as there:
            for array in arrays * 5:
                back = numpy.zeros_like(array)
                pinning.copy_async(there, array, queue=own)
                pinning.copy_async(back, there, queue=own).wait()
                if (back != array).any():
                    return False
        return True

    assert all(in_threads(copy, range(4)))


@pytest.mark.parametrize(
    ("limit", "value", "path"),
    [("ring_bytes", 1000, "plain"), ("ring_bytes", 256 * KIB, "staged"), ("ring_bytes", 256 * KIB + 1, "staged"),
     ("staging_bytes", MIB, "plain"), ("staging_bytes", 4 * MIB, "staged")],
)  # fmt: skip
def test_rings_smaller_than_a_chunk_and_a_bound_on_all(
    device: FakeMemoryDevice, queue: pinning.Queue, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, path: str
) -> None:
    monkeypatch.setattr(costs, limit, value)
    array, back = noise(SIZE), numpy.zeros(SIZE, numpy.uint8)
    with pinning.alloc(SIZE, device=device) as there:
        plans = [pinning.explain(there, array, queue=queue)]
        copy = pinning.copy_async(there, array, queue=queue)
        last = pinning.copy_async(back, there, queue=queue)
        run(device, last.done)
        plans.append(pinning.explain(there, array, queue=queue))
        assert {copy.path, *(plan.path for plan in plans)} == {path}
        assert all((path == "plain") == (f"costs.{limit} {value}" in each.reason) for each in (copy, *plans))
        assert (back == array).all()


# ---- order and life ----


def test_later_work_sees_the_data_and_earlier_work_is_done_first(device: FakeMemoryDevice) -> None:
    device.held = True
    with pinning.Queue(device) as queue, pinning.alloc(SIZE, device=device) as there:
        first, second, back = noise(SIZE, 1), noise(SIZE, 2), numpy.zeros(SIZE, numpy.uint8)
        pinning.copy_async(there, first, queue=queue)
        out = pinning.copy_async(back, there, queue=queue)
        last = pinning.copy_async(there, second, queue=queue)
        time.sleep(0.05)
        assert not back.any()  # nothing moves before its turn
        run(device, out.done)
        run(device, last.done)
        assert (back == first).all()
        assert (bytes_of(there) == second).all()
        device.let_go()


def test_a_copy_keeps_both_ends_until_it_is_done(device: FakeMemoryDevice) -> None:
    device.held = True
    with pinning.Queue(device) as queue:
        there = pinning.alloc(SIZE, device=device)
        array = noise(SIZE)
        gone = weakref.ref(array)
        copy = pinning.copy_async(there, array, queue=queue)
        del array
        gc.collect()
        assert gone() is not None
        run(device, copy.done)
        queue.poll()
        run(device, lambda: gc.collect() >= 0 and gone() is None)
        there.free()
        device.let_go()


@pytest.mark.parametrize("size", [1000, SIZE])
@pytest.mark.parametrize("part", [slice(None), slice(1, None)], ids=["whole", "part"])
def test_unlock_during_a_copy_takes_effect_when_it_completes(device: FakeMemoryDevice, size: int, part: slice) -> None:
    device.held = True
    with pinning.Queue(device) as queue, pinning.alloc(size, device=device) as there:
        array, back = noise(size)[part], numpy.zeros(size, numpy.uint8)[part]
        ends = there if len(array) == size else there.ptr
        with pinning.lock(array, device=device), pinning.lock(back, device=device):
            pinning.copy_async(ends, array, array.nbytes if ends is not there else None, queue=queue)
            copy = pinning.copy_async(back, ends, array.nbytes if ends is not there else None, queue=queue)
        assert len(device.locked) == 2
        run(device, copy.done)
        run(device, queue.poll)
        assert device.locked == {}
        assert (back == array).all()
        device.let_go()


def test_a_vendor_that_refuses_to_unlock_after_a_copy_keeps_that_lock_alone(device: FakeMemoryDevice) -> None:
    device.held = True
    array = numpy.zeros(4 * SIZE, numpy.uint8)
    with pinning.Queue(device) as queue, pinning.alloc(array.nbytes, device=device) as there:
        with pinning.lock(array[:SIZE], device=device), pinning.lock(array[2 * SIZE :], device=device):
            copy = pinning.copy_async(there, array, queue=queue)
        device.fail(VendorError("fakeUnregister", 1, "FAKE_REFUSED"))
        run(device, copy.done)
        run(device, queue.poll)
        assert len(device.locked) == 1
        (left,) = pinning.pinned_map(device)
        pinning.pinned_map(device).unlock(left.start)
        device.let_go()


def test_a_copy_waits_for_events(device: FakeMemoryDevice) -> None:
    device.held = True
    with pinning.Queue(device) as one, pinning.Queue(device) as other, pinning.alloc(100, device=device) as there:
        source, back = noise(100), numpy.zeros(100, numpy.uint8)
        filled = pinning.copy_async(there, source, queue=one)
        copy = pinning.copy_async(back, there, queue=other, wait_for=(filled,))
        device.release(queue=device.queues[1])
        assert not copy.done()
        run(device, copy.done)
        assert (back == source).all()
        device.let_go()


def test_a_large_copy_waits_for_what_an_iterator_gives(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    array = noise(64 * MIB)
    device.held = True
    other = pinning.Queue(device)
    device.queues[-1].mark(lambda: None)
    event = other.record()
    with pinning.alloc(array.size, device=device) as there, pinning.lock(array, device=device):
        copy = pinning.copy_async(there, array, queue=queue, wait_for=iter([event]))
        over = copy.done()
        run(device, copy.done)
        assert not over
        assert (bytes_of(there) == array).all()
    other.close()


# ---- fill and rows ----


@pytest.mark.parametrize(("value", "expected"), [(7, [7] * 12), (b"ab", list(b"ab" * 6)), (b"wxyz", list(b"wxyz" * 3))])
def test_fill(device: FakeMemoryDevice, queue: pinning.Queue, value: int | bytes, expected: list[int]) -> None:
    array = numpy.zeros(12, numpy.uint8)
    with pinning.alloc(12, device=device) as there:
        pinning.fill(there, value, queue=queue)
        assert list(bytes_of(there)) == expected
        if not isinstance(value, int):
            with pytest.raises(pinning.InvalidRangeError, match="multiple of the value"):
                pinning.fill(there.ptr + 1, value, 8, queue=queue)
    pinning.fill(array, value, queue=queue)
    assert list(array) == expected


def test_rows(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    array = noise(10 * 100).reshape(10, 100)
    with pinning.alloc(10 * 8, device=device) as there:
        # The sub-array's own bytes are scattered, so its address and pitch are given.
        corner, before = array[:, 20:28], moved()
        copy = pinning.copy_2d_async(there, 8, (corner.ctypes.data, 9 * 100 + 8), 100, 8, 10, queue=queue)
        copy.wait()
        assert (bytes_of(there).reshape(10, 8) == corner).all()
        assert moved() == {**before, copy.path: before[copy.path] + 80}


def test_the_order_of_elements_is_none_of_bytes(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    columns = noise((4, 5, 6)).T
    with pinning.alloc(columns.nbytes, device=device) as there:
        pinning.copy(there, columns, queue=queue)
        same, flat, other = numpy.zeros((4, 5, 6), "u1").T, bytearray(columns.nbytes), numpy.zeros((6, 5, 4), "u1")
        pinning.copy(same, there, queue=queue)
        assert (same == columns).all()
        pinning.copy(flat, columns, queue=queue)
        pinning.copy(other, columns, columns.nbytes, queue=queue)
        assert bytes(flat) == other.tobytes() == columns.T.tobytes()


# ---- refusals ----


def test_what_cannot_be_copied_is_refused_and_nothing_is_submitted(
    device: FakeMemoryDevice, queue: pinning.Queue
) -> None:
    there = pinning.alloc(100, device=device)
    calls = len(device.vendor_calls)
    array = noise(100)
    for dst, src, nbytes, says in [
        (there, noise(99), None, "dst has 100 bytes and src 99"),
        (there, noise(99), 100, "nbytes is 100; it must lie between 1 and 99"),
        (there, array, 0, "nbytes is 0"),
        (there, array, -1, "nbytes is -1"),
        (there, noise(200)[::2], None, "are not contiguous"),
        (there, array[::-1], None, "are not contiguous"),
        (numpy.zeros((5, 20), "u1"), array.reshape(20, 5).T, None, "elements in different orders"),
        (bytes(100), there, None, "read-only"),
        (there.ptr, array.ctypes.data, None, "give nbytes"),
        (there, 0, 10, "not an address"),
        (there, 2**64 - 4, 8, "past the top of the address space"),
        (2**64 - 4, there, 8, "past the top of the address space"),
        (there, numpy.zeros(0), None, "empty"),
    ]:
        with pytest.raises(InvalidRangeError, match=says):
            pinning.copy_async(dst, src, nbytes, queue=queue)
    with pytest.raises(InvalidRangeError, match="past the top of the address space"):
        pinning.copy_2d_async(there, 10, 2**64 - 40, 20, 10, 4, queue=queue)
    with pytest.raises(TypeError):
        pinning.copy_async(there, object(), queue=queue)
    assert [call for call in device.vendor_calls[calls:] if call.startswith("queue.")] == []
    there.free()
    with pytest.raises(InvalidRangeError, match="freed"):
        pinning.copy_async(there, array, queue=queue)


def test_every_call_of_a_staged_copy_failing(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    """The call or the event raises the error, the queue continues, and nothing leaks."""
    array = noise(SIZE)
    with pinning.alloc(SIZE, device=device) as there:
        for calls_before in range(200):
            device.fail_call(calls_before=calls_before)
            try:
                copy = pinning.copy_async(there, array, queue=queue)
                run(device, copy.done)
            except VendorError as error:
                assert error.name == "FAKE_FAILURE"
            failed = not device._call_failures
            device.fail_no_more()
            run(device, queue.poll)
            with suppress(VendorError):  # the call that failed may have been a query of the queue, for no event
                queue.synchronize()
            copy = pinning.copy_async(there, array, queue=queue)
            run(device, copy.done)
            assert (bytes_of(there) == array).all()
            bytes_of(there)[:] = 0
            run(device, queue.poll)
            if not failed:
                break
        else:
            pytest.fail("the calls do not end")
        assert calls_before > 3 * (SIZE // (512 * KIB))
    gc.collect()
    trim_staging()
    assert device.wrong == []


def test_work_that_fails_later_is_told_by_the_copy_and_the_queue_goes_on(
    device: FakeMemoryDevice, queue: pinning.Queue
) -> None:
    device.held = True
    with pinning.Queue(device) as queue, pinning.alloc(100, device=device) as there:
        array = noise(100)
        device.queues[-1].fail_step()
        bad = pinning.copy_async(there, array, queue=queue)
        good = pinning.copy_async(there, array, queue=queue)
        device.release()
        with pytest.raises(VendorError, match="FAKE_WORK_FAILED"):
            bad.wait()
        good.wait()
        assert (bytes_of(there) == array).all()
        device.let_go()

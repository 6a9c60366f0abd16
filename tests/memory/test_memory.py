# SPDX-License-Identifier: Apache-2.0
"""Allocations of every kind: their owners, how they are freed, lookups by address, fork and exit."""

from __future__ import annotations

import copy
import ctypes
import gc
import importlib.util
import mmap
import pickle
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import pinning
from child_process import run_in_child
from fake_device import LOCKED_OFFSET, Background, FakeDevice, in_threads
from fake_memory import FakeMemoryDevice, FakeQueue
from pinning import (
    Context,
    InvalidRangeError,
    MemoryKind,
    PartialOverlapError,
    PinningError,
    Queue,
    StillInUseError,
    StillLockedError,
    VendorError,
)
from pinning.conformance.faults import eventually
from pinning.memory import default_context, default_pool
from queue_work import program

HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED
kinds = pytest.mark.parametrize("kind", MemoryKind, ids=lambda kind: kind.value)


@pytest.fixture
def fakes() -> Iterator[list[FakeMemoryDevice]]:
    """Two devices of one plugin."""
    fakes = [FakeMemoryDevice("fake:0"), FakeMemoryDevice("fake:1")]
    yield fakes
    for fake in fakes:
        fake.let_go()
        fake.check()
        assert len(pinning.pinned_map(fake)) == 0


@pytest.fixture
def fake(fakes: list[FakeMemoryDevice]) -> FakeMemoryDevice:
    return fakes[0]


def write(ptr: int, data: bytes) -> None:
    ctypes.memmove(ptr, data, len(data))


# ---- what is allocated ----


@kinds
@pytest.mark.parametrize("size", [1, 255, 4097, 1 << 20])
def test_exactly_what_was_asked_for(fake: FakeMemoryDevice, kind: MemoryKind, size: int) -> None:
    for device in (fake, pinning.device("host")):
        with pinning.alloc(size, kind, device=device) as memory:
            assert (memory.size, memory.kind, memory.device, memory.pool) == (size, kind, device, None)
            assert memory.context is default_context(device)
            assert memory.ptr % 16 == 0
            write(memory.ptr, b"x" * size)
            info = (kind, memory.ptr, size, device, memory.context, None)
            assert [pinning.memory_info(memory.ptr + at) for at in (0, size // 2, size - 1)] == [info] * 3
            assert not memory.freed
        assert memory.freed
        assert pinning.memory_info(memory.ptr) is None
    assert fake.vendor_calls.count("allocate") == 1


def test_the_vendor_is_asked_for_no_byte_more(fake: FakeMemoryDevice) -> None:
    with pinning.alloc(129_500_001, device=fake):
        assert [size for size, _ in fake.allocated.values()] == [129_500_001]


@kinds
@pytest.mark.parametrize("alignment", [1, 16, 4096, 1 << 16])
def test_alignment(fake: FakeMemoryDevice, kind: MemoryKind, alignment: int) -> None:
    for device in (fake, pinning.device("host")):
        with pinning.alloc(100, kind, device=device, alignment=alignment) as memory:
            assert memory.ptr % alignment == 0
            assert memory.size == 100
            info = pinning.memory_info(memory.ptr + 99)
            assert info is not None
            assert (info.base, info.size) == (memory.ptr, 100)
            region = pinning.find(memory.ptr, 100, device=device)
            if kind is HOST:
                assert region is not None
                assert memory.device_ptr - region.device_ptr == memory.ptr - region.start
            assert device is not fake or len(fake.allocated) == 1


@pytest.mark.parametrize("alignment", [0, -16, 3, 48, 1 << 70])
def test_alignments_that_there_are_not(fake: FakeMemoryDevice, alignment: int) -> None:
    with pytest.raises(InvalidRangeError, match=r"alignment is|nbytes is"):
        pinning.alloc(10, device=fake, alignment=alignment)
    assert fake.vendor_calls == []


def test_a_size_that_is_no_number(fake: FakeMemoryDevice) -> None:
    with pytest.raises(TypeError):
        pinning.alloc(1.5, device=fake)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sideways"):
        pinning.alloc(1, "sideways", device=fake)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="write_combined is 'no'"):
        pinning.alloc(1, "host", device=fake, write_combined="no")  # type: ignore[arg-type]


def test_a_kind_that_the_device_has_not(fake: FakeMemoryDevice) -> None:
    fake.memory_kinds = frozenset({HOST, DEVICE})
    with pytest.raises(PinningError, match=r"fake:0 has no memory of kind SHARED; it has DEVICE, HOST"):
        pinning.alloc(10, SHARED, device=fake)
    assert fake.vendor_calls == []


def test_more_memory_than_there_is(fake: FakeMemoryDevice) -> None:
    fake.capacity = 100
    with pytest.raises(VendorError, match="OUT_OF_MEMORY"):
        pinning.alloc(101, device=fake)
    with pytest.raises(VendorError, match="ENOMEM"):
        pinning.alloc(1 << 50, device="host")
    with pinning.alloc(100, device=fake):
        pass


# ---- HOST memory ----


def test_host_memory_is_found_in_the_maps_of_all_devices(fakes: list[FakeMemoryDevice]) -> None:
    fakes[1].is_pinned_ptr = fakes[0].is_pinned_ptr  # type: ignore[method-assign]  # portable: both reach it
    with Context(fakes) as context, context.alloc(1000, HOST) as memory:
        for device in fakes:
            region = pinning.find(memory.ptr + 999, 1, device=device)
            assert region is not None
            assert (region.start, region.size, region.device_ptr) == (memory.ptr, 1000, memory.ptr + LOCKED_OFFSET)
            assert pinning.is_locked(np.asarray(memory), device=device)
            assert not pinning.is_locked(memory.ptr + 999, 2, device=device)
        assert memory.device_ptr == memory.ptr + LOCKED_OFFSET
        assert fakes[0].count("data_lock") == 0
    assert not any(pinning.is_locked(memory.ptr, 1, device=device) for device in fakes)


def test_host_memory_that_one_of_several_maps_refuses_is_in_none(
    fakes: list[FakeMemoryDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes[1], "is_pinned_ptr", fakes[0].is_pinned_ptr)
    first, second = (pinning.pinned_map(each) for each in fakes)
    allocate, bases = fakes[0].allocate, []

    def then_locked(size: int, kind: MemoryKind) -> int:
        bases.append(allocate(size, kind))
        second.lock(bases[0] + 10, 10)  # as another thread could
        return bases[0]

    monkeypatch.setattr(fakes[0], "allocate", then_locked)
    with Context(fakes) as context, pytest.raises(PartialOverlapError):
        context.alloc(1000, HOST)
    second.unlock(bases[0] + 10)
    assert (len(first), len(second)) == (0, 0)


def test_host_memory_that_one_device_of_the_context_cannot_reach(fakes: list[FakeMemoryDevice]) -> None:
    with Context(fakes) as context, pytest.raises(PinningError, match="fake:1 cannot reach the HOST memory"):
        context.alloc(10, HOST)


@pytest.mark.parametrize("kind", [HOST, SHARED], ids=lambda kind: kind.value)
def test_memory_of_the_host_is_a_buffer_of_bytes(fake: FakeMemoryDevice, kind: MemoryKind) -> None:
    for device in (fake, "host"):
        with pinning.alloc(100, kind, device=device) as memory:
            with memoryview(memory) as view:
                assert (view.nbytes, view.readonly, memory.nbytes) == (100, False, 100)
                view[:] = bytes(range(100))
                with pytest.raises(StillInUseError, match=r"1 exported buffer.*release them first"):
                    memory.free()
            assert np.asarray(memory).tolist() == np.from_dlpack(memory).tolist() == list(range(100))
            assert np.frombuffer(memory, np.uint16).nbytes == 100
            if importlib.util.find_spec("torch"):
                import torch

                assert torch.frombuffer(memory, dtype=torch.uint8).tolist() == list(range(100))
                assert torch.from_dlpack(memory).tolist() == list(range(100))
            gc.collect()
        for use in (memoryview, np.asarray, np.from_dlpack):
            with pytest.raises(InvalidRangeError, match="no longer has any bytes"):
                use(memory)
        with pinning.alloc(100, DEVICE, device=device) as memory:
            assert not hasattr(memory, "__array_interface__")
            for use in (memoryview, np.from_dlpack):
                with pytest.raises(BufferError, match="of kind DEVICE is not the host's"):
                    use(memory)


def test_an_array_keeps_its_memory(fake: FakeMemoryDevice) -> None:
    array = np.asarray(pinning.alloc(100, HOST, device=fake))
    gc.collect()
    assert len(fake.allocated) == 1
    array[:] = 7
    with pytest.warns(ResourceWarning, match="was dropped"):
        del array
        gc.collect()
    assert eventually(lambda: not fake.allocated)


# ---- freeing ----


def test_memory_is_not_freed_though_another_device_has_nothing_locked(fakes: list[FakeMemoryDevice]) -> None:
    empty = [pinning.pinned_map(each) for each in fakes]
    for fake in fakes:
        memory = pinning.alloc(4096, MemoryKind.DEVICE, device=fake)
        with pinning.lock((memory.ptr, 100), device=fake), pytest.raises(StillLockedError):
            memory.free()
        memory.free()
    assert [len(each) for each in empty] == [0, 0]


@kinds
def test_memory_of_any_kind_that_is_locked_is_not_freed(kind: MemoryKind) -> None:
    memory = pinning.alloc(1 << 16, kind, device="host")
    lock = pinning.lock((memory.ptr + 4096, 100), device="host")
    with pytest.raises(StillLockedError, match="unlock that first"):
        memory.free()
    assert (memory.freed, lock.held) == (False, True)
    write(memory.ptr, b"x" * memory.size)
    lock.unlock()
    memory.free()
    assert pinning.regions("host") == []


@kinds
@pytest.mark.parametrize("freed", [False, True], ids=["before the vendor", "after the vendor"])
def test_ctrl_c_in_the_vendors_free(fake: FakeMemoryDevice, kind: MemoryKind, freed: bool) -> None:
    """Nothing is freed twice, and nothing leaks."""
    memory = pinning.alloc(1000, kind, device=fake)
    release = fake.free

    def interrupted(ptr: int, kind: MemoryKind = DEVICE) -> None:
        fake.free = release  # type: ignore[method-assign]
        if freed:
            release(ptr, kind)
        raise KeyboardInterrupt

    fake.free = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        memory.free()
    assert memory.freed is freed
    assert pinning.is_locked((memory.ptr, 1000), device=fake) is (kind is HOST and not freed)
    assert (pinning.memory.allocation.find(memory.ptr) is memory) is not freed
    if not freed:
        memory.free()
    with pytest.raises(InvalidRangeError, match="cannot be freed again"):
        memory.free()
    default_context(fake).close()  # nothing is left in it
    del memory
    gc.collect()
    assert fake.vendor_calls.count("free") == 1


@pytest.mark.parametrize("user", ["an array", "a lock"])
def test_an_error_in_a_with_block_is_the_one_that_is_raised(fake: FakeMemoryDevice, user: str) -> None:
    with pytest.raises(ZeroDivisionError), pinning.alloc(100, HOST, device=fake) as memory:
        using = np.asarray(memory) if user == "an array" else pinning.lock(memory, device=fake)
        assert 1 // 0
    assert not memory.freed
    if isinstance(using, pinning.Lock):
        using.unlock()
    del using
    memory.free()


@pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning")
def test_what_is_dropped_is_freed_once_that_is_possible(fake: FakeMemoryDevice) -> None:
    memory = pinning.alloc(100, "host", device=fake)
    fake.fail_call()  # the vendor refuses to free it
    del memory
    assert eventually(lambda: not fake.allocated)
    memory = pinning.alloc(100, "host", device=fake)
    with pinning.lock((memory.ptr, 10), device=fake):
        del memory
        time.sleep(0.3)
        assert fake.allocated
    assert eventually(lambda: not fake.allocated)


def test_memory_is_free_once_an_event_after_its_last_use_is_over() -> None:
    target = np.zeros(4096, "u1")
    for _ in range(300):
        with Queue("host") as queue, Queue("host") as other, pinning.alloc(4096, device="host") as there:
            memory = pinning.alloc(4096, "host", device="host")
            used = pinning.copy_async(target, memory, queue=queue)
            after = pinning.copy_async(there, memory, queue=other, wait_for=[used])
            del used  # so that its own event is not asked
            after.wait()
            memory.free()


@kinds
def test_what_is_dropped_warns_and_is_freed(fake: FakeMemoryDevice, kind: MemoryKind) -> None:
    with pytest.warns(ResourceWarning, match=rf"<Allocation \[0x.*, 77 bytes, {kind.name} of fake:0> was dropped"):
        pinning.alloc(77, kind, device=fake)
        gc.collect()
    assert eventually(lambda: not fake.allocated)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pinning.alloc(77, kind, device=fake).free()
        gc.collect()


@kinds
def test_freeing_twice(fake: FakeMemoryDevice, kind: MemoryKind) -> None:
    memory = pinning.alloc(10, kind, device=fake)
    pinning.free(memory)
    for again in (memory.free, lambda: pinning.free(memory), lambda: pinning.free(memory.ptr)):
        with pytest.raises(InvalidRangeError, match=r"cannot be freed again|was it already freed"):
            again()
    assert fake.vendor_calls.count("free") == 1


def test_of_many_threads_that_free_one_succeeds(fake: FakeMemoryDevice) -> None:
    def free(memory: pinning.Allocation) -> bool:
        try:
            memory.free()
        except InvalidRangeError:
            return False
        return True

    for _ in range(50):
        memory = pinning.alloc(10, device=fake)
        assert sorted(in_threads(free, [memory] * 4)) == [False, False, False, True]


def test_freeing_by_address(fake: FakeMemoryDevice) -> None:
    memory = pinning.alloc(1000, device=fake)
    with pytest.raises(InvalidRangeError, match=r"lies within <Allocation .* 1000 bytes"):
        pinning.free(memory.ptr + 1)
    with pytest.raises(InvalidRangeError, match="not memory allocated here"):
        pinning.free(memory.ptr + 1000)
    for unknown in (0, 1, 1 << 47, -1):
        with pytest.raises(InvalidRangeError, match="not memory allocated here"):
            pinning.free(unknown)
    pinning.free(memory.ptr)
    assert memory.freed


def test_freeing_in_another_context(fake: FakeMemoryDevice) -> None:
    with Context(fake) as ours, Context(fake) as theirs:
        memory = ours.alloc(10)
        for wrong in (lambda: theirs.free(memory), lambda: pinning.free(memory.ptr, theirs)):
            with pytest.raises(InvalidRangeError, match="is not owned by <Context of fake:0>, but by another"):
                wrong()
        assert not memory.freed
        ours.free(memory)


def test_one_address_on_two_vendors_devices(fake: FakeMemoryDevice) -> None:
    other = FakeMemoryDevice("other:0")
    with Context(fake) as ours, Context(other) as theirs:
        mine = ours.alloc(100)
        other.allocate = lambda size, kind=DEVICE: mine.ptr  # type: ignore[method-assign]
        other.free = lambda ptr, kind=DEVICE: None  # type: ignore[method-assign]
        its = theirs.alloc(50)
        assert its.ptr == mine.ptr
        pinning.free(its.ptr, theirs)
        assert (its.freed, mine.freed) == (True, False)
        mine.free()


@kinds
def test_every_vendor_call_may_fail_at_every_point(fake: FakeMemoryDevice, kind: MemoryKind) -> None:
    """A failure leaves nothing allocated, or the memory as it was; and the next attempt succeeds."""
    ask, calls = fake.is_pinned_ptr, {"is_pinned_ptr": 0}

    def is_pinned_ptr(ptr: int) -> pinning.PinnedInfo | None:
        calls["is_pinned_ptr"] -= 1
        if calls["is_pinned_ptr"] == 0:
            raise VendorError("fakeAsk", 6, "FAKE")
        return ask(ptr)

    fake.is_pinned_ptr = is_pinned_ptr  # type: ignore[method-assign]
    failures = 0
    for point in range(6):
        if point < 2:
            fake.fail_call(calls_before=point)
        calls["is_pinned_ptr"] = point - 1
        try:
            memory = pinning.alloc(100, kind, device=fake)
        except VendorError:
            failures += 1
            assert fake.allocated == {}
            assert len(pinning.pinned_map(fake)) == 0
            continue
        fake.fail_no_more()
        fake.fail_call()
        with pytest.raises(VendorError, match="FAKE_FAILURE"):
            memory.free()
        assert not memory.freed
        assert pinning.memory_info(memory.ptr + 99) is not None
        assert pinning.is_locked(memory.ptr, 100, device=fake) == (kind is HOST)
        memory.free()
    assert failures == (3 if kind is HOST else 1), "of allocate; and of is_pinned_ptr for the map and the allocation"


def test_memory_that_someone_freed_behind_our_back(fake: FakeMemoryDevice) -> None:
    """The vendor then allocates the same address again, which cannot be entered twice."""
    memory = pinning.alloc(4096, device=fake)
    base = memory.ptr
    allocate, fake.allocate = fake.allocate, lambda size, kind=DEVICE: base  # type: ignore[method-assign,misc]
    release, fake.free = fake.free, lambda ptr, kind=DEVICE: None  # type: ignore[method-assign]
    with pytest.raises(PinningError, match="it was freed through the vendor"):
        pinning.alloc(4096, device=fake)
    fake.allocate, fake.free = allocate, release  # type: ignore[method-assign]
    with pytest.raises(InvalidRangeError, match="it was freed through the vendor"):
        memory.free()
    gone = weakref.ref(memory)
    with pytest.warns(ResourceWarning, match="was dropped"):
        del memory
    assert eventually(lambda: gone() is None)  # until then it is found at its address, which others may get now
    fake.free(base)


def test_two_devices_may_have_memory_at_the_same_address(fake: FakeMemoryDevice) -> None:
    other = FakeMemoryDevice("fake:1", held=False)
    memory = pinning.alloc(4096, device=fake)
    other.allocate, other.free = lambda size, kind=DEVICE: memory.ptr, lambda ptr, kind=DEVICE: None  # type: ignore
    theirs = pinning.alloc(4096, device=other)
    theirs.free()
    info = pinning.memory_info(memory.ptr)
    assert info == pinning.memory_info(memory)
    assert info is not None and info.device is fake
    memory.free()
    assert pinning.memory_info(theirs.ptr) is None


def test_memory_in_use_by_a_queue(fake: FakeMemoryDevice) -> None:
    target = np.zeros(100, np.uint8)
    with pinning.Queue(fake) as queue, pinning.alloc(100, device=fake) as memory:
        copy = pinning.copy_async(target, memory, queue=queue)
        assert not copy.done()
        with pytest.raises(StillInUseError, match="in use by work of a queue"):
            memory.free()
        assert not memory.freed
        fake.let_go()
        copy.wait()


USES: list[Callable[[pinning.Allocation, pinning.Queue], pinning.Event]] = [
    lambda memory, queue: pinning.copy_async(memory, np.zeros(memory.size, "u1"), queue=queue),
    lambda memory, queue: pinning.copy_async(np.zeros(100, "u1"), memory.ptr + 1, 100, queue=queue),
    lambda memory, queue: pinning.fill_async(memory, 7, queue=queue),
    lambda memory, queue: pinning.copy_2d_async(memory, 50, np.zeros(100, "u1"), 10, 10, 10, queue=queue),
    lambda memory, queue: pinning.copy_batch_async([memory], [np.zeros(memory.size, "u1")], queue=queue),
    lambda memory, queue: queue.submit(lambda vendor: vendor.fill(memory.ptr, b"7", 1), (), [memory]),
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("pooled", [False, True], ids=["alloc", "pool"])
def test_memory_is_not_freed_while_a_call_submits_work_with_it(
    fake: FakeMemoryDevice, monkeypatch: pytest.MonkeyPatch, pooled: bool, use: Callable[..., pinning.Event]
) -> None:
    """As another thread could, during the vendor's call."""
    refused, attend = [], fake.attend

    def free_first(method: str) -> None:
        if method in ("queue.copy", "queue.copy_2d", "queue.fill"):
            with pytest.raises(StillInUseError, match="another thread is submitting"):
                queue.free(memory) if pooled else memory.free()
            refused.append(method)
        attend(method)

    with pinning.Pool(fake) as pool, pinning.Queue(fake) as queue:
        memory = queue.alloc(4096, pool=pool)[0] if pooled else pinning.alloc(4096, device=fake)
        monkeypatch.setattr(fake, "attend", free_first)
        done = use(memory, queue)
        monkeypatch.undo()
        assert refused
        fake.let_go()
        done.wait()
        memory.free()


def test_memory_that_is_freed_before_the_submission_is_refused(
    fake: FakeMemoryDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another thread could, while the vendor is asked where the other end is."""
    memory, is_pinned_ptr = pinning.alloc(100, device=fake), fake.is_pinned_ptr

    def free_first(ptr: int) -> pinning.plugin.PinnedInfo | None:
        if not memory.freed:
            memory.free()
        return is_pinned_ptr(ptr)

    monkeypatch.setattr(pinning.copies.costs, "stage_to_device", 1)
    monkeypatch.setattr(fake, "is_pinned_ptr", free_first)
    with pinning.Queue(fake) as queue:
        with pytest.raises(InvalidRangeError, match="freed"):
            pinning.copy_async(memory, np.zeros(100, "u1"), queue=queue)
        assert memory.freed and not fake.queues[0].steps


@pytest.mark.parametrize("kind", [MemoryKind.DEVICE, MemoryKind.HOST])
@pytest.mark.parametrize("pooled", [False, True], ids=["alloc", "pool"])
def test_memory_in_use_by_its_address(pooled: bool, kind: MemoryKind) -> None:
    """A queue keeps the allocation in which an address lies."""
    data, go_on = np.arange(100, dtype=np.uint8), threading.Event()
    uses: list[Callable[[pinning.Allocation, pinning.Queue], pinning.Event]] = [
        lambda memory, queue: pinning.fill_async(memory, 7, queue=queue),
        lambda memory, queue: pinning.copy_async(memory.ptr + 100, data, 100, queue=queue),
        lambda memory, queue: pinning.copy_async(data, memory.ptr + 1, 100, queue=queue),
        lambda memory, queue: pinning.fill_async(memory.ptr, 7, 1000, queue=queue),
        lambda memory, queue: pinning.copy_2d_async(memory.ptr, 50, data, 10, 10, 10, queue=queue),
    ]
    with pinning.Queue("host") as queue, pinning.Queue("host") as other, pinning.Pool("host", kind=kind) as pool:
        for use in uses:
            memory = other.alloc(4096, pool=pool)[0] if pooled else pinning.alloc(4096, kind, device="host")
            go_on.clear()
            queue.call(go_on.wait)
            done = use(memory, queue)
            with pytest.raises(StillInUseError, match="in use by work of a queue"):
                memory.free()
            ptr = memory.ptr
            del memory
            gc.collect()
            assert pinning.memory_info(ptr) is not None, "what is dropped stays until the work is over"
            go_on.set()
            done.wait()
            queue.poll()
            known = pinning.memory.allocation.find(ptr)
            if known is not None:
                known.free()


def test_a_lost_device(fake: FakeMemoryDevice) -> None:
    memory = pinning.alloc(100, HOST, device=fake)
    fake.lose()
    for call in (memory.free, lambda: pinning.alloc(1, device=fake)):
        with pytest.raises(VendorError, match="DEVICE_LOST"):
            call()
    assert not memory.freed
    assert pinning.is_locked(memory, device=fake)
    fake.lost = False
    memory.free()


# ---- contexts ----


def test_a_context_has_devices_of_one_plugin_once_each(fakes: list[FakeMemoryDevice]) -> None:
    for devices, why in [
        ([], "needs a device"),
        ([fakes[0], "host"], "of one plugin, not of several: fake:0, host:0"),
        ([fakes[0], fakes[0]], "each device once: fake:0, fake:0"),
        (FakeDevice("locks:0"), "locks:0 can lock memory but not allocate it"),
    ]:
        with pytest.raises(PinningError, match=why):
            Context(devices)
    with pytest.raises(pinning.ArgumentError, match="nowhere"):
        Context("nowhere:0")
    assert Context("host").devices == Context(["host:0"]).devices == (pinning.device("host"),)


def test_where_in_a_context(fakes: list[FakeMemoryDevice]) -> None:
    with Context(fakes) as context:
        for device, found in [(None, fakes[0]), (fakes[1], fakes[1]), ("fake:1", fakes[1]), ("fake", fakes[0])]:
            with pinning.alloc(10, context=context, device=device) as memory:
                assert memory.device is found
        for foreign in (FakeMemoryDevice("fake:0"), "fake:2", "host"):
            with pytest.raises(PinningError, match="is not in <Context of fake:0, fake:1>"):
                pinning.alloc(10, context=context, device=foreign)


def test_a_context_that_still_owns_memory(fake: FakeMemoryDevice) -> None:
    context = Context(fake)
    first, second = context.alloc(10), context.alloc(20, SHARED)
    with pytest.raises(StillInUseError, match=r"still owns 10 bytes of DEVICE at 0x.* and 1 more"):
        context.close()
    assert not context.closed
    first.free()
    second.free()
    context.close()
    context.close()
    assert context.closed
    with pytest.raises(PinningError, match="closed"):
        context.alloc(10)
    assert fake.allocated == {}


def test_a_context_is_not_closed_while_another_thread_allocates(fake: FakeMemoryDevice) -> None:
    context, asked, go_on = Context(fake), threading.Event(), threading.Event()
    allocate = fake.allocate

    def slow(size: int, kind: MemoryKind = DEVICE) -> int:
        asked.set()
        go_on.wait()
        return allocate(size, kind)

    fake.allocate = slow  # type: ignore[method-assign]
    made: list[pinning.Allocation] = []
    thread = Background(lambda: made.append(context.alloc(10)))
    asked.wait()
    with pytest.raises(StillInUseError, match="another thread is allocating"):
        context.close()
    go_on.set()
    thread.result()
    made.pop().free()
    context.close()


def test_the_default_context(fake: FakeMemoryDevice) -> None:
    assert default_context(fake) is default_context(fake)
    assert default_context("host") is default_context(pinning.device("host"))
    with pinning.alloc(1) as memory:
        assert memory.device is pinning.default_device()


# ---- what an address is ----


def test_ordinary_memory_and_no_memory_at_all() -> None:
    array = np.zeros(10)
    for address in (array.ctypes.data, 0, 1, (1 << 64) - 1, 1 << 64, -1):
        assert pinning.memory_info(address) is None
    with pytest.raises(TypeError):
        pinning.memory_info("here")  # type: ignore[arg-type]
    freed = pinning.alloc(8, device="host")
    freed.free()
    with pytest.raises(InvalidRangeError, match="may be another allocation's"):
        pinning.memory_info(freed)


def test_a_default_context_or_pool_that_is_closed_is_made_anew(fake: FakeMemoryDevice) -> None:
    pool = default_pool(fake, HOST)
    with pool, pinning.Queue(fake) as queue:
        queue.free(queue.alloc(8, HOST)[0])
    with pinning.Queue(fake) as queue:
        memory, _ = queue.alloc(8, HOST)
        assert memory.pool is default_pool(fake, HOST) is not pool
        queue.free(memory)
    default_pool(fake, HOST).close()
    default_context(fake).close()
    with pinning.alloc(8, HOST, device=fake) as anew:
        assert anew.context is default_context(fake) is not pool.context


def test_memory_that_others_locked_is_theirs() -> None:
    buffer = mmap.mmap(-1, 1 << 16)
    array = np.frombuffer(buffer, np.uint8)
    with pinning.lock(array[100:900], device="host"):
        info = pinning.memory_info(array.ctypes.data + 500)
        assert info == (HOST, array.ctypes.data + 100, 800, None, None, None)
        assert pinning.memory_info(array.ctypes.data + 99) is None


def test_memory_that_others_allocated_is_theirs() -> None:
    theirs = FakeMemoryDevice("theirs:0")
    with pinning.alloc(1, device=theirs):  # now the plugin is known
        ptr = theirs.allocate(50, DEVICE)
        assert pinning.memory_info(ptr + 49) == (DEVICE, ptr, 50, theirs, None, None)
        assert pinning.memory_info(ptr + 50) is None
        theirs.free(ptr, DEVICE)
    theirs.check()


# ---- threads, fork, exit ----


def test_many_threads_allocate_and_free(fakes: list[FakeMemoryDevice]) -> None:
    with Context(fakes) as context:

        def churn(seed: int) -> None:
            random = np.random.default_rng(seed)
            held: list[pinning.Allocation] = []
            for _ in range(150):
                if len(held) < 5:
                    kind = (DEVICE, SHARED)[int(random.integers(2))]
                    device = fakes[int(random.integers(2))]
                    held.append(context.alloc(int(random.integers(1, 5000)), kind, device=device))
                else:
                    memory = held.pop(int(random.integers(5)))
                    info = pinning.memory_info(memory.ptr + memory.size - 1)
                    assert info is not None
                    assert (info.base, info.context) == (memory.ptr, context)
                    memory.free()
            for memory in held:
                memory.free()

        in_threads(churn, range(4))


def test_freeing_while_other_threads_make_queues(fake: FakeMemoryDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pinning.alloc(10, device=fake)
    with ExitStack() as stack:
        for _ in range(3):
            pinning.fill_async(memory, 0, queue=stack.enter_context(pinning.Queue(fake)))
        made: list[pinning.Queue] = []

        def asked(queue: FakeQueue) -> bool:
            """Make a queue while the vendor is queried, as another thread might."""
            made.append(stack.enter_context(pinning.Queue(fake)))
            return done(queue)

        done = FakeQueue.done
        monkeypatch.setattr(FakeQueue, "done", asked)
        with pytest.raises(StillInUseError, match="in use by work of a queue"):
            memory.free()
        monkeypatch.undo()
        fake.let_go()
        assert made
    memory.free()


@kinds
def test_the_child_of_a_fork_owns_nothing(fake: FakeMemoryDevice, kind: MemoryKind) -> None:
    context = Context(fake)
    memory = context.alloc(100, kind)
    ours = pinning.alloc(100, kind, device="host")

    def child() -> None:
        calls = len(fake.vendor_calls)
        for each in (memory, ours):
            assert each.freed
            each.free()
            with pytest.raises(InvalidRangeError, match="no longer has any bytes to copy or fill"):
                pinning.copy(each, bytes(100))
            with pinning.Queue("host") as queue, pytest.raises(InvalidRangeError, match="no longer"):
                pinning.copy_async(each, bytes(100), queue=queue)
            with pytest.raises(InvalidRangeError):
                pinning.free(each.ptr)
        context.close()
        assert len(fake.vendor_calls) == calls
        with pinning.alloc(100, kind, device="host") as own:
            assert pinning.memory_info(own.ptr) is not None

    run_in_child(child)
    assert not memory.freed
    memory.free()
    ours.free()
    context.close()


def dropped_in_a_child(fake: FakeMemoryDevice, drop: Callable[[], object]) -> None:
    def child() -> None:
        warnings.simplefilter("error")
        calls = len(fake.vendor_calls)
        drop()
        gc.collect()
        assert len(fake.vendor_calls) == calls

    run_in_child(child)


def test_the_child_drops_its_parents_memory_in_silence(fake: FakeMemoryDevice) -> None:
    memories = [pinning.alloc(100, HOST, device=fake)]
    dropped_in_a_child(fake, memories.clear)
    memories.pop().free()


@kinds
def test_exit_with_memory_left(kind: MemoryKind) -> None:
    done = program(f"""
        memory = pinning.alloc(1 << 12, pinning.MemoryKind.{kind.name}, device="host")
        queue = Queue("host")
        other, event = queue.alloc(1 << 12, pinning.MemoryKind.{kind.name})
        print(memory.size + other.size)
        pool = pinning.Pool(memory.context)
        queue.free(pool.alloc(queue, 1)[0])
        modules = [sys.modules[name] for name in ("pinning.memory.allocation", "pinning.memory.pool")]
        threading.kept = memory, other, pool, modules  # goes when these modules' names are gone
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{1 << 13}\n", "")


# ---- devices that a program makes ----


def used(device: FakeMemoryDevice) -> None:
    """Use everything that the package makes for a device on demand."""
    pinning.lock(bytearray(10), device=device).unlock()
    with pinning.Queue(device) as queue:
        for kind in device.memory_kinds:
            memory, _ = queue.alloc(100, kind)
            queue.free(memory)
    with pinning.alloc(100, device=device) as there, pinning.alloc(100, device=device) as other:
        pinning.copy(there, bytearray(100))
        pinning.copy(there, other)
        pinning.copy_batch([there], [bytearray(100)])
    pinning.arrays.to_device(np.arange(10.0), device=device).copy_to_host()
    pinning.arrays.synchronize(device)


@pytest.mark.filterwarnings("error")
def test_a_device_that_was_used_goes_when_nobody_has_it() -> None:
    device = FakeMemoryDevice(held=False)
    used(device)
    gone = weakref.ref(device)
    del device
    assert eventually(lambda: (gc.collect(), gone() is None)[1])


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda device: pickle.loads(pickle.dumps(device))],
    ids=["copy", "deep", "pickle"],
)
def test_a_copy_of_a_device_has_a_map_of_its_own(copied: Callable[[Any], Any]) -> None:
    device = FakeDevice()
    on = pinning.pinned_map(device)
    on.lock(0x1000, 10)
    other = copied(device)
    assert pinning.pinned_map(device) is on
    assert pinning.pinned_map(other) is not on
    assert list(pinning.pinned_map(other)) == []
    on.unlock(0x1000)


@pytest.mark.parametrize("kind", ["device", "host"])
def test_a_context_closes_after_a_refused_allocation(kind: str) -> None:
    device = FakeMemoryDevice()
    context = Context(device)
    device.fail_call()
    with pytest.raises(VendorError):
        context.alloc(4096, kind)
    context.close()

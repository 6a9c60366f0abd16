# SPDX-License-Identifier: Apache-2.0
"""Pools: which request reuses a freed block, and when; limits, figures, and the state after failures.

That no byte is given out before the frees that it should come after, and all are that may be: the random machine beside
this.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import traceback
from collections.abc import Iterator
from typing import cast

import numpy as np
import pytest

import pinning
from child_process import run_in_child
from fake_device import LOCKED_OFFSET, WAIT, Background, in_threads
from fake_memory import FakeMemoryDevice, FakeQueue, held_device
from pinning import (
    ArgumentError,
    Context,
    Event,
    InvalidRangeError,
    MemoryKind,
    PinningError,
    Pool,
    PoolLimitError,
    Queue,
    StillInUseError,
    StillLockedError,
    VendorError,
)
from pinning.conformance.faults import eventually
from pinning.memory import default_pool
from pinning.plugin import PinnedInfo
from queue_work import program

HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED
KIB = 1024
kinds = pytest.mark.parametrize("kind", MemoryKind, ids=lambda kind: kind.value)


@pytest.fixture
def device() -> Iterator[FakeMemoryDevice]:
    """A device whose queues hold their work until it is released."""
    with held_device() as device:
        yield device
    assert len(pinning.pinned_map(device)) == 0


@pytest.fixture
def context(device: FakeMemoryDevice) -> Iterator[Context]:
    with Context(device) as context:
        yield context


@pytest.fixture
def pool(context: Context) -> Iterator[Pool]:
    with Pool(context) as pool:
        yield pool
        context.devices[0].let_go()  # type: ignore[attr-defined]
        assert pool.used == 0


def alloc(queue: Queue, pool: Pool, nbytes: int = KIB, wait_for: tuple[Event, ...] = ()) -> pinning.Allocation:
    allocation, event = queue.alloc(nbytes, pool=pool, wait_for=wait_for)
    assert event.error is None
    return allocation


def contents(allocation: pinning.Allocation) -> bytes:
    return ctypes.string_at(allocation.ptr, allocation.size)


# ---- reuse of freed blocks ----


def test_the_same_in_order_queue_reuses_at_once_and_needs_no_event(device: FakeMemoryDevice, pool: Pool) -> None:
    with Queue(device) as queue:
        queue.submit(lambda vendor: vendor.mark(lambda: None))  # type: ignore[attr-defined]
        first = alloc(queue, pool)
        ptr = first.ptr
        queue.free(first)
        for _ in range(100):
            again = alloc(queue, pool)
            assert again.ptr == ptr
            queue.free(again)
        assert (device.events_made, pool.reserved) == (0, KIB)
        assert [step.method for step in device.queues[0].pending()] == ["mark"], "the vendor has heard of nothing"
        again, usable = queue.alloc(KIB, pool=pool)
        queue.free(again)
        assert not usable.done()
        device.release()
        assert usable.done()


def test_events_that_somebody_holds_are_made_and_others_are_not(device: FakeMemoryDevice, pool: Pool) -> None:
    with Queue(device) as queue:
        for _ in range(10):
            memory = alloc(queue, pool)
            queue.submit(lambda vendor: vendor.mark(lambda: None))  # type: ignore[attr-defined]
            queue.free(memory)
        assert device.events_made == 0
        memory = alloc(queue, pool)
        queue.submit(lambda vendor: vendor.mark(lambda: None))  # type: ignore[attr-defined]
        freed = queue.free(memory)
        assert device.events_made == 0
        assert not freed.done()
        assert device.events_made == 1
        device.release()
        assert freed.done()


# ---- splitting and merging ----


def test_what_is_left_of_a_block_waits_for_its_free(device: FakeMemoryDevice, pool: Pool) -> None:
    with Queue(device) as one, Queue(device) as other:
        whole = alloc(one, pool, 2 * KIB)
        base = whole.ptr
        one.submit(lambda vendor: vendor.fill(base, b"\1", 2 * KIB), (), (whole,))
        one.free(whole)
        part = alloc(one, pool)
        assert part.ptr == base
        early = alloc(other, pool)
        assert early.ptr != base + KIB
        device.release()
        rest = alloc(other, pool)
        assert rest.ptr == base + KIB
        for allocation in (part, early, rest):
            other.free(allocation)


def test_neighbours_freed_in_different_queues_merge_for_whoever_waits_for_both(
    device: FakeMemoryDevice, pool: Pool
) -> None:
    with Queue(device) as one, Queue(device) as other, Queue(device) as third:
        whole = alloc(one, pool, 2 * KIB)
        base = whole.ptr
        one.free(whole)
        left, right = alloc(one, pool), alloc(one, pool)
        work = other.submit(lambda vendor: vendor.mark(lambda: None))  # type: ignore[attr-defined]
        one.submit(lambda vendor: vendor.mark(lambda: None))  # type: ignore[attr-defined]
        first, second = one.free(left), other.free(right, [work])
        alone = alloc(one, pool, 2 * KIB)
        assert alone.ptr != base
        joined = alloc(one, pool, 2 * KIB - 256, (second,))
        assert joined.ptr == base
        assert first is not None
        early = alloc(third, pool, 256, (first,))  # the rest is of the second
        rest = alloc(third, pool, 256, (second,))
        assert (early.ptr != rest.ptr, rest.ptr) == (True, base + 2 * KIB - 256)
        device.let_go()
        for allocation in (alone, joined, early, rest):
            one.free(allocation)


def test_joined_neighbours_wait_for_the_frees_of_all_of_them(device: FakeMemoryDevice, pool: Pool) -> None:
    """Freed again in a queue that is ordered after neither free, the joined block still waits for both."""
    queues = [Queue(device) for _ in range(4)]
    one, other, fourth, fifth = queues
    with Queue(device, "out_of_order") as third:
        whole = alloc(one, pool, 2 * KIB)
        base = whole.ptr
        one.free(whole)
        left, right = alloc(one, pool), alloc(one, pool)
        for queue in (one, other):
            queue.submit(lambda vendor: vendor.mark(lambda: None))  # type: ignore[attr-defined]
        first, second = one.free(left), other.free(right, [one.record()])
        second_alone = other.submit(lambda vendor: vendor.mark(lambda: None))  # type: ignore[attr-defined]
        joined = alloc(third, pool, 2 * KIB, (first, second))
        assert joined.ptr == base
        freed = third.free(joined)
        held = [alloc(fourth, pool, 2 * KIB, (freed,)), alloc(fourth, pool, 2 * KIB, (freed, first))]
        assert base not in [each.ptr for each in held]
        again = alloc(fifth, pool, 2 * KIB, (freed, second_alone))
        assert again.ptr == base
        device.let_go()
        for each in (*held, again):
            fifth.free(each)
    for queue in queues:
        queue.close()


def test_nothing_is_rounded_but_to_256_bytes(device: FakeMemoryDevice, pool: Pool) -> None:
    with Queue(device) as queue:
        memory = alloc(queue, pool, 129_500_001)
        assert memory.size == 129_500_001
        assert [size for size, _ in device.allocated.values()] == [129_500_160]
        queue.free(memory)


# ---- limits and figures ----


def test_over_the_maximum(device: FakeMemoryDevice, context: Context) -> None:
    with Queue(device) as queue, Pool(context, maximum_size=4 * KIB) as pool:
        first = alloc(queue, pool, 3 * KIB)
        refused, event = queue.alloc(2 * KIB, pool=pool)
        why = r"2048 bytes more would take <Pool of DEVICE .* over its maximum of 4096; it has reserved 3072"
        assert isinstance(event.error, PoolLimitError)
        for use in (
            event.wait,
            event.done,
            lambda: refused.ptr,
            lambda: refused.device_ptr,
            queue_free_wait(queue, refused),
        ):
            with pytest.raises(PoolLimitError, match=why):
                use()
        with pytest.raises(MemoryError):
            refused.free()
        assert (refused.size, refused.freed, pool.used, pool.used_high) == (2 * KIB, True, 3 * KIB, 3 * KIB)
        assert "refused" in repr(refused)
        dependent = queue.submit(lambda vendor: vendor.mark(lambda: None), [event])  # type: ignore[attr-defined]
        device.let_go()
        with pytest.raises(PoolLimitError):
            dependent.wait()
        queue.free(first)
        with_room = alloc(queue, pool, 4 * KIB)
        assert pool.reserved == 4 * KIB, "what was free went back to make room"
        queue.free(with_room)
        with refused:
            pass


def test_two_threads_stay_below_the_maximum(
    device: FakeMemoryDevice, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second allocates while the vendor allocates for the first."""

    def allocate(size: int, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        monkeypatch.undo()
        events.append(other.alloc(2 * KIB, pool=pool)[1])
        return device.allocate(size, kind)

    events: list[Event] = []
    with Queue(device) as queue, Queue(device) as other, Pool(context, maximum_size=4 * KIB) as pool:
        monkeypatch.setattr(device, "allocate", allocate)
        first = alloc(queue, pool, 3 * KIB)
        assert isinstance(events[0].error, PoolLimitError)
        assert pool.reserved == 3 * KIB
        queue.free(first)
        device.let_go()


def test_new_memory_without_a_device_address_goes_back(
    device: FakeMemoryDevice, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendor is asked for it twice: for the map, and for the pool's block."""
    ask = device.is_pinned_ptr
    answers = 0

    def refuse(ptr: int) -> PinnedInfo | None:
        nonlocal answers
        if answers == 0:
            raise VendorError("fakeAddress", 1, "FAKE_FAILURE")
        answers -= 1
        return ask(ptr)

    with Queue(device) as queue, Pool(context, HOST) as pool:
        for before in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(device, "is_pinned_ptr", refuse)
                answers = before
                with pytest.raises(VendorError, match="FAKE_FAILURE"):
                    queue.alloc(KIB, pool=pool)
            assert (device.allocated, pool.reserved, pool.used) == ({}, 0, 0)
        queue.free(alloc(queue, pool))
        device.let_go()


def queue_free_wait(queue: Queue, refused: pinning.Allocation):  # type: ignore[no-untyped-def]
    return lambda: queue.free(refused).wait()


def test_what_could_never_fit_costs_nothing(device: FakeMemoryDevice, context: Context) -> None:
    with Queue(device) as queue, Pool(context, maximum_size=4 * KIB) as pool:
        queue.free(alloc(queue, pool, KIB))
        _, event = queue.alloc(5 * KIB, pool=pool)
        assert isinstance(event.error, PoolLimitError)
        assert pool.reserved == KIB, "what it has in store is still there"


def test_a_device_that_is_full_is_given_back_what_is_free(device: FakeMemoryDevice, pool: Pool) -> None:
    device.capacity = 4 * KIB
    with Queue(device) as queue:
        queue.free(alloc(queue, pool, 3 * KIB))
        large = alloc(queue, pool, 4 * KIB)
        with pytest.raises(VendorError, match="OUT_OF_MEMORY"):
            queue.alloc(1, pool=pool)
        assert pool.used == 4 * KIB
        queue.free(large)


def test_options_that_are_none(context: Context) -> None:
    for option in ("zero_initialize", "read_only"):
        with pytest.raises(TypeError, match=f"{option} is 'no'; it must be True or False"):
            Pool(context, **{option: "no"})  # type: ignore[arg-type]


def test_limits_that_are_none(context: Context) -> None:
    for limits in ({"maximum_size": -1}, {"release_threshold": -1}):
        with pytest.raises(InvalidRangeError, match="is -1; it must lie between 0"):
            Pool(context, **limits)  # type: ignore[arg-type]
    with Pool(context) as pool, pytest.raises(InvalidRangeError, match="is -1; it must lie between 0"):
        pool.trim_to(-1)
    with pytest.raises(TypeError):
        Pool(context, maximum_size=1.5)  # type: ignore[arg-type]


def test_what_pending_work_may_use_is_not_given_back(device: FakeMemoryDevice, pool: Pool) -> None:
    with Queue(device) as queue:
        memory = alloc(queue, pool)
        queue.submit(lambda vendor: vendor.fill(memory.ptr, b"\1", KIB), (), (memory,))
        queue.free(memory)
        pool.trim_to(0)
        assert pool.reserved == KIB and len(device.allocated) == 1
        device.let_go()
        queue.synchronize()
        pool.trim_to(0)
        assert pool.reserved == 0 and device.allocated == {}


def test_trimming_gives_back_what_is_not_locked(device: FakeMemoryDevice, context: Context) -> None:
    with Queue(device) as queue, Pool(context, HOST) as pool:
        parts = [alloc(queue, pool, size * KIB) for size in (4, 2, 1)]
        ptr = parts[0].ptr
        for part in parts:
            queue.free(part)
        with pinning.lock((ptr, 10), device=device):
            with pytest.raises(StillLockedError):
                pool.trim_to(0)
            assert pool.reserved == 4 * KIB
        pool.trim_to(0)
        assert pool.reserved == 0


def test_a_pool_is_not_closed_while_a_thread_allocates(
    device: FakeMemoryDevice, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered, allocate = threading.Event(), threading.Event(), device.allocate

    def slow(size: int, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        asked.set()
        answered.wait(WAIT)
        return allocate(size, kind)

    pool = Pool(context)
    monkeypatch.setattr(device, "allocate", slow)
    with Queue(device) as queue:
        allocating = Background(lambda: alloc(queue, pool))
        asked.wait(WAIT)
        try:
            with pytest.raises(StillInUseError):
                pool.close()
        finally:
            answered.set()
        cast(pinning.Allocation, allocating.result()).free()
        pool.close()
    with pytest.raises(PinningError, match="closed"), pool:
        pass


@kinds
def test_memory_of_any_kind_in_which_someone_holds_a_lock_stays(kind: MemoryKind) -> None:
    with Context("host") as context, Queue("host") as queue, Pool(context, kind) as pool:
        memory = alloc(queue, pool, 1 << 16)
        lock = pinning.lock((memory.ptr, memory.size), device="host")
        for free in (memory.free, lambda: queue.free(memory)):
            with pytest.raises(StillLockedError, match="unlock that first"):
                free()
        assert (memory.freed, pool.used) == (False, 1 << 16)
        lock.unlock()
        queue.free(memory).wait()
        with pinning.lock((memory.ptr, 10), device="host"):
            for give_back in (lambda: pool.trim_to(0), pool.close):
                with pytest.raises(StillLockedError, match="unlock that first"):
                    give_back()
            assert pinning.is_locked((memory.ptr, 10), device="host")
        pool.close()
    assert pinning.regions("host") == []


def test_memory_of_which_a_buffer_is_out_is_not_freed(device: FakeMemoryDevice, context: Context) -> None:
    with Queue(device) as queue, Pool(context, HOST) as pool:
        memory = alloc(queue, pool)
        view = np.asarray(memory)
        for free in (memory.free, lambda: queue.free(memory)):
            with pytest.raises(StillInUseError, match="1 exported buffer"):
                free()
        assert (memory.freed, pool.used) == (False, KIB)
        view[:] = 3
        del view
        queue.free(memory)


# ---- what is in the memory ----


@kinds
def test_zeroes_come_in_the_order_of_the_queue(device: FakeMemoryDevice, context: Context, kind: MemoryKind) -> None:
    with Queue(device) as queue, Queue(device) as other, Pool(context, kind, zero_initialize=True) as pool:
        memory, ready = queue.alloc(1000, pool=pool)
        assert not ready.done()
        assert contents(memory) == b"\xcd" * 1000
        with pytest.raises(StillInUseError):
            Background(memory_free_elsewhere(memory, other)).result()
        copied = bytearray(1000)
        target = (ctypes.c_char * 1000).from_buffer(copied)
        address = ctypes.addressof(target)
        copy = other.submit(lambda vendor: vendor.copy(address, memory.ptr, 1000), [ready], (memory, target))
        device.release(queue=device.queues[1])
        assert contents(memory) == b"\xcd" * 1000
        device.release()
        copy.wait()
        assert bytes(copied) == bytes(1000)
        ctypes.memset(memory.ptr, 7, 1000)
        queue.free(memory)
        again, ready = queue.alloc(900, pool=pool)
        assert again.ptr == memory.ptr
        device.release()
        ready.wait()
        assert contents(again) == bytes(900)
        queue.free(again)


def memory_free_elsewhere(memory: pinning.Allocation, queue: Queue):  # type: ignore[no-untyped-def]
    """Return a function that uses the memory in another queue, and frees it without waiting for that use."""

    def free() -> None:
        done = queue.submit(lambda vendor: vendor.mark(lambda: None), (), (memory,))  # type: ignore[attr-defined]
        assert not done.done()
        memory.free()

    return free


def test_a_block_is_not_reused_before_its_zeroes_are_written(device: FakeMemoryDevice, context: Context) -> None:
    """Freed at once in an out-of-order queue, where the free is not ordered after the fill."""
    with Queue(device, "out_of_order") as queue, Pool(context, zero_initialize=True) as pool:
        memory, ready = queue.alloc(KIB, pool=pool)
        freed = queue.free(memory)
        second, second_ready = queue.alloc(KIB, pool=pool, wait_for=[freed])
        assert second.ptr != memory.ptr
        third, third_ready = queue.alloc(KIB, pool=pool, wait_for=[freed, ready])
        assert third.ptr == memory.ptr
        device.let_go()
        for allocation, event in ((second, second_ready), (third, third_ready)):
            event.wait()
            queue.free(allocation)


def test_read_only_is_told(context: Context, device: FakeMemoryDevice) -> None:
    with Queue(device) as queue, Pool(context, read_only=True) as constants, Pool(context) as pool:
        for each in (constants, pool):
            memory = alloc(queue, each)
            assert memory.read_only is each.read_only is (each is constants)
            queue.free(memory)


@kinds
def test_every_kind(device: FakeMemoryDevice, context: Context, kind: MemoryKind) -> None:
    with Queue(device) as queue, Pool(context, kind) as pool:
        first, _ = queue.alloc(1000, pool=pool)
        second, _ = queue.alloc(500, kind, pool)
        for memory in (first, second):
            last = memory.ptr + memory.size - 1
            assert pinning.memory_info(last) == (kind, memory.ptr, memory.size, device, context, pool)
            assert pinning.is_locked(last, 1, device=device) is (kind is HOST)
            assert memory.device_ptr == memory.ptr + (LOCKED_OFFSET if kind is HOST else 0)
            if kind is DEVICE:
                assert not hasattr(memory, "__array_interface__")
            else:
                np.asarray(memory)[:] = 5
                assert contents(memory) == b"\5" * memory.size
        assert len(device.allocated) == 2
        queue.free(first)
        queue.free(second)
        with pytest.raises(ArgumentError, match="leave out one of the two"):
            queue.alloc(1, next(each for each in MemoryKind if each is not kind), pool)


def test_the_default_pool_is_found_by_names() -> None:
    assert default_pool("host", "device") is default_pool(pinning.device("host"), DEVICE)
    with pytest.raises(ArgumentError, match="kind is 'cuda:0'"):
        default_pool("host", "cuda:0")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="5 is not a device"):
        default_pool(5, DEVICE)  # type: ignore[arg-type]


def test_the_default_pool(device: FakeMemoryDevice) -> None:
    with Queue(device) as queue, Queue(device) as other:
        for kind in (None, *MemoryKind):
            for each in (queue, other):
                memory, _ = each.alloc(10, kind)
                assert memory.pool is default_pool(device, kind or DEVICE)
                assert memory.context is pinning.memory.default_context(device)
                each.free(memory)
    for kind in MemoryKind:
        default_pool(device, kind).trim_to(0)


# ---- bad input ----


def test_sizes_that_no_memory_has(device: FakeMemoryDevice, pool: Pool) -> None:
    with Queue(device) as queue:
        for size in (0, -1, 1 << 63):
            with pytest.raises(InvalidRangeError, match=f"nbytes is {size};"):
                queue.alloc(size, pool=pool)
    assert "allocate" not in device.vendor_calls


def test_freeing_twice_and_freeing_what_is_not_of_a_queue(device: FakeMemoryDevice, pool: Pool) -> None:
    with Queue(device) as queue:
        memory = alloc(queue, pool)
        queue.free(memory)
        for again in (memory.free, lambda: queue.free(memory), lambda: pinning.free(memory)):
            with pytest.raises(InvalidRangeError, match="cannot be freed again"):
                again()
        assert pool.used == 0
        with (
            pinning.alloc(10, device=device) as other,
            pytest.raises(InvalidRangeError, match="not allocated in a queue"),
        ):
            queue.free(other)


def test_a_queue_of_another_context(device: FakeMemoryDevice, pool: Pool) -> None:
    with Queue("host") as queue, pytest.raises(PinningError, match="host:0 is not in <Context of fake:0>"):
        queue.alloc(10, pool=pool)


def test_a_closed_pool_and_one_in_use(device: FakeMemoryDevice, context: Context) -> None:
    pool = Pool(context)
    with Queue(device) as queue:
        memory = alloc(queue, pool)
        with pytest.raises(StillInUseError, match="1024 bytes in use"):
            pool.close()
        with pytest.raises(StillInUseError, match="still owns 1024 bytes of DEVICE"):
            context.close()
        assert not pool.closed
        queue.submit(lambda vendor: vendor.fill(memory.ptr, b"\1", KIB), (), (memory,))
        queue.free(memory)
        closing = Background(pool.close)  # waits for the free
        assert eventually(lambda: pool.closed)
        assert closing.is_alive()
        device.let_go()
        closing.result()
        pool.close()
        assert (pool.closed, pool.reserved, device.allocated) == (True, 0, {})
        context.close()
        with pytest.raises(PinningError, match="closed; nothing can be allocated"):
            Pool(context)
        with pytest.raises(PinningError, match="closed"):
            queue.alloc(1, pool=pool)


def test_work_that_fails_while_a_pool_waits_for_it(device: FakeMemoryDevice, context: Context) -> None:
    """The vendor reports an error once, here to the pool."""
    pool, queue = Pool(context), Queue(device)
    memory = alloc(queue, pool)
    device.let_go()
    device.queues[-1].fail_step()
    failing = queue.submit(lambda vendor: vendor.fill(memory.ptr, b"\1", KIB), (), (memory,))
    queue.free(memory)
    pool.close()
    with pytest.raises(VendorError, match="FAKE_WORK_FAILED"):
        failing.wait()
    with pytest.raises(VendorError, match="FAKE_WORK_FAILED"):
        queue.close()


def test_a_queue_that_is_late_to_say_that_it_is_idle(
    device: FakeMemoryDevice, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a vendor's queue that has set an event and not yet counted its work as done."""
    pool = Pool(context)
    with Queue(device, order="out_of_order") as queue:
        parts = [alloc(queue, pool, KIB) for _ in range(3)]
        for part in parts:
            queue.free(part, [queue.submit(lambda vendor, ptr=part.ptr: vendor.fill(ptr, b"\1", KIB))])
        device.let_go()
        with monkeypatch.context() as late:
            late.setattr(FakeQueue, "done", lambda queue: False)
            pool.close()
    assert pool.reserved == 0


def test_a_closed_queue(device: FakeMemoryDevice, pool: Pool) -> None:
    queue, other = Queue(device), Queue(device)
    one, two = alloc(queue, pool), alloc(queue, pool)
    queue.close()
    use = other.submit(lambda vendor: vendor.fill(one.ptr, b"\1", KIB), (), (one,))
    with pytest.raises(PinningError, match="closed"):
        queue.alloc(1, pool=pool)
    with pytest.raises(PinningError, match="closed"):
        queue.free(one, [use])  # rather than ignore what it should wait for
    with pytest.raises(StillInUseError):
        one.free()
    other.free(one)
    two.free()
    assert pool.used == 0
    device.let_go()
    use.wait()
    other.close()


# ---- freeing, lifetime and faults ----


def test_a_plain_free_is_one_in_the_queue(device: FakeMemoryDevice, pool: Pool) -> None:
    with Queue(device) as queue, Queue(device) as other:
        memory = alloc(queue, pool)
        ptr = memory.ptr
        queue.submit(lambda vendor: vendor.fill(ptr, b"\1", KIB), (), (memory,))
        memory.free()
        elsewhere = alloc(other, pool)
        assert elsewhere.ptr != ptr
        with alloc(queue, pool) as again:
            assert again.ptr == ptr
        device.let_go()
        other.free(elsewhere)


def test_a_free_while_a_copy_is_in_flight(device: FakeMemoryDevice, pool: Pool) -> None:
    source, target = np.arange(KIB, dtype=np.uint8), np.zeros(KIB, np.uint8)
    with Queue(device) as queue, Queue(device) as other:
        memory = alloc(queue, pool)
        pinning.copy_async(memory, source, queue=queue)
        copy = pinning.copy_async(target, memory, queue=other, wait_for=[queue.record()])
        with pytest.raises(StillInUseError, match="in use by work of a queue"):
            memory.free()
        assert not memory.freed
        queue.free(memory, [copy])
        again = alloc(queue, pool)
        assert again.ptr == memory.ptr
        queue.submit(lambda vendor: vendor.fill(again.ptr, b"\xff", KIB), (), (again,))
        device.release()
        copy.wait()
        assert (target == source).all(), "the next owner's data comes later"
        queue.free(again)


def test_what_was_refused_raises_the_same_each_time_and_its_traceback_does_not_grow(
    device: FakeMemoryDevice, context: Context
) -> None:
    with Queue(device) as queue, Pool(context, maximum_size=KIB) as pool:
        refused, _ = queue.alloc(2 * KIB, pool=pool)
        for use in (lambda: refused.ptr, lambda: refused.device_ptr, refused.free, lambda: pinning.fill(refused, 0)):
            lengths = set()
            for _ in range(3):
                with pytest.raises(PoolLimitError) as caught:
                    use()
                lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
            assert len(lengths) == 1


def test_what_is_dropped_goes_back_in_its_queue(device: FakeMemoryDevice, pool: Pool) -> None:
    with Queue(device) as queue:
        with pytest.warns(ResourceWarning, match="was dropped"):
            alloc(queue, pool)
            gc.collect()
        assert eventually(lambda: pool.used == 0)


def test_a_pool_that_is_dropped_gives_its_memory_back(
    device: FakeMemoryDevice, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noted(ptr: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        freed_by.append(threading.get_ident())
        free(ptr, kind)

    freed_by: list[int] = []
    free = device.free
    monkeypatch.setattr(device, "free", noted)
    with Queue(device) as queue:
        pool = Pool(context)
        queue.free(alloc(queue, pool))
        with pytest.warns(ResourceWarning, match="<Pool of DEVICE of .*> was dropped"):
            del pool
            gc.collect()
        assert eventually(lambda: not device.allocated)
    assert threading.get_ident() not in freed_by, "a destructor must not wait for the vendor"


def test_a_queue_destroyed_with_work_pending(device: FakeMemoryDevice, pool: Pool) -> None:
    queue = Queue(device)
    memory = alloc(queue, pool)
    ptr = memory.ptr
    queue.submit(lambda vendor: vendor.fill(ptr, b"\1", KIB), (), (memory,))
    freed = queue.free(memory)
    del queue
    gc.collect()
    with Queue(device) as other:
        elsewhere = alloc(other, pool)
        assert elsewhere.ptr != ptr, "the work of the dropped queue is not over"
        device.let_go()
        freed.wait()
        other.free(elsewhere)
    del memory, elsewhere, freed  # which refer to their queue
    assert eventually(lambda: device.queues_alive == 0)


def test_every_vendor_call_may_fail_at_every_point(device: FakeMemoryDevice, context: Context) -> None:
    device.let_go()
    for kind in MemoryKind:
        for point in range(12):
            pool = Pool(context, kind, zero_initialize=True, release_threshold=0)
            queue, other = Queue(device), Queue(device)
            held: list[pinning.Allocation] = []
            device.fail_call(calls_before=point)
            try:
                for on in (queue, other):
                    memory, ready = on.alloc(1000, pool=pool)
                    held.append(memory)
                    ready.wait()
                    other.submit(lambda vendor, ptr=memory.ptr: vendor.fill(ptr, b"\1", 1000), [ready], (memory,))
                    on.free(memory, [other.record()])
                    held.pop()
                pool.trim_to(0)
            except VendorError as error:
                assert error.name == "FAKE_FAILURE"
            device.fail_no_more()
            assert pool.used == 1024 * len(held)
            assert pool.reserved == sum(size for size, _ in device.allocated.values())
            for memory in held:
                other.free(memory)
            pool.close()
            for each in (queue, other):
                try:
                    each.close()
                except VendorError:  # the error of work that was not waited for
                    each.close()
            assert device.allocated == {}


def test_a_device_lost_in_the_middle(device: FakeMemoryDevice, context: Context) -> None:
    pool, queue = Pool(context, zero_initialize=True), Queue(device)
    memory, ready = queue.alloc(KIB, pool=pool)
    idle, _ = queue.alloc(KIB, pool=pool)
    queue.free(idle)
    device.lose()
    for call in (lambda: queue.alloc(8 * KIB, pool=pool), ready.wait):
        with pytest.raises(VendorError, match="DEVICE_LOST"):
            call()
    assert (pool.used, pool.reserved) == (KIB, 2 * KIB)
    with pytest.raises(VendorError, match="DEVICE_LOST"):
        queue.close()
    memory.free()
    assert pool.used == 0
    with pytest.raises(VendorError, match="DEVICE_LOST"):
        pool.trim_to(0)
    with pytest.raises(VendorError, match="DEVICE_LOST"):
        pool.close()
    assert (pool.closed, pool.reserved) == (False, 2 * KIB)
    device.lost = False  # to show that nothing was forgotten
    pool.close()
    assert device.allocated == {}
    device.queues_alive = 0
    del ready
    gc.collect()


@pytest.mark.parametrize("freed", [False, True], ids=["before the vendor", "after the vendor"])
def test_ctrl_c_while_the_vendor_frees(device: FakeMemoryDevice, context: Context, freed: bool) -> None:
    """The memory is the pool's or the vendor's, and never both."""
    release = device.free

    def interrupted(ptr: int, kind: MemoryKind = DEVICE) -> None:
        device.free = release  # type: ignore[method-assign]
        if freed:
            release(ptr, kind)
        raise KeyboardInterrupt

    with Queue(device) as queue, Pool(context) as pool:
        parts = [alloc(queue, pool, size * KIB) for size in (4, 2)]
        for part in parts:
            queue.free(part)
        device.free = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            pool.trim_to(0)
        assert pool.reserved == sum(size for size, _ in device.allocated.values()) == (2 if freed else 6) * KIB
        again = alloc(queue, pool, 4 * KIB)
        assert again.ptr in device.allocated
        queue.free(again)


def test_ctrl_c_in_each_vendor_call_of_close(device: FakeMemoryDevice, context: Context) -> None:
    """The pool stays open, and the next close succeeds: no memory is forgotten, and none is given back twice."""
    device.let_go()
    point = 0
    with Queue(device) as queue, Queue(device) as other:
        while True:
            pool = Pool(context)
            for each, size in (queue, 4 * KIB), (other, 2 * KIB):
                each.free(alloc(each, pool, size))
            device.fail_call(KeyboardInterrupt(), calls_before=point)
            try:
                pool.close()
            except KeyboardInterrupt:
                assert not pool.closed
                device.fail_no_more()
                assert pool.reserved == sum(size for size, _ in device.allocated.values())
                queue.free(alloc(queue, pool, KIB))
                pool.close()
            else:
                device.fail_no_more()
                break
            assert (pool.closed, pool.reserved, device.allocated) == (True, 0, {})
            point += 1
        assert (pool.closed, pool.reserved, device.allocated) == (True, 0, {})
    assert point >= 2, "both segments are given back"


def test_zeroes_whose_submission_went_wrong_may_still_be_written(device: FakeMemoryDevice, context: Context) -> None:
    with Queue(device) as queue, Queue(device) as other, Pool(context, zero_initialize=True) as pool:
        memory, ready = queue.alloc(KIB, pool=pool)
        device.release()
        ready.wait()
        queue.free(memory).wait()
        vendor = device.queues[0]
        fill = vendor.fill

        def submitted_and_interrupted(ptr: int, value: bytes, count: int) -> None:
            fill(ptr, value, count)
            raise KeyboardInterrupt

        vendor.fill = submitted_and_interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            queue.alloc(KIB, pool=pool)
        del vendor.fill
        assert pool.used == 0
        elsewhere, _ = other.alloc(KIB, pool=pool)
        assert elsewhere.ptr != memory.ptr, "the fill is still to come"
        same, _ = queue.alloc(KIB, pool=pool)
        assert same.ptr == memory.ptr
        device.let_go()
        queue.free(same)
        other.free(elsewhere)


def test_frees_by_the_garbage_collector_in_the_middle_of_anything() -> None:
    """On the very thread that is allocating or freeing."""
    done = program("""
        import gc, warnings

        warnings.simplefilter("ignore")  # the collector ends what a cycle holds in any order
        queue = Queue("host")
        pool = pinning.Pool(pinning.Context("host"))

        class Holder:
            def __init__(self):
                self.memory, _ = queue.alloc(4096, pool=pool)
                self.itself = self

            def __del__(self):
                queue.free(self.memory)

        gc.set_threshold(1)
        for _ in range(3000):
            Holder()
        gc.collect()
        print(pool.used)
        pool.close()
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


# ---- threads and fork ----


def test_many_threads_share_a_pool() -> None:
    """Each thread writes its number and finds it again: no other thread had the memory meanwhile."""
    with Context("host") as context, Pool(context, maximum_size=1 << 20, release_threshold=1 << 16) as pool:

        def churn(number: int) -> None:
            with Queue("host", "in_order" if number % 2 else "out_of_order") as queue:
                for turn in range(60):
                    size = 100 + 37 * (turn * number % 50)
                    memory, ready = queue.alloc(size, pool=pool)
                    written = queue.submit(
                        lambda vendor, ptr=memory.ptr, size=size: vendor.fill(ptr, bytes([number]), size),
                        [ready],
                        (memory,),
                    )
                    found: list[bytes] = []
                    read = queue.call(lambda memory=memory, found=found: found.append(contents(memory)), [written])
                    freed = queue.free(memory, [read])
                    if turn % 7 == 0:
                        freed.wait()
                        assert found == [bytes([number]) * size]
                    del memory

        in_threads(churn, range(1, 5))
        assert pool.used == 0
        assert 0 < pool.used_high <= pool.reserved_high <= 1 << 20


def test_threads_that_grow_a_pool_at_once_are_each_given_memory(device: FakeMemoryDevice, pool: Pool) -> None:
    """A segment goes to the thread that allocated it; no other thread takes it first."""
    queues = [Queue(device) for _ in range(4)]

    def grow(queue: Queue) -> None:
        held = [alloc(queue, pool, KIB) for _ in range(50)]
        assert len({memory.ptr for memory in held}) == 50
        for memory in held:
            queue.free(memory)

    in_threads(grow, queues)
    for queue in queues:
        queue.close()


def test_the_child_of_a_fork(device: FakeMemoryDevice, pool: Pool) -> None:
    with Queue(device) as queue, Context("host") as context, Pool(context) as ours, Queue("host") as host:
        memory, theirs = alloc(queue, pool), alloc(host, ours)
        closed = Pool(context)
        closed.close()

        def child() -> None:
            calls = len(device.vendor_calls)
            assert (pool.used, pool.reserved, memory.freed) == (0, 0, True)
            memory.free()
            with pytest.raises(PinningError, match="fork"):
                queue.free(memory)
            with pytest.raises(PinningError, match="fork"):
                queue.alloc(1, pool=pool)
            pool.close()
            assert len(device.vendor_calls) == calls
            with Queue("host") as own:
                own.free(alloc(own, ours))
                with pytest.raises(PinningError, match="closed"):
                    alloc(own, closed)
            ours.close()

        run_in_child(child)
        assert not memory.freed
        queue.free(memory)
        host.free(theirs)


def test_memory_that_is_freed_while_another_thread_closes_its_queue() -> None:
    with held_device() as device, Queue(device) as other:
        queue = Queue(device)
        first, _ = queue.alloc(4096)
        address = first.ptr
        queue.submit(lambda vendor: vendor.fill(address, b"\1", 4096))
        closing = Background(queue.close)
        assert eventually(lambda: queue.closed)
        again = Background(queue.close)
        first.free()
        second, _ = other.alloc(4096)
        assert second.ptr != address, "the fill is pending"
        again.join(0.05)
        assert again.is_alive(), "it waits too"
        device.let_go()
        closing.result()
        again.result()
        other.free(second).wait()
        second.pool.trim_to(0)

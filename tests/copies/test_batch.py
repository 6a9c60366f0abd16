# SPDX-License-Identifier: Apache-2.0
"""Batches of copies: the bytes of random batches against NumPy, what is refused, and what stays locked meanwhile."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pinning
from batches import check_batch
from fake_memory import FakeMemoryDevice, FakeQueue
from leaving import SIZE as PAGES
from leaving import pages, replaced, unmapped
from limits import needs_room_to_lock
from noise import noise
from pinning import ArgumentError, InvalidRangeError, PinningError, VendorError
from pinning.copies import Copy, Reason, costs
from pinning.copies.work import bytes_moved
from pinning.map.pinned_map import watch_problem

SIZE = 64 << 10
HALF = SIZE // 2


@pytest.fixture
def queue() -> Iterator[pinning.Queue]:
    with pinning.Queue("host:0") as queue:
        yield queue


def addresses(memory: pinning.Allocation | numpy.ndarray, offsets: list[int]) -> numpy.ndarray:
    start = memory.ptr if isinstance(memory, pinning.Allocation) else memory.ctypes.data
    return numpy.array(offsets, numpy.uint64) + numpy.uint64(start)


def cuts(count: int) -> st.SearchStrategy[list[int]]:
    """The sizes of the items of a batch, which fill their destination without a gap."""
    return st.lists(st.integers(1, SIZE // 8), min_size=1, max_size=count)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=cuts(8),
    seed=st.integers(0, 2**16),
    locked=st.sampled_from([(0, 0), (0, 1000), (5000, 30000), (0, SIZE)]),
    inwards=st.booleans(),
)
def test_a_batch_is_what_numpy_would_copy(
    queue: pinning.Queue, sizes: list[int], seed: int, locked: tuple[int, int], inwards: bool
) -> None:
    draw = numpy.random.default_rng(seed)
    parts = numpy.array(sizes)
    origin = numpy.array([draw.integers(0, SIZE - size + 1) for size in sizes])
    ends = noise(SIZE, seed), noise(SIZE, seed + 1)
    check_batch(queue, *ends, numpy.cumsum(parts) - parts, origin, parts, inwards, slice(*locked))


def test_buffers_and_their_own_sizes(queue: pinning.Queue) -> None:
    sources = [noise(size, size) for size in (1, 100, 4096, 30000)]
    with pinning.alloc(sum(map(len, sources)), device="host:0") as there:
        starts = numpy.cumsum([0, *map(len, sources)])[:-1]
        copy = pinning.copy_batch_async([there.ptr + int(start) for start in starts], sources, queue=queue)
        copy.wait()
        backs = [numpy.zeros_like(each) for each in sources]
        pinning.copy_batch(backs, addresses(there, starts.tolist()), [len(each) for each in sources], queue=queue)
    assert all((back == source).all() for back, source in zip(backs, sources, strict=True))


def test_blocks_by_their_numbers(queue: pinning.Queue) -> None:
    pool = noise(32 * 512).reshape(32, 512)
    with pinning.alloc(16 * 512, device="host:0") as there, pinning.lock(pool, device="host:0"):
        pinning.copy_blocks(there, [3, 0, 15], pool, [31, 7, 8], 512, queue=queue)
        back = numpy.zeros((4, 512), numpy.uint8)
        numbers = numpy.array([3, 99, 0, 99, 15, 99])[::2]  # an array with steps
        pinning.copy_blocks(back, range(3), there, numbers, 512, queue=queue)
    assert (back[:3] == pool[[31, 7, 8]]).all()
    assert not back[3].any()


def test_what_is_locked_stays_so_until_the_batch_is_over(queue: pinning.Queue) -> None:
    array = noise(SIZE)
    with pinning.alloc(SIZE, device="host:0") as there:
        with pinning.lock(array, device="host:0"):
            gate = queue.call(lambda: None)
            copy = pinning.copy_batch_async([there], [array], queue=queue, wait_for=[gate])
        copy.wait()
        back = numpy.zeros_like(array)
        pinning.copy(back, there, queue=queue)
    assert (back == array).all()
    queue.synchronize()
    del copy
    assert not pinning.is_locked(array)


def test_what_a_batch_uses_is_not_freed_meanwhile(queue: pinning.Queue) -> None:
    with ExitStack() as stack:
        memory = [stack.enter_context(pinning.alloc(100, device=queue.device)) for _ in range(3)]
        gate = threading.Event()
        queue.call(lambda: gate.wait(60))
        copied = pinning.copy_batch_async(memory, [noise(100, seed) for seed in range(3)], queue=queue)
        try:
            for each in memory:
                with pytest.raises(pinning.StillInUseError):
                    each.free()
        finally:
            gate.set()
        copied.wait()


def test_what_is_refused_names_the_item(queue: pinning.Queue) -> None:
    array, read_only = noise(100), noise(100)
    read_only.flags.writeable = False
    with pinning.alloc(100, device="host:0") as there:
        twice = numpy.array([there.ptr, there.ptr], numpy.uint64)
        both = addresses(array, [0, 50])
        for expected, arguments in [
            ("1 dsts and 2 srcs", ([there], [array, array])),
            ("no items", ([], [])),
            ("item 1 of the batch: dst", ([there, read_only], [array, array])),
            ("item 1 of the batch: its size is 0", (twice, both, [50, 0])),
            ("item 0 of the batch: dst has 100 bytes and src 50", ([there], [array[:50]])),
            ("item 1 of the batch: its size is 101", ([there, there], [array, array], [100, 101])),
            ("item 1 of the batch: its size is 51", (twice, [array[:50], array[:50]], [50, 51])),
            ("item 0 of the batch: its size is 101", ([there, there], both, [101, 50])),
            ("item 0 of the batch: an address does not say", (twice, both)),
            ("item 1 of the batch: src", (twice, numpy.array([array.ctypes.data, 0], numpy.uint64), 10)),
            ("3 sizes for 2 items", (twice, both, [1, 2, 3])),
            ("is negative", (numpy.array([-1]), [array], 1)),
        ]:
            with pytest.raises(InvalidRangeError, match=expected):
                pinning.copy_batch_async(*arguments, queue=queue)
        with pytest.raises(InvalidRangeError, match="item 1 of the batch: src has no block 4; its 100"):
            pinning.copy_blocks_async(there, [0, 1], array, [3, 4], 25, queue=queue)
        with pytest.raises(InvalidRangeError, match=r"dst at 0x[0-9a-f]+ is read-only"):
            pinning.copy_blocks_async(read_only, [0, 1], there, [3, 2], 25, queue=queue)
        with pytest.raises(InvalidRangeError, match="dst_indices is empty"):
            pinning.copy_blocks_async(there, [], array, [], 25, queue=queue)
        with pytest.raises(InvalidRangeError, match="2 dst_indices and 1 src_indices"):
            pinning.copy_blocks_async(there, [0, 1], array, [3], 25, queue=queue)
        with pytest.raises(ValueError, match="engine is 'fast'"):
            pinning.copy_batch_async([there], [array], queue=queue, engine="fast")  # type: ignore[arg-type]
        with pytest.raises(PinningError, match="host:0 has no kernel"):
            pinning.copy_batch_async([there], [array], queue=queue, engine="kernel")


Batch = tuple[list[int], list[numpy.ndarray], list[int]]


@pytest.fixture
def batch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Batch]:
    """Two items to a device: `SIZE` bytes of which half are locked, and 100 of these."""
    monkeypatch.setattr(costs, "ring_bytes", 4 << 20)
    needs_room_to_lock(5 << 20)  # for the ring
    array = noise(SIZE)
    with pinning.alloc(2 * SIZE, device="host:0") as there, pinning.lock(array[:HALF], device="host:0"):
        yield [there.ptr, there.ptr + SIZE], [array, array[:100]], [SIZE, 100]


def test_explain_says_which_way_parts_go(queue: pinning.Queue, batch: Batch) -> None:
    plan = pinning.explain_batch(*batch, queue=queue)
    copy = pinning.copy_batch(*batch, queue=queue)
    back = pinning.copy_batch(batch[1], batch[0], batch[2], queue=queue)
    assert [(group.path, group.reason_code, group.count, group.nbytes) for group in plan.groups] == [
        ("direct", Reason.ENGINES, 2, HALF + 100),
        ("staged", Reason.PAGEABLE, 1, HALF),
    ]
    assert plan.path == "staged"
    assert str(plan).splitlines() == [
        f"staged, {SIZE + 100} bytes: {plan.reason}",
        f"  direct  {HALF + 100:>14} bytes in 2 parts {plan.groups[0].reason}",
        f"  staged  {HALF:>14} bytes in 1 part {plan.groups[1].reason}",
    ]
    assert (copy.path, copy.reason) == (plan.path, plan.reason)
    assert back.path == "plain"  # because of one small part
    assert "to pageable memory; 1 part " in back.reason


def test_bytes_are_counted_by_the_way_that_they_go(queue: pinning.Queue, batch: Batch) -> None:
    dsts, srcs, sizes = batch
    hosts, direct = [numpy.zeros(size, numpy.uint8) for size in sizes], {"direct": HALF + 100}
    for to, origin, expected in (
        (dsts, srcs, direct | {"staged": HALF}),
        (srcs, dsts, direct | {"plain": HALF}),
        (hosts, srcs, {"staged": SIZE + 100}),  # though a part of it is locked: threads move all within the host
    ):
        before = bytes_moved()
        pinning.copy_batch(to, origin, sizes, queue=queue)
        assert {path: now - before[path] for path, now in bytes_moved().items() if now != before[path]} == expected


def test_one_item_goes_as_a_copy_does(queue: pinning.Queue) -> None:
    array = noise(SIZE)
    with pinning.alloc(SIZE, device="host:0") as there, pinning.lock(array[: SIZE // 2], device="host:0"):
        for end, size in ((array, None), (array[: SIZE // 2], 100)):
            alone = pinning.explain(there, end, size, queue=queue)
            plan = pinning.explain_batch([there], [end], size, queue=queue)
            copy = pinning.copy_batch_async([there], [end], size, queue=queue)
            copy.wait()
            assert (plan.path, plan.reason) == (copy.path, copy.reason) == (alone.path, alone.reason)
        pinning.copy_batch(addresses(there, [7]), addresses(array, [9]), [100], queue=queue)
        back = numpy.zeros(100, numpy.uint8)
        pinning.copy_batch([back], addresses(there, [7]), 100, queue=queue)
        assert (back == array[9:109]).all()
        with pytest.raises(InvalidRangeError, match="item 0 of the batch: "):
            pinning.copy_batch([there], [array], SIZE + 1, queue=queue)
        with pytest.raises(InvalidRangeError, match="there are 2 sizes for 1 items"):
            pinning.copy_batch([there], [array], [1, 2], queue=queue)


def test_items_in_memory_of_the_hosts_device_may_cross_the_border_of_a_lock() -> None:
    array, back = noise(100), numpy.zeros(100, numpy.uint8)
    with pinning.alloc(100, device="host:0") as there, pinning.lock((there.ptr, 36), device="host:0"):
        pinning.copy_batch([there.ptr + 27, there.ptr], [array[27:], array[:27]], [73, 27])
        pinning.copy_batch([back[:60], back[60:]], [there.ptr, there.ptr + 60], [60, 40])
    assert (back == array).all()


def test_several_that_write_the_same_bytes_leave_one_of_them(queue: pinning.Queue) -> None:
    sources = noise(3 * SIZE).reshape(3, SIZE)
    with pinning.alloc(SIZE, device="host:0") as there:
        for pinned in (True, False):
            held = pinning.lock(sources, device="host:0") if pinned else None
            pinning.copy_batch([there, there, there], list(sources), queue=queue)
            back = numpy.zeros(SIZE, numpy.uint8)
            pinning.copy(back, there, queue=queue)
            assert (back == sources).any(axis=0).all()  # each byte is that of one item
            if held:
                held.unlock()


def test_a_million_items_of_a_byte_each(queue: pinning.Queue) -> None:
    count = 10**6
    source, target = noise(count), numpy.zeros(count, numpy.uint8)
    order = numpy.random.default_rng(3).permutation(count).astype(numpy.uint64)
    with pinning.alloc(count, device="host:0") as there, pinning.locked(source, target, device="host:0"):
        near = numpy.uint64(source.ctypes.data) + order
        far = numpy.uint64(there.ptr) + numpy.arange(count, dtype=numpy.uint64)
        (group,) = pinning.explain_batch(far, near, 1, queue=queue).groups
        copy = pinning.copy_batch(far, near, 1, queue=queue)
        pinning.copy(target, there, queue=queue)
    assert (copy.path, group.reason_code, group.count) == ("direct", Reason.ENGINES, count)
    assert (target == source[order]).all()


def test_what_a_batch_does_not_write_may_be_read_early(queue: pinning.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    planned = sys.modules["pinning.copies.copy"]
    plan_copy = planned.plan_copy

    def look(to: Any, origin: Any, size: int, queue: pinning.Queue, early: bool, in_turn: bool) -> Any:
        seen.append(early)
        return plan_copy(to, origin, size, queue, early, in_turn)

    def point(queue: pinning.Queue, work: Any, waits: Any) -> Any:
        return queue.submit(None, waits, (), Copy)

    monkeypatch.setattr(planned, "plan_copy", look)
    monkeypatch.setattr(planned, "submit_native", point)
    monkeypatch.setattr(costs, "stage_to_device", 1 << 20)
    monkeypatch.setattr(costs, "threads", 2)
    count = 10**6  # so many that they are not complete at the next copy
    back, array = numpy.zeros(2 * count, numpy.uint8), noise(1 << 20)
    with pinning.alloc(2 * count, device="host:0") as there, pinning.locked(back, device="host:0"):
        places = 2 * numpy.arange(count, dtype=numpy.uint64)
        ends = numpy.uint64(back.ctypes.data) + places, numpy.uint64(there.ptr) + places
        pinning.copy_batch_async(*ends, 1, queue=queue)
        pinning.copy_async(there, array, array.nbytes, queue=queue)
        queue.synchronize()
    assert seen == [True]


def test_a_device_written_in_python_has_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeMemoryDevice(held=False)
    array, back, half = noise(SIZE), numpy.zeros(SIZE, numpy.uint8), SIZE // 2
    with pinning.Queue(device) as queue, pinning.alloc(SIZE, device=device) as there:
        with pinning.lock(array[:half], device=device):
            batch = [there.ptr, there.ptr + half], [array[:half], array[half:]]
            groups = pinning.explain_batch(*batch, queue=queue).groups
            assert [group.reason_code for group in groups] == [Reason.ENGINES, Reason.PAGEABLE]
            pinning.copy_batch(*batch, queue=queue)
        pinning.copy_batch([back[half:], back[:half]], [there.ptr + half, there.ptr], queue=queue)
        assert (back == array).all()
        error = VendorError("fakeCopy", 9, "FAKE_REFUSED")

        def refuse(queue: FakeQueue, dst: int, src: int, size: int) -> None:
            raise error

        monkeypatch.setattr(FakeQueue, "copy", refuse)
        with pytest.raises(VendorError) as raised:
            pinning.copy_batch(*batch, queue=queue)
        assert raised.value is error
    device.check()


@pytest.mark.skipif(watch_problem() is not None, reason=f"the kernel does not tell of it: {watch_problem()}")
def test_before_a_batch_the_vendor_is_told_of_locked_memory_that_is_gone() -> None:
    device, ptr, half = FakeMemoryDevice(held=False), pages(), PAGES // 2
    with pinning.Queue(device) as queue, pinning.alloc(PAGES, device=device) as there:
        old = pinning.lock((ptr + 100, 1000), device=device)
        replaced(ptr)
        plan = pinning.explain_batch([there.ptr, there.ptr + half], [ptr, ptr + half], half, queue=queue)
        assert [(group.reason_code, group.count) for group in plan.groups] == [(Reason.PAGEABLE, 2)]
        assert (old.held, device.locked) == (False, {})
    unmapped(ptr)
    device.check()


def test_a_queue_moves_no_memory_of_another_vendors_device() -> None:
    device, other = FakeMemoryDevice(held=False), FakeMemoryDevice("other:0", held=False)
    array = noise(SIZE)
    with (
        pinning.Queue(device) as queue,
        pinning.alloc(SIZE, device=device) as here,
        pinning.alloc(SIZE, device=other) as there,
        pinning.alloc(SIZE, device="host:0") as in_host,
    ):
        with pytest.raises(PinningError, match="cannot copy or fill memory of other:0"):
            pinning.copy_batch([here, there], [array, array], queue=queue)
        with pytest.raises(PinningError, match="cannot copy or fill memory of other:0"):
            pinning.copy_batch([array, here], [here, there], queue=queue)
        with pytest.raises(PinningError, match="cannot copy or fill memory of other:0"):
            pinning.copy_blocks_async(here, [0, 1], there, [1, 0], SIZE // 2, queue=queue)
        pinning.copy_batch([here, here], [array, in_host], queue=queue)
        for call in (
            lambda: pinning.copy(there, array, queue=queue),
            lambda: pinning.copy(array, there, queue=queue),
            lambda: pinning.copy(there, there, queue=queue),
            lambda: pinning.explain(there, array, queue=queue),
            lambda: pinning.fill(there, 1, queue=queue),
            lambda: pinning.copy_2d(there, 8, array, 8, 8, 2, queue=queue),
            lambda: pinning.copy_file(there, __file__, nbytes=8, queue=queue),
        ):
            with pytest.raises(ArgumentError, match=r"memory of other:0, .* give a queue of that device"):
                call()
        with pinning.Queue(other) as theirs:
            pinning.copy(there, array, queue=theirs)
    for each in (device, other):
        each.check()

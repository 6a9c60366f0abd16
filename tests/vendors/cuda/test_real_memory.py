# SPDX-License-Identifier: Apache-2.0
"""Allocations, connections and pools on real NVIDIA GPUs: every promise is checked with data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import pinning
from noise import noise
from pinning import Context, MemoryConnection, MemoryKind, Pool, Queue
from pinning_cuda import CudaDevice, plugin
from queue_work import holding

HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED
MIB = 1 << 20
kinds = pytest.mark.parametrize("kind", MemoryKind, ids=lambda kind: kind.value)


@pytest.fixture(scope="module")
def gpus(real_gpu: CudaDevice) -> list[CudaDevice]:
    return [plugin.device(index) for index in range(plugin.device_count())]


@pytest.fixture
def gpu(gpus: list[CudaDevice]) -> CudaDevice:
    return gpus[0]


@pytest.fixture
def context(gpu: CudaDevice) -> Iterator[Context]:
    with Context(gpu) as context:
        yield context


def contents(memory: pinning.Allocation) -> Any:
    """The contents of a device's memory, after all work submitted so far."""
    found = np.zeros(memory.size, np.uint8)
    memory.device.synchronize()
    pinning.copy(found, memory)
    return found


# ---- allocations ----


def test_shared_memory_is_used_from_both_sides_in_turn(gpu: CudaDevice) -> None:
    if SHARED not in gpu.memory_kinds:
        pytest.skip("this GPU has no managed memory")
    with pinning.alloc(MIB, SHARED, device=gpu) as memory, pinning.alloc(MIB, device=gpu) as there, Queue(gpu) as queue:
        array = np.asarray(memory)
        for turn in range(1, 5):
            pinning.fill(memory, turn, queue=queue)
            assert (array == turn).all()
            array[:] = 100 + turn
            pinning.copy(there, memory, queue=queue)
            assert (contents(there) == 100 + turn).all()
        del array  # else the memory is in use


def test_host_memory_is_reached_by_all_gpus_of_its_context(gpus: list[CudaDevice]) -> None:
    data = noise(MIB)
    with Context(gpus) as context, context.alloc(MIB, HOST) as memory:
        np.asarray(memory)[:] = data
        for gpu in gpus:
            assert pinning.find(memory, device=gpu) is not None
            with context.alloc(MIB, device=gpu) as there:
                assert pinning.copy(there, memory).path == "direct"
                assert (contents(there) == data).all()


def test_memory_of_torch_is_its_own(gpu: CudaDevice) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(5000, dtype=torch.uint8, device=gpu.name)
    pinned = torch.zeros(5000, dtype=torch.uint8).pin_memory()
    pageable = torch.zeros(5000, dtype=torch.uint8)
    for each, kind in ((tensor, DEVICE), (pinned, HOST)):
        info = pinning.memory_info(each.data_ptr() + 4999)
        assert info is not None
        assert (info.kind, info.device) == (kind, gpu if kind is DEVICE else None)
        assert (info.context, info.pool) == (None, None)
        assert info.base <= each.data_ptr() < each.data_ptr() + 5000 <= info.base + info.size
    assert pinning.memory_info(pageable.data_ptr()) is None


def test_memory_of_cupy_is_its_own_and_it_uses_ours(gpu: CudaDevice, context: Context) -> None:
    cupy = pytest.importorskip("cupy")
    theirs, managed = cupy.zeros(5000, cupy.uint8), cupy.cuda.malloc_managed(5000)
    for ptr, kind in ((theirs.data.ptr, DEVICE), (managed.ptr, SHARED)):
        info = pinning.memory_info(ptr + 4999)
        assert info is not None
        assert (info.kind, info.device, info.context, info.pool) == (kind, gpu, None, None)
    for kind in gpu.memory_kinds:
        with context.alloc(5000, kind) as memory:
            pinning.fill(memory, 5)
            view(cupy, memory)[:] += 1
            cupy.cuda.Device().synchronize()
            assert (contents(memory) == 6).all()


def view(cupy: Any, memory: pinning.Allocation) -> Any:
    """A CuPy array over our memory, for kernels on the current device."""
    unowned = cupy.cuda.UnownedMemory(memory.device_ptr, memory.size, memory, cupy.cuda.Device().id)
    return cupy.ndarray(memory.size, cupy.uint8, cupy.cuda.MemoryPointer(unowned, 0))


# ---- connections ----


def test_a_gpu_uses_its_memory_in_any_context(gpu: CudaDevice) -> None:
    cupy = pytest.importorskip("cupy")
    with Context(gpu) as one, Context(gpu) as other, one.alloc(MIB) as memory:
        assert pinning.memory_connection((gpu, one), (gpu, other)) is MemoryConnection.UNIFIED
        pinning.fill(memory, 7)
        assert int(view(cupy, memory).sum(dtype=cupy.int64)) == 7 * MIB


def test_two_gpus_do_what_their_connection_promises(gpus: list[CudaDevice]) -> None:
    if len(gpus) < 2:
        pytest.skip("needs two NVIDIA GPUs")
    cupy = pytest.importorskip("cupy")
    data = noise(16 * MIB)
    with Context(gpus) as context:
        for (at, one), (to, other) in permutations(list(enumerate(gpus))[:2]):
            connection = pinning.memory_connection((one, context), (other, context))
            assert connection in (MemoryConnection.UNIFIED, MemoryConnection.MIGRATABLE), (
                "the driver copies between any"
            )
            with cupy.cuda.Device(at):
                reaches = cupy.cuda.runtime.deviceCanAccessPeer(to, at)
            assert (connection is MemoryConnection.UNIFIED) == bool(reaches)
            with context.alloc(data.size, device=one) as memory, context.alloc(data.size, device=other) as there:
                pinning.copy(memory, data)
                if connection is MemoryConnection.UNIFIED:
                    with cupy.cuda.Device(to):
                        found = view(cupy, memory) + cupy.uint8(1)  # a kernel of the other GPU reads the address itself
                        assert (cupy.asnumpy(found) == data + np.uint8(1)).all()
                assert pinning.copy(there, memory).path == "direct", "without the host"
                assert (contents(there) == data).all()


# ---- pools ----


def test_reuse_across_streams_is_never_early(gpu: CudaDevice, context: Context) -> None:
    results = [np.zeros(MIB, np.uint8) for _ in range(2)]
    with Queue(gpu) as one, Queue(gpu) as other, Pool(context) as pool, ExitStack() as locks:
        for result in results:
            locks.enter_context(pinning.lock(result, device=gpu))
        # One-time work of the driver could wait for the queue that is blocked below, so it is done now.
        memory, spare = one.alloc(MIB, pool=pool)[0], other.alloc(MIB, pool=pool)[0]
        for each, queue in ((memory, one), (spare, other)):
            pinning.fill(each, 9, queue=queue)
        other.free(spare)
        ptr = memory.ptr
        with holding(one) as held:
            pinning.fill_async(memory, 1, queue=one)
            pinning.copy_async(results[0], memory, queue=one)
            freed = one.free(memory)
            elsewhere, _ = other.alloc(MIB, pool=pool)
            assert elsewhere.ptr != ptr, "nothing says that the free is over"
            pinning.fill(elsewhere, 2, queue=other)
            after, ready = other.alloc(MIB, pool=pool, wait_for=[freed])
            assert after.ptr == ptr, "it waits for the free, and so can have its memory"
            pinning.fill_async(after, 3, queue=other, wait_for=[ready])
            pinning.copy_async(results[1], after, queue=other)
            assert not ready.done()
            assert not results[1].any()
            held.release()
        one.synchronize()
        other.synchronize()
        assert (results[0] == 1).all()
        assert (results[1] == 3).all()
        assert (contents(elsewhere) == 2).all()
        for each in (elsewhere, after):
            other.free(each)


@pytest.mark.parametrize("maximum", [None, 24 * MIB], ids=["unbounded", "bounded"])
def test_streams_that_share_a_pool_find_their_own_data(gpu: CudaDevice, context: Context, maximum: int | None) -> None:
    """Every block is filled with a number and read back late; a block reused too early would hold another number."""
    random = np.random.default_rng(7)
    with Pool(context, maximum_size=maximum) as pool:
        queues = [Queue(gpu, "out_of_order" if number == 3 else "in_order") for number in range(4)]
        read: list[tuple[int, pinning.Allocation, pinning.Event]] = []
        last: list[pinning.Event] = []
        for turn in range(400):
            queue = queues[int(random.integers(4))]
            size, number = int(random.integers(1, 2 * MIB)), turn % 255 + 1
            waits = [last[int(random.integers(len(last)))] for _ in range(int(random.integers(3)))] if last else []
            memory, ready = queue.alloc(size, pool=pool, wait_for=waits)
            if isinstance(ready.error, pinning.PoolLimitError):
                assert maximum is not None
                queue.synchronize()
                continue
            assert pool.used <= pool.reserved <= (maximum or 1 << 60)
            target = pinning.alloc(size, HOST, context=context)
            filled = pinning.fill_async(memory, number, queue=queue, wait_for=[ready])
            again = pinning.fill_async(memory, number, queue=queue, wait_for=[filled])
            copied = pinning.copy_async(target, memory, queue=queue, wait_for=[again])
            last = [*last[-5:], queue.free(memory, [copied])]
            read.append((number, target, copied))
        for number, target, copied in read:
            copied.wait()
            assert (np.asarray(target) == number).all()
            target.free()
        for queue in queues:
            queue.close()
        assert pool.used == 0
        pool.trim_to(0)
        assert pool.reserved == 0


def test_a_stream_of_somebody_else_allocates_in_its_order(gpu: CudaDevice, context: Context) -> None:
    cupy = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    queue = Queue.adopt(stream.ptr, gpu)
    with Pool(context) as pool:
        memory, ready = queue.alloc(MIB, pool=pool)
        ptr = memory.ptr
        with stream:
            view(cupy, memory)[:] = 9
            total = view(cupy, memory).sum(dtype=cupy.int64)
        queue.free(memory)
        again, _ = queue.alloc(MIB, pool=pool)
        assert again.ptr == ptr
        pinning.fill_async(again, 1, queue=queue)
        stream.synchronize()
        assert int(total) == 9 * MIB
        assert (contents(again) == 1).all()
        assert ready.done()
        queue.free(again)
        queue.close()


@kinds
def test_zeroes_in_every_kind(gpu: CudaDevice, context: Context, kind: MemoryKind) -> None:
    if kind not in gpu.memory_kinds:
        pytest.skip(f"this GPU has no memory of kind {kind.name}")
    with Queue(gpu) as queue, Pool(context, kind, zero_initialize=True) as pool:
        for _ in range(3):
            memory, ready = queue.alloc(MIB + 3, pool=pool)
            ready.wait()
            assert not contents(memory).any()
            info = pinning.memory_info(memory.ptr + MIB)
            assert info == (kind, memory.ptr, MIB + 3, gpu, context, pool)
            pinning.fill_async(memory, 7, queue=queue)
            queue.free(memory)
        assert pool.reserved == MIB + 256
        base = memory.ptr
    assert pinning.memory_info(base) is None, "the driver has it back"

# SPDX-License-Identifier: Apache-2.0
"""Batches, and large copies, on the stand-in: which calls they make, what they move, and each call failing in turn."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy
import pytest
from captures import Graph
from cuda.bindings import driver as cuda
from graph_cases import ended

import c_api
import pinning
from batches import check_batch
from fake_device import Background
from noise import noise
from pinning.copies.plan import Reason
from pinning.errors import VendorError
from standins.standin import StandIn
from standins.work import failing_in_turn

BLOCK = 4096
TURN = 16 << 20
UNKNOWN = 999  # CUDA_ERROR_UNKNOWN


@pytest.fixture
def queue(standin: StandIn) -> Iterator[pinning.Queue]:
    with pinning.Queue("cuda:0") as queue:
        yield queue
    pinning.copies.trim_staging()


def moved(standin: StandIn) -> list[str]:
    """The names of the calls that moved bytes, each once."""
    names = [call.split()[0] for call in standin.calls()]
    return [name for name in ("cuLaunchKernel", "cuMemcpyBatchAsync", "cuMemcpyAsync") if name in names]


@pytest.mark.parametrize(
    ("engine", "calls"),
    [("auto", ["cuLaunchKernel"]), ("copy", ["cuMemcpyBatchAsync"]), ("kernel", ["cuLaunchKernel"])],
)
def test_locked_blocks_go_by_one_call(standin: StandIn, queue: pinning.Queue, engine: str, calls: list[str]) -> None:
    host, back = noise((64, BLOCK)), numpy.zeros((64, BLOCK), numpy.uint8)
    order, places = numpy.random.default_rng(2).permutation(64), numpy.random.default_rng(3).permutation(64)
    with (
        pinning.alloc(host.nbytes, device="cuda:0") as there,
        pinning.locked(host, back, device="cuda:0"),
    ):
        standin.configure()
        pinning.copy_blocks(there, places, host, order, BLOCK, queue=queue, engine=engine)
        assert moved(standin) == calls
        copy = pinning.copy_blocks_async(back, order, there, places, BLOCK, queue=queue, engine=engine)
        copy.wait()
    assert (back == host).all()
    assert copy.path == "direct"
    standin.configure()


def test_no_kernel_is_loaded_into_a_context_of_the_programs_own(standin: StandIn) -> None:
    cuda.cuInit(0)
    _, context = cuda.cuCtxCreate(None, 0, cuda.cuDeviceGet(0)[1])
    _, stream = cuda.cuStreamCreate(1)
    cuda.cuCtxPopCurrent()
    host, order = noise((64, BLOCK)), numpy.arange(64)
    with (
        pinning.alloc(host.nbytes, device="cuda:0") as there,
        pinning.lock(host, device="cuda:0"),
        pinning.Queue.adopt(int(stream), "cuda:0") as queue,
    ):
        standin.configure()
        pinning.copy_blocks(there, order, host, order, BLOCK, queue=queue)
        assert moved(standin) == ["cuMemcpyBatchAsync"] and not standin.calls("cuModuleLoadData")
    standin.configure()
    cuda.cuStreamDestroy(stream)
    cuda.cuCtxDestroy(context)


def test_what_the_batch_call_refuses_is_copied_one_by_one(standin: StandIn, queue: pinning.Queue) -> None:
    """The batch takes two calls, of which the second is refused."""
    host = noise((5000, 64))
    back, order = numpy.zeros_like(host), numpy.arange(5000)
    with pinning.alloc(host.nbytes, device="cuda:0") as there, pinning.lock(host, device="cuda:0"):
        standin.configure(f"fail=cuMemcpyBatchAsync:2:{UNKNOWN}")
        pinning.copy_blocks(there, order, host, order, 64, queue=queue, engine="copy")
        assert len(standin.calls("cuMemcpyBatchAsync")) == 2
        standin.configure()
        pinning.copy(back, there, queue=queue)
    assert (back == host).all()


def test_blocks_of_memory_that_another_thread_locks_and_unlocks(queue: pinning.Queue) -> None:
    """The stand-in ends the process if a kernel gets the address of memory that is no longer registered."""
    host, ended = numpy.zeros(1 << 20, numpy.uint8), threading.Event()

    def locks() -> None:
        while not ended.is_set():
            pinning.lock(host, device="cuda:0").unlock()

    locking = Background(locks)
    with pinning.alloc(host.nbytes, device="cuda:0") as there:
        for _ in range(1500):
            pinning.copy_blocks(there, range(100), host, range(100), BLOCK, queue=queue)
    ended.set()
    locking.result()


def test_blocks_go_by_the_engines_where_the_kernel_waits_for_multiprocessors(
    standin: StandIn, queue: pinning.Queue
) -> None:
    host = noise((64, BLOCK))
    back = numpy.zeros_like(host)
    order = numpy.arange(64)

    def ways(count: int, engine: str = "auto") -> str:
        """One letter for each batch: K if a kernel moved it, E if the copy engines did."""
        taken = ""
        for _ in range(count):
            copy = pinning.copy_blocks_async(there, order, host, order, BLOCK, queue=queue, engine=engine)
            copy.wait()
            taken += "K" if "by a kernel" in copy.reason else "E"
        return taken

    with pinning.alloc(host.nbytes, device="cuda:0") as there, pinning.lock(host, device="cuda:0"):
        standin.configure("kernel_ms=100")
        assert ways(1 + 16 + 1 + 2) == "K" + 16 * "E" + "K" + 2 * "E"
        assert "by its copy engines" in pinning.explain_batch([there] * 64, [host] * 64, BLOCK, queue=queue).reason
        assert ways(2, "kernel") == "KK", "that was asked for"
        with pinning.Queue("cuda:0") as other:
            other_copy = pinning.copy_blocks_async(there, order, host, order, BLOCK, queue=other)
            assert "by a kernel" in other_copy.reason, "each queue by what it has seen"
        standin.configure()
        pinning.copy(back, there, queue=queue)
    assert (back == host).all()


@pytest.mark.parametrize("over", [0, 1])
def test_an_item_of_the_largest_size_for_the_kernel_goes_by_it(queue: pinning.Queue, over: int) -> None:
    sizes = [pinning.copies.costs.kernel_to_bytes + over, *[BLOCK] * 64]
    starts = numpy.cumsum([0, *sizes[:-1]])
    host = noise((sum(sizes),))
    with pinning.alloc(2 * host.nbytes, device="cuda:0") as there, pinning.lock(host, device="cuda:0"):
        ends = [(there.ptr + 2 * starts).tolist(), (host.ctypes.data + starts).tolist()]
        plan = pinning.explain_batch(*ends, sizes, queue=queue)
        by_kernel = {each.reason_code: each.nbytes for each in plan.groups}[Reason.KERNEL]
        assert by_kernel == sum(sizes[over:])


@pytest.mark.parametrize("n", [1, 2])
def test_a_batch_whose_kernel_cannot_be_timed_is_none_that_failed(
    standin: StandIn, queue: pinning.Queue, n: int
) -> None:
    host, order = noise((64, BLOCK)), numpy.arange(64)
    back = numpy.zeros_like(host)
    with pinning.alloc(host.nbytes, device="cuda:0") as there, pinning.locked(host, device="cuda:0"):
        standin.configure(f"fail=cuEventRecord:{n}:{UNKNOWN}")
        copy = pinning.copy_blocks_async(there, order, host, order, BLOCK, queue=queue)
        copy.wait()
        assert sum(call.startswith("cuEventRecord") for call in standin.calls()) >= n
        standin.configure()
        assert "by a kernel" in copy.reason
        pinning.copy(back, there, queue=queue)
    assert (back == host).all()


@pytest.mark.parametrize("inwards", [True, False])
def test_behind_each_piece_of_a_large_locked_copy_other_queues_have_their_turn(
    standin: StandIn, queue: pinning.Queue, inwards: bool
) -> None:
    host = noise((2 * TURN + 5,))
    back = numpy.zeros_like(host)
    locked, pageable = (host, back) if inwards else (back, host)
    with pinning.alloc(host.nbytes, device="cuda:0") as there, pinning.lock(locked, device="cuda:0"):
        ends = (there, host) if inwards else (back, there)
        if not inwards:
            pinning.copy(there, pageable, queue=queue)
        turn = ["cuMemcpyAsync", "cuStreamWaitValue32"]

        def calls() -> list[str]:
            standin.configure()
            pinning.copy_async(*ends, queue=queue).wait()
            return [name for name in (call.split()[0] for call in standin.calls()) if name in turn]

        assert calls() == ["cuMemcpyAsync"], "it is the only queue"
        with pinning.Queue("cuda:0"):
            assert calls() == 3 * turn
            copy = pinning.copy_async(*ends, queue=queue)
            copy.wait()
        assert calls() == ["cuMemcpyAsync"]
        assert copy.path == "direct"
        if inwards:
            pinning.copy(pageable, there, queue=queue)
        assert (back == host).all()
        with pinning.Queue("cuda:0"), Graph(queue.handle) as graph:
            standin.configure()
            pinning.copy_async(*ends, queue=queue)
            assert len(standin.calls("cuMemcpyAsync")) == 1
            assert not standin.calls("cuStreamWaitValue32"), "a graph has one node for it"
        ended(graph)
        with pinning.Queue("cuda:0"):
            for failed in ("cuStreamWaitValue32", "cuMemHostAlloc"):  # the copy itself needs neither
                pinning.copies.trim_staging()
                standin.configure(f"fail={failed}:1:{UNKNOWN}")
                back[:] = 0
                pinning.copy(*ends, queue=queue)
                assert standin.calls(failed)
                standin.configure()
                if inwards:
                    pinning.copy(pageable, there, queue=queue)
                assert (back == host).all()
    assert not pinning.is_locked(locked)


@pytest.mark.parametrize("inwards", [True, False])
def test_locked_and_pageable_and_across_the_border(standin: StandIn, queue: pinning.Queue, inwards: bool) -> None:
    ends = noise((64 * BLOCK,)), noise((64 * BLOCK,), 2)
    draw = numpy.random.default_rng(5)
    sizes = draw.integers(1, 3 * BLOCK, 20)
    origin = numpy.array([draw.integers(0, 64 * BLOCK - size) for size in sizes])
    copy = check_batch(queue, *ends, numpy.cumsum(sizes) - sizes, origin, sizes, inwards, slice(5000, 100000))
    assert copy.path == "staged"
    assert "by a kernel" in copy.reason
    assert "pageable" in copy.reason


@pytest.mark.parametrize("inwards", [True, False])
def test_from_c_in_a_stream(standin: StandIn, queue: pinning.Queue, inwards: bool) -> None:
    host, there_bytes = noise((64, BLOCK)), noise((64, BLOCK), 2)
    order = numpy.random.default_rng(3).permutation(64).astype(numpy.uint64) * numpy.uint64(BLOCK)
    in_order = numpy.arange(64, dtype=numpy.uint64) * numpy.uint64(BLOCK)
    sizes = numpy.full(64, BLOCK, numpy.uint64)
    source, target = (host, there_bytes) if inwards else (there_bytes, host)
    expected = target.copy()
    expected[(order // numpy.uint64(BLOCK)).astype(int)] = source
    native = c_api.Map("cuda:0")
    with pinning.alloc(host.nbytes, device="cuda:0") as there:
        pinning.copy(there, there_bytes, queue=queue)
        with pinning.lock(host[:32], device="cuda:0"):  # the other half goes through the rings
            near, far = numpy.uint64(host.ctypes.data), numpy.uint64(there.ptr)
            bases = (far, near) if inwards else (near, far)
            standin.configure()
            copy = native.copy_batch_async(queue.handle, bases[0] + order, bases[1] + in_order, sizes)
            assert "cuLaunchKernel" in moved(standin)
        assert native.regions() != []  # held until the copy is complete
        copy.wait()
        assert native.regions() == []
        if inwards:
            pinning.copy(target, there, queue=queue)
    assert (target == expected).all()
    standin.configure()


def test_from_c_with_each_call_failing(standin: StandIn, queue: pinning.Queue) -> None:
    host = noise((36, BLOCK))
    native = c_api.Map("cuda:0")
    sizes = numpy.full(36, BLOCK, numpy.uint64)
    offsets = numpy.arange(36, dtype=numpy.uint64) * numpy.uint64(BLOCK)
    with pinning.alloc(36 * BLOCK, device="cuda:0") as there, pinning.lock(host[:32], device="cuda:0"):
        batch = numpy.uint64(there.ptr) + offsets, numpy.uint64(host.ctypes.data) + offsets, sizes
        refusals = 0
        for refused in failing_in_turn(standin, lambda: native.copy_batch(*batch)):
            refusals += refused is not None
            region = pinning.find(host[:32], device="cuda:0")
            assert region is not None and region.references == 1  # nothing of the copy is left
        assert refusals > 3
        back = numpy.zeros_like(host)
        pinning.copy(back, there, queue=queue)
        assert (back == host).all()


@pytest.mark.parametrize("half", ["locked", "pinned by others", "pageable"])
def test_one_range_from_c_with_each_call_failing(standin: StandIn, queue: pinning.Queue, half: str) -> None:
    host = noise((2, 12 << 20))
    native = c_api.Map("cuda:0")
    device = pinning.device("cuda:0")
    with pinning.alloc(host.nbytes, device="cuda:0") as there:
        lock = pinning.lock(host[0], device="cuda:0") if half == "locked" else None
        if half == "pinned by others":
            device.data_lock(host[0].ctypes.data, host[0].nbytes, False)
        plan = pinning.explain(there, host, queue=queue)
        copy = native.copy_async(there.ptr, host.ctypes.data, host.nbytes, queue.handle)
        assert (copy.path, copy.reason) == (plan.path, plan.reason_code)
        copy.wait()
        regions = pinning.regions("cuda:0")
        for _ in failing_in_turn(standin, lambda: native.copy(there.ptr, host.ctypes.data, host.nbytes)):
            assert pinning.regions("cuda:0") == regions  # nothing of the copy is left
        back = numpy.zeros_like(host)
        native.copy_async(back.ctypes.data, there.ptr, host.nbytes).wait()  # in the default stream
        assert (back == host).all()
        if half == "pinned by others":
            device.data_unlock(host[0].ctypes.data)
        if lock:
            lock.unlock()


def test_each_call_failing_leaves_the_queue_usable(standin: StandIn, queue: pinning.Queue) -> None:
    host = noise((32, BLOCK))
    array = noise((4, BLOCK), 7)
    with pinning.alloc(36 * BLOCK, device="cuda:0") as there, pinning.lock(host, device="cuda:0"):
        sources = [*host, *array]
        places = [there.ptr + i * BLOCK for i in range(36)]
        for _ in failing_in_turn(standin, lambda: pinning.copy_batch(places, sources, queue=queue)):
            with suppress(VendorError):  # the unreported error of a query
                queue.synchronize()
        back = numpy.zeros((36, BLOCK), numpy.uint8)
        pinning.copy(back, there, queue=queue)
        assert (back == numpy.concatenate([host, array])).all()
    assert pinning.regions("cuda:0") == []


def test_blocks_that_are_refused_again_and_again_take_no_room(
    standin: StandIn, queue: pinning.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinning.copies.costs, "stage_to_device", 1 << 20)
    monkeypatch.setattr(pinning.copies.costs, "staging_bytes", 4 << 20)
    host = noise((2 << 20,))
    with pinning.alloc(host.nbytes, device="cuda:0") as there:
        mapped: list[int] = []
        for _ in range(20):
            pinning.copies.trim_staging()
            standin.configure("fail=cuMemHostRegister:1:2;fail=cuMemHostAlloc:1:2")
            assert pinning.copy(there, host, queue=queue).path == "plain"
            mapped.append(int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE)
        assert mapped[-1] < mapped[1] + 2 * pinning.copies.costs.staging_bytes
        standin.configure()
        assert pinning.copy(there, host, queue=queue).path == "staged"


def test_pinned_lists_that_the_driver_keeps_are_freed_later(standin: StandIn, queue: pinning.Queue) -> None:
    host, order = noise((64, BLOCK)), numpy.arange(64)
    with pinning.alloc(host.nbytes, device="cuda:0") as there, pinning.lock(host, device="cuda:0"):
        pinning.copies.trim_staging()
        pinning.copy_blocks(there, order, host, order, BLOCK, queue=queue, engine="kernel")
    standin.configure("fail=cuMemFreeHost:1:999")
    with pytest.raises(VendorError, match="cuMemFreeHost"):
        pinning.copies.trim_staging()
    standin.configure()
    assert pinning.copies.trim_staging() >= 16 << 10


def test_from_how_many_items_on_a_kernel_copies_them(queue: pinning.Queue) -> None:
    host = noise((64, 16))
    with pinning.alloc(host.nbytes, device="cuda:0") as there, pinning.lock(host, device="cuda:0"):
        for count in range(2, 64):
            places = [there.ptr + 16 * i for i in range(count)]
            (group,) = pinning.explain_batch(places, list(host[:count]), queue=queue).groups
            by_kernel = count >= pinning.copies.costs.kernel_from_items
            assert group.reason_code is (Reason.KERNEL if by_kernel else Reason.ENGINES), count

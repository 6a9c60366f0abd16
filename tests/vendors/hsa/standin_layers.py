# SPDX-License-Identifier: Apache-2.0
"""The layers above the plugin on an HSA GPU: allocations, queues, pools, and copies on each path."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy
import pytest

import pinning
from noise import noise
from pinning import MemoryKind, PinningError
from pinning.copies import CopyPath, costs, trim_staging
from pinning_hsa import HsaDevice, plugin
from standins.libhsa import live
from standins.standin import StandIn

GPU = plugin.device(0)
MIB = 1 << 20


@pytest.fixture
def device(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[HsaDevice]:
    """A device whose copies are staged from 1 MiB on, through a small ring."""
    for name, value in {"stage_to_device": MIB, "stage_to_host": MIB, "ring_bytes": 2 * MIB, "threads": 2}.items():
        monkeypatch.setattr(costs, name, value)
    yield GPU
    gc.collect()
    trim_staging()


def test_an_allocation_is_known_and_freed(device: HsaDevice) -> None:
    with pinning.alloc(1000, MemoryKind.HOST, device=device) as host, pinning.alloc(1000, device=device) as there:
        numpy.asarray(host)[:] = 7
        assert pinning.is_locked(numpy.asarray(host), device=device)
        info = pinning.memory_info(there.ptr + 999)
        assert info and (info.base, info.size, info.kind, info.device) == (there.ptr, 1000, MemoryKind.DEVICE, device)
    assert live()["allocations"] == 0
    with pytest.raises(PinningError, match="SHARED"):
        pinning.alloc(1000, MemoryKind.SHARED, device=device)


@pytest.mark.parametrize(
    ("size", "locked", "path"),
    [(3 * MIB + 5, False, CopyPath.STAGED), (1000, False, CopyPath.PLAIN), (3 * MIB + 5, True, CopyPath.DIRECT)],
)
@pytest.mark.parametrize("order", ["in_order", "out_of_order"])
def test_bytes_go_there_and_come_back(device: HsaDevice, size: int, locked: bool, path: CopyPath, order: str) -> None:
    source, target = noise(size), numpy.zeros(size, numpy.uint8)
    with pinning.Queue(device, order) as queue, pinning.alloc(size, device=device) as there:  # type: ignore[arg-type]
        locks = [pinning.lock(array, device=device) for array in (source, target)] if locked else []
        to = pinning.copy_async(there, source, queue=queue)
        back = pinning.copy_async(target, there, queue=queue, wait_for=[to])
        back.wait()
        assert (to.path, back.path) == (path, path)
        assert to.done()
        for lock in locks:
            lock.unlock()
    assert (target == source).all()


def test_work_of_python_in_its_turn(device: HsaDevice) -> None:
    done: list[int] = []
    with pinning.Queue(device) as queue:
        event = queue.call(lambda: done.append(1))
        failing = queue.call(lambda: done[7])  # type: ignore[arg-type,return-value]
        queue.call(lambda: done.append(2)).wait()
        event.wait()
        with pytest.raises(IndexError):
            failing.wait()
        assert queue.record().elapsed(event) >= 0
    assert done == [1, 2]


def test_a_queue_waits_for_one_of_the_hosts(device: HsaDevice) -> None:
    done: list[int] = []
    with pinning.Queue("host:0") as other, pinning.Queue(device) as queue:
        first = other.call(lambda: done.append(1))
        queue.call(lambda: done.append(2), wait_for=[first]).wait()
    assert done == [1, 2]


def test_a_pool_uses_a_block_again_in_the_order_of_its_queue(device: HsaDevice) -> None:
    with (
        pinning.Context(device) as context,
        pinning.Pool(context, zero_initialize=True) as pool,
        pinning.Queue(device) as queue,
    ):
        first, _ = queue.alloc(5000, pool=pool)
        pinning.copy_async(first, noise(5000), queue=queue)
        queue.free(first)
        again, ready = queue.alloc(5000, pool=pool)
        assert again.ptr == first.ptr
        target = numpy.ones(5000, numpy.uint8)
        pinning.copy_async(target, again, queue=queue, wait_for=[ready]).wait()
        assert not target.any()
        queue.free(again).wait()

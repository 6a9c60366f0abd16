# SPDX-License-Identifier: Apache-2.0
"""Objects of a shared store on a real GPU: a copy reads what was there when it was begun."""

from __future__ import annotations

import gc
import logging
import mmap
import os
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
from numpy.typing import NDArray

import pinning
from pinning.conformance.faults import eventually
from pinning.locking.store import ObjectLocks
from pinning.plugin import CopyDevice

MIB = 1 << 20
SIZE = 32 * MIB


@pytest.fixture
def gpu(real_gpu: CopyDevice) -> Iterator[CopyDevice]:
    yield real_gpu
    pinning.budget(1.0, idle=False)


@pytest.fixture
def memory() -> Iterator[NDArray[numpy.uint8]]:
    path = Path("/dev/shm") / f"plasma-test-{os.getpid()}"
    try:
        with path.open("w+b") as file:
            file.truncate(4 * SIZE)
            yield numpy.frombuffer(mmap.mmap(file.fileno(), 0), numpy.uint8)
    finally:
        path.unlink()


@pytest.fixture
def locks(gpu: CopyDevice) -> Iterator[ObjectLocks]:
    made = ObjectLocks(lambda: gpu, MIB, "plasma", logging.getLogger("store"))
    before = pinning.budget().used
    yield made
    made.close()
    gc.collect()
    assert eventually(lambda: pinning.budget().used == before)


def use(locks: ObjectLocks, part: NDArray[numpy.uint8]) -> NDArray[numpy.uint8]:
    (view,) = locks.use(part, [part])
    return numpy.asarray(view)


def test_an_object_is_kept_until_the_gpu_has_read_it(
    gpu: CopyDevice, locks: ObjectLocks, memory: NDArray[numpy.uint8]
) -> None:
    torch: Any = pytest.importorskip("torch", reason="needs torch, for a copy that is not ours")
    memory[:SIZE] = 1
    there = torch.zeros(SIZE, dtype=torch.uint8, device="cuda:0")
    whole = memory[:SIZE]
    kept = weakref.ref(whole)
    array = use(locks, whole)
    assert eventually(partial(pinning.is_locked, array, device=gpu))
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(300_000_000)  # cycles of the GPU's clock, so that the copy starts late
        there.copy_(torch.from_numpy(array), non_blocking=True)
    del array, whole
    gc.collect()
    assert eventually(lambda: kept() is None)
    memory[:SIZE] = 2  # the next object in its place
    torch.cuda.synchronize()
    assert bool((there == 1).all())


def test_turns_under_a_budget(gpu: CopyDevice, locks: ObjectLocks, memory: NDArray[numpy.uint8]) -> None:
    taken = pinning.budget()
    pinning.budget(taken.used + taken.external + 2 * SIZE + MIB)
    for number in range(4):
        memory[number * SIZE : (number + 1) * SIZE] = number + 1
    back = numpy.empty(SIZE, numpy.uint8)
    with pinning.alloc(SIZE, device=gpu) as there, pinning.Queue(gpu) as queue:
        for turn in range(12):
            number = turn % 4
            part = memory[number * SIZE : (number + 1) * SIZE]
            if turn % 3:  # a lock refused while others were in use is tried again at the next use
                assert eventually(lambda part=part: pinning.is_locked(use(locks, part), device=gpu))
            array = use(locks, part)
            copy = pinning.copy_async(there, array, queue=queue)
            del array
            copy.wait()
            del copy
            pinning.copy(back, there, queue=queue)
            assert (back == number + 1).all(), turn
            assert pinning.budget().used <= taken.used + 2 * SIZE + MIB

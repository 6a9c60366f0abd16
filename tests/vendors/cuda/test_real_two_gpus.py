# SPDX-License-Identifier: Apache-2.0
"""Two real GPUs of one host: one array locked for both, its halves copied to each, pools and queues across them."""

from __future__ import annotations

import numpy
import pytest

import pinning
from fake_device import in_threads
from noise import noise
from pinning import PartialOverlapError

MIB = 1 << 20
NAMES = ("cuda:0", "cuda:1")


@pytest.fixture(autouse=True)
def two_gpus() -> None:
    for name in NAMES:
        try:
            pinning.device(name)
        except pinning.PluginUnavailableError as error:
            pytest.skip(f"needs two NVIDIA GPUs: {error}")


def is_pinned(array: numpy.ndarray) -> bool:
    """Whether the array is pinned, on which both GPUs must agree."""
    answers = {pinning.device(name).is_pinned_ptr(array.ctypes.data) is not None for name in NAMES}
    assert len(answers) == 1
    return answers.pop()


@pytest.mark.parametrize("locked", [True, False])
def test_halves_to_each_at_once_and_back(locked: bool) -> None:
    array, back = noise(256 * MIB + 2), numpy.zeros(256 * MIB + 2, numpy.uint8)
    half = array.nbytes // 2
    locks = [pinning.lock(each, device=name) for each in (array, back) for name in NAMES] if locked else []
    queues = [pinning.Queue(name) for name in NAMES]
    there = [pinning.alloc(half, device=name) for name in NAMES]
    for which in (0, 1):
        part = slice(which * half, (which + 1) * half)
        out = pinning.copy_async(there[which], array[part], queue=queues[which])
        home = pinning.copy_async(back[part], there[which], queue=queues[which])
        assert (out.path == home.path == "direct") == locked
    for queue in queues:
        queue.synchronize()
    assert (back == array).all()
    for lock in reversed(locks):
        lock.unlock()
    assert not is_pinned(array)
    for each in (*there, *queues):
        each.free() if isinstance(each, pinning.Allocation) else each.close()


def test_views_overlaps_and_threads() -> None:
    array = noise(16 * MIB)
    with pinning.locked(array[: 8 * MIB], device="cuda:0"), pytest.raises(PartialOverlapError):
        pinning.lock(array[4 * MIB :], device="cuda:1")

    def work(name: str) -> None:
        for at in range(100):
            with pinning.locked(array[at * 1000 : at * 1000 + 10] if at % 2 else array, device=name):
                assert is_pinned(array[at * 1000 :])

    with pinning.locked(array, device="cuda:0"):
        in_threads(work, NAMES * 2)
    assert not is_pinned(array)


def test_in_the_background_for_both() -> None:
    array = noise(256 * MIB)
    pending = [pinning.lock_async(array, device=name, unit=MIB) for name in NAMES]
    locks = [each.wait(timeout=120) for each in pending]
    locks[0].unlock()
    assert is_pinned(array)
    with pinning.alloc(array.nbytes, device="cuda:1") as there:
        pinning.copy(there, array)
    locks[1].unlock()
    assert not is_pinned(array)


def test_queues_and_pools_wait_for_each_other() -> None:
    array, back = noise(32 * MIB), numpy.zeros(32 * MIB, numpy.uint8)
    with pinning.Queue("cuda:0") as first, pinning.Queue("cuda:1") as second:
        block, allocated = first.alloc(array.nbytes)
        copied = pinning.copy_async(block, array, queue=first, wait_for=[allocated])
        other, allocated = second.alloc(array.nbytes)
        across = pinning.copy_async(other, block, queue=second, wait_for=[copied, allocated])
        first.free(block, wait_for=[across])
        pinning.copy_async(back, other, queue=second).wait()
        second.free(other)
        for queue in (first, second):
            queue.synchronize()
    assert (back == array).all()

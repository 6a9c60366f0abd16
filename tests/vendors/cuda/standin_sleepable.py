# SPDX-License-Identifier: Apache-2.0
"""Memory that keeps its addresses while it sleeps, on stand-in GPUs: of C's functions for torch, and of `alloc`."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from ctypes import c_int, c_size_t, c_ssize_t, c_void_p
from functools import partial
from typing import Any

import numpy
import pytest

import pinning
from c_api import LIBRARY
from child_process import run_in_child
from fake_device import Background
from noise import noise
from pinning import InvalidRangeError, OutOfMemoryError
from pinning.conformance.faults import each_failure, eventually
from pinning.copies import costs
from pinning.sleeping import Memory, Parked
from pinning_cuda import CudaDevice, plugin
from standins.libcuda import DRIVER, FAULTS
from standins.standin import StandIn

MIB = 1 << 20
_lib = ctypes.CDLL(str(LIBRARY))
_lib.pinning_sleepable_alloc.argtypes, _lib.pinning_sleepable_alloc.restype = [c_ssize_t, c_int, c_void_p], c_void_p
_lib.pinning_sleepable_free.argtypes = [c_void_p, c_size_t, c_int, c_void_p]
_lib.pinning_last_error.restype = ctypes.c_char_p
for each in (_lib.pinning_sleep, _lib.pinning_wake):
    each.argtypes = [c_void_p, c_int]
GPU: CudaDevice = plugin.device(1)


def live(what: str) -> int:
    count: Callable[[bytes], int] = ctypes.CDLL(DRIVER.soname).standin_virtual
    return count(what.encode())


@pytest.fixture(autouse=True)
def nothing_is_left(standin: StandIn) -> Iterator[None]:
    yield
    standin.configure()
    assert live("reserved") == live("memory") == 0


def alloc(size: int) -> int | None:
    return _lib.pinning_sleepable_alloc(size, 1, None)  # type: ignore[no-any-return]


def free(ptr: int) -> None:
    _lib.pinning_sleepable_free(ptr, 0, 1, None)


def test_sleep_waits_for_a_copy_that_another_thread_is_submitting(standin: StandIn) -> None:
    data = noise(MIB)
    with (
        pinning.alloc(MIB, device=GPU, sleepable=True) as memory,
        pinning.lock(data, device=GPU),
        pinning.Queue(GPU) as queue,
    ):
        standin.configure("delay=cuMemcpyAsync:60000")
        copying = Background(lambda: pinning.copy_async(memory, data, queue=queue))
        standin.wait_for("cuMemcpyAsync")
        asleep = pinning.sleeping.sleep_async(memory, keep=False)
        time.sleep(0.1)
        assert live("memory") == 1
        standin.configure()
        copying.result()
        asleep.wait()
        assert live("memory") == 0
        pinning.sleeping.wake(memory)


def test_it_wakes_at_its_address_and_its_memory_is_given_back_in_between() -> None:
    data, back = noise(3 * MIB), numpy.zeros(3 * MIB, numpy.uint8)
    ptr = alloc(data.size)
    assert ptr and pinning.memory_info(ptr).device is GPU  # type: ignore[union-attr]
    with pinning.Queue(GPU) as queue:
        for _ in range(2):
            pinning.copy(ptr, data, data.size, queue=queue)
            assert _lib.pinning_sleep(ptr, 1) == 0 == _lib.pinning_sleep(ptr, 1)
            assert live("memory") == 0 and live("reserved") == 1
            with pytest.raises(InvalidRangeError, match="asleep"):
                pinning.copy(ptr, data, data.size, queue=queue)
            assert _lib.pinning_wake(ptr, 1) == 0 == _lib.pinning_wake(ptr, 1)
            assert live("memory") == 1
            pinning.copy(ptr, data, data.size, queue=queue)
            pinning.copy(back, ptr, data.size, queue=queue)
            assert (back == data).all()
    free(ptr)


@pytest.mark.parametrize("awake", [True, False])
def test_it_is_freed_awake_and_asleep_after_all_work(standin: StandIn, awake: bool) -> None:
    ptr = alloc(1)
    assert ptr
    GPU.set_awake(ptr, awake)
    with pinning.Queue(GPU) as queue, pinning.alloc(8, device=GPU) as other:
        before = queue.call(lambda: None)
        pinning.copy_async(other, numpy.zeros(8, numpy.uint8), queue=queue)
        free(ptr)
        assert before.done() and queue.poll()


def test_other_gpus_that_the_process_uses_have_access(standin: StandIn) -> None:
    GPU.synchronize()
    plugin.device(3).synchronize()
    ptr = alloc(1)
    assert ptr and int(standin.calls("cuMemSetAccess")[0].split()[-1]) >= 2
    free(ptr)


def test_every_failure_leaves_everything_as_it_was(standin: StandIn) -> None:
    for n in range(1, 40):
        FAULTS.begin(fail=n)
        made = alloc(5)
        FAULTS.begin()
        assert live("reserved") == live("memory") == bool(made), n
        if made:
            free(made)
    ptr = alloc(5)
    assert ptr
    for awake in (False, True):
        GPU.set_awake(ptr, not awake)
        there, back = (partial(GPU.set_awake, ptr, each) for each in (awake, not awake))
        for failed, error in each_failure(FAULTS, there, back):
            assert live("memory") == (not awake), (failed, error)
    GPU.set_awake(ptr, False)
    standin.configure("fail=cuMemCreate:1:2")
    with pytest.raises(OutOfMemoryError):
        GPU.set_awake(ptr, True)
    GPU.set_awake(ptr, True)
    standin.configure("fail=cuMemUnmap:1:999;fail=cuMemAddressFree:1:999")
    free(ptr)
    assert live("memory") == 1
    free(ptr)
    assert live("memory") == 0 and live("reserved") == 1
    free(ptr)


def test_what_is_refused() -> None:
    for size in (0, -1, 1 << 62):
        assert not alloc(size)
    assert not _lib.pinning_sleepable_alloc(5, 99, None)
    for awake in (True, False):
        with pytest.raises(InvalidRangeError, match="no sleepable memory"):
            GPU.set_awake(MIB, awake)
    with pytest.raises(pinning.PinningError, match="NVIDIA GPUs have it"):
        pinning.device("host:0").set_awake(MIB, True)  # type: ignore[attr-defined]


# ---- of `alloc` ----


@pytest.fixture
def queue(standin: StandIn) -> Iterator[pinning.Queue]:
    with pinning.Queue(GPU) as queue:
        yield queue


@pytest.fixture
def memory(queue: pinning.Queue) -> Iterator[pinning.Allocation]:
    with pinning.alloc(3 * MIB + 5, device=GPU, sleepable=True) as memory:
        yield memory
    assert eventually(lambda: not regions())


def regions() -> int:
    gc.collect()
    return sum(len(pinning.regions(f"cuda:{number}")) for number in range(2))


def contents(memory: pinning.Allocation, queue: pinning.Queue) -> Any:
    back = numpy.zeros(memory.size, numpy.uint8)
    pinning.copy(back, memory, queue=queue)
    return back


def test_an_allocation_sleeps_and_wakes_with_its_contents_or_without(
    memory: pinning.Allocation, queue: pinning.Queue
) -> None:
    ptr, data = memory.ptr, noise(memory.size)
    pinning.copy(memory, data, queue=queue)
    for _ in range(2):
        pinning.sleeping.sleep(memory)
        pinning.sleeping.sleep(memory)
        assert live("memory") == 0 and pinning.memory_info(ptr).base == ptr  # type: ignore[union-attr]
        pinning.sleeping.wake(memory)
        pinning.sleeping.wake(memory)
        assert memory.ptr == ptr and (contents(memory, queue) == data).all()
    pinning.sleeping.sleep_async(memory, keep=False).wait()
    assert live("memory") == 0
    pinning.sleeping.wake_async(memory).wait()
    assert live("memory") == 1
    pinning.copy(memory, data, queue=queue)
    assert (contents(memory, queue) == data).all()


def test_allocations_sleep_independently_on_several_gpus(queue: pinning.Queue) -> None:
    with ExitStack() as stack:
        some = [stack.enter_context(pinning.alloc(1000 + i, device=f"cuda:{i % 2}", sleepable=True)) for i in range(4)]
        for i, each in enumerate(some):
            pinning.fill(each, i, queue=queue)
        pinning.sleeping.sleep(*some)
        assert live("memory") == 0
        pinning.sleeping.wake(some[2])
        assert live("memory") == 1 and (contents(some[2], queue) == 2).all()
        pinning.sleeping.wake(*some)
        assert all((contents(each, queue) == i).all() for i, each in enumerate(some))
    assert eventually(lambda: not regions())


@pytest.mark.parametrize("staged", [False, True])
def test_what_sleeps_is_neither_copied_nor_filled(
    monkeypatch: pytest.MonkeyPatch, memory: pinning.Allocation, queue: pinning.Queue, staged: bool
) -> None:
    for name in ("stage_to_device", "stage_to_host") if staged else ():
        monkeypatch.setattr(costs, name, 1000)
    monkeypatch.setattr(costs, "threads", max(2, costs.threads))
    c = alloc(MIB)
    assert c
    pinning.sleeping.sleep(memory)
    assert _lib.pinning_sleep(c, 1) == 0
    host, other = numpy.zeros(MIB, numpy.uint8), numpy.zeros(100, numpy.uint8)
    with pinning.lock(other, device=GPU), pinning.alloc(MIB, device=GPU) as awake:
        for asleep in (memory, memory.ptr, memory.ptr + 5, c + 100):
            for act in (
                lambda to, size: pinning.copy(to, host, size, queue=queue),
                lambda to, size: pinning.copy(host, to, size, queue=queue),
                lambda to, size: pinning.copy(other, to, min(size, 100), queue=queue),
                lambda to, size: pinning.copy(awake, to, size, queue=queue),
                lambda to, size: pinning.copy_batch([to, awake], [host, host], [size, size], queue=queue),
                lambda to, size: pinning.copy_2d(to, 10, host, 10, 10, 5, queue=queue),
                lambda to, size: pinning.copy_2d(host, 20, to, 20, 10, 5, queue=queue),
                lambda to, size: pinning.fill(to, 1, size, queue=queue),
            ):
                for size in (10, MIB // 2):
                    with pytest.raises(InvalidRangeError, match="asleep"):
                        act(asleep, size)
            pinning.copy(awake, host, queue=queue)
    with pytest.raises(InvalidRangeError, match="asleep"):
        pinning.memory_info(c)
    free(c)
    pinning.sleeping.wake(memory)
    pinning.fill(memory, 3, queue=queue)
    assert (contents(memory, queue) == 3).all()


def test_a_copy_beside_a_sleep_is_complete_or_refused(memory: pinning.Allocation, queue: pinning.Queue) -> None:
    ended, done = threading.Event(), [0]

    def copies() -> None:
        with pinning.Queue(GPU) as own:
            while not ended.is_set():
                with suppress(InvalidRangeError):
                    pinning.copy(memory, numpy.array([len(done)]), queue=own)
                    done.append(len(done))

    pinning.fill(memory, 0, queue=queue)
    copying = Background(copies)
    for _ in range(100):
        pinning.sleeping.sleep(memory)
        pinning.sleeping.wake(memory)
    ended.set()
    copying.result()
    assert contents(memory, queue)[:8].view(numpy.int64) == done[-1]


def test_after_an_error_an_allocation_is_as_it_was(
    standin: StandIn, memory: pinning.Allocation, queue: pinning.Queue
) -> None:
    data = noise(memory.size)
    pinning.copy(memory, data, queue=queue)
    standin.configure("fail=cuMemUnmap:1:999")
    with pytest.raises(pinning.VendorError):
        pinning.sleeping.sleep(memory)
    assert live("memory") == 1 and (contents(memory, queue) == data).all()
    standin.configure()
    pinning.sleeping.sleep(memory)
    standin.configure("fail=cuMemCreate:1:2")
    with pytest.raises(OutOfMemoryError):
        pinning.sleeping.wake(memory)
    assert live("memory") == 0
    pinning.sleeping.wake(memory)
    assert (contents(memory, queue) == data).all()


def test_parts_of_any_size_return_and_a_failure_half_way_leaves_all_asleep(
    standin: StandIn, queue: pinning.Queue
) -> None:
    sizes = [1, 257, 255, MIB + 3, 256, 2 * MIB - 1]
    places = [alloc(size) or 0 for size in sizes]
    memory = [
        Memory(GPU.name, partial(GPU.set_awake, ptr), partial(list, [(ptr, size)]))
        for ptr, size in zip(places, sizes, strict=True)
    ]
    parked = Parked()
    parked.prepare(memory[:2], limit=16 * MIB)
    for some in (memory[:2], memory[:4], memory):  # each needs more of the host than the one before
        data = [noise(size) for size in sizes[: len(some)]]
        for ptr, each in zip(places, data, strict=False):
            pinning.copy(ptr, each, each.size, queue=queue)
        parked.park(some, "own")
        for n in range(1, len(some) + 1):
            standin.configure(f"fail=cuMemCreate:{n}:2")
            with pytest.raises(OutOfMemoryError):
                parked.wake("own")
            assert parked.parked and live("memory") == len(memory) - len(some)
        standin.configure()
        parked.wake("own")
        for ptr, each in zip(places, data, strict=False):
            back = numpy.zeros_like(each)
            pinning.copy(back, ptr, each.size, queue=queue)
            assert (back == each).all()
    parked.release()
    for ptr in places:
        free(ptr)


def test_copies_are_staged_if_the_hosts_memory_cannot_be_locked(
    standin: StandIn, memory: pinning.Allocation, queue: pinning.Queue
) -> None:
    data = noise(memory.size)
    pinning.copy(memory, data, queue=queue)
    standin.configure("fail=cuMemHostRegister:1:999")
    for _ in range(2):
        pinning.sleeping.sleep(memory)
        pinning.sleeping.wake(memory)
        assert (contents(memory, queue) == data).all() and not regions()


def test_the_hosts_memory_goes_with_the_allocation() -> None:
    memory = pinning.alloc(MIB, device=GPU, sleepable=True, alignment=8 * MIB)
    pinning.sleeping.sleep(memory)
    assert memory.ptr % (8 * MIB) == 0 and eventually(lambda: regions() > 0)
    memory.free()
    assert live("reserved") == 0 and eventually(lambda: not regions())


def test_it_sleeps_after_the_work_on_it(memory: pinning.Allocation, queue: pinning.Queue) -> None:
    queue.call(lambda: time.sleep(0.1))
    pinning.fill_async(memory, 7, queue=queue)
    pinning.sleeping.sleep(memory)
    pinning.sleeping.wake(memory)
    assert (contents(memory, queue) == 7).all()


def test_which_allocations_cannot_sleep(memory: pinning.Allocation, queue: pinning.Queue) -> None:
    with pinning.alloc(5, device=GPU) as other:
        pinning.fill(other, 7, queue=queue)
        for act in (pinning.sleeping.sleep, pinning.sleeping.wake):
            with pytest.raises(InvalidRangeError, match="allocate it as sleepable"):
                act(other)
        assert (contents(other, queue) == 7).all()
    for act in (pinning.sleeping.sleep, pinning.sleeping.wake):
        with pytest.raises(InvalidRangeError, match="freed"):
            act(other)
        with pytest.raises(TypeError, match="no allocation"):
            act(memory.ptr)  # type: ignore[arg-type]
    for kind in ("host", "shared"):
        with pytest.raises(pinning.PinningError, match="cannot sleep"):
            pinning.alloc(5, kind, device=GPU, sleepable=True)
    with pytest.raises(pinning.PinningError, match="NVIDIA GPUs have it"):
        pinning.alloc(5, device="host", sleepable=True)


def test_a_forked_child_has_nothing_that_sleeps(memory: pinning.Allocation, queue: pinning.Queue) -> None:
    def child() -> None:
        for act in (pinning.sleeping.sleep, pinning.sleeping.wake):
            with pytest.raises(InvalidRangeError, match="freed"):
                act(memory)

    pinning.fill(memory, 4, queue=queue)
    run_in_child(child)
    pinning.sleeping.sleep(memory)
    run_in_child(child)
    pinning.sleeping.wake(memory)
    assert (contents(memory, queue) == 4).all()

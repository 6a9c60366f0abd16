# SPDX-License-Identifier: Apache-2.0
"""The ends of copies: every kind, whose memory it is, what keeps it alive, and what other threads do meanwhile."""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

import pinning
from exchange_tensors import ByCapsule, ByMethods, Older, Tensor
from fake_device import FOREIGN_OFFSET, WAIT, Background, Gate
from fake_memory import FakeMemoryDevice, FakeQueue
from mapped_memory import PAGE, Memory
from noise import noise
from pinning import ArgumentError, InvalidRangeError, MemoryKind, PartialOverlapError
from pinning.copies import Reason, costs
from pinning.copies.ends import end_of

SIZE = 1000


def bytes_at(ptr: int, size: int) -> bytes:
    return ctypes.string_at(ptr, size)


def test_all_devices_are_found_while_threads_look_at_the_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads look, each stopped at another device; then one of them is done."""

    class Stopping(FakeMemoryDevice):
        @property
        def vendor(self) -> str:
            gate = gates.get((threading.current_thread(), self.name))
            if gate is not None and not gate.reached.is_set():
                gate.reached.set()
                assert gate.opened.wait(WAIT)
            return super().vendor

    gates: dict[tuple[threading.Thread, str], Gate] = {}
    found = sys.modules["pinning.locking.devices"]
    made = [Stopping("aaa:0", held=False), Stopping("bbb:0", held=False)]
    for device in made:
        report = SimpleNamespace(name=device.vendor, plugin=None, devices=(device,), problem=None)
        monkeypatch.setitem(found.loaded, device.vendor, [report])  # type: ignore[attr-defined]
    pinning.plugins.cache_clear()
    pinning.plugins()
    start, memory = threading.Event(), [device.allocate(SIZE) for device in made]

    def look() -> list[object]:
        interface = {"shape": (SIZE,), "typestr": "|u1", "version": 3}
        arrays = [SimpleNamespace(__cuda_array_interface__={**interface, "data": (ptr, False)}) for ptr in memory]
        return [end_of(array).device for array in arrays]

    try:
        threads = []
        for device in reversed(made):
            thread = Background(lambda: start.wait(WAIT) and look())
            gate = gates[thread, device.name] = Gate()
            start.set()
            assert gate.reached.wait(WAIT)
            start.clear()
            threads.append(thread)
        gates[threads[0], "bbb:0"].open()
        assert threads[0].result() == made
        assert look() == made
        gates[threads[1], "aaa:0"].open()
        assert threads[1].result() == made
    finally:
        for device, ptr in zip(made, memory, strict=True):
            device.free(ptr, MemoryKind.DEVICE)
        monkeypatch.undo()
        pinning.plugins.cache_clear()


# ---- DLPack's C exchange API ----


@pytest.mark.parametrize("kind", [Tensor, Older])
def test_a_tensor_of_the_host_by_dlpack(device: FakeMemoryDevice, queue: pinning.Queue, kind: type[Tensor]) -> None:
    array = noise(800).view(numpy.float64).reshape(10, 10)
    with pinning.lock(kind(array), device=device) as lock, pinning.alloc(800, device=device) as there:
        assert (lock.ptr, lock.size) == (array.ctypes.data, 800)
        assert pinning.is_locked(kind(array), device=device)
        for same in (array, array.T):  # the same bytes in another order of dimensions
            copy = pinning.copy(there, kind(same), queue=queue)
            assert copy.path == "direct"
        assert bytes_at(there.ptr, 800) == array.tobytes()
        back = numpy.zeros_like(array)
        pinning.copy(kind(back), there, queue=queue)
        assert (back == array).all()
        with pytest.raises(InvalidRangeError, match="are not contiguous"):
            pinning.copy(there, kind(array[:, ::2]), 100, queue=queue)


def test_a_tensor_of_half_bytes_is_asked_otherwise(device: FakeMemoryDevice) -> None:
    array = noise(SIZE)
    tensor: Any = Tensor(array, odd=True)
    with pytest.raises(TypeError, match="is not a buffer"):
        pinning.lock(tensor, device=device)
    tensor.data_ptr, tensor.nbytes = (lambda: array.ctypes.data), SIZE
    with pinning.lock(tensor, device=device) as lock:
        assert (lock.ptr, lock.size) == (array.ctypes.data, SIZE)


def test_a_tensor_of_a_device_is_not_locked(device: FakeMemoryDevice) -> None:
    tensor: Any = Tensor(noise(SIZE), (2, 0))
    tensor.data_ptr, tensor.nbytes, tensor.is_cuda = (lambda: 4096), SIZE, True
    with pytest.raises(InvalidRangeError, match="device memory"):
        pinning.lock(tensor, device=device)


# ---- DLPack in Python ----


@pytest.mark.parametrize("kind", [ByCapsule, ByMethods])
@pytest.mark.parametrize("whose", [(14, 0), (2, 98)])  # of no GPU that there is: the address tells
def test_an_array_of_a_device_that_says_so_to_python(
    device: FakeMemoryDevice, queue: pinning.Queue, kind: type[ByCapsule], whose: tuple[int, int]
) -> None:
    array = noise(800).view(numpy.float64).reshape(10, 10)
    with pinning.alloc(800, device=device) as memory:
        theirs = kind(array, memory.ptr, whose)
        assert pinning.copy(theirs, array, queue=queue).path == "plain"
        assert bytes_at(memory.ptr, 800) == array.tobytes()
        back = numpy.zeros_like(array)
        pinning.copy(back.T, kind(array.T, memory.ptr, whose), queue=queue)
        assert (back == array).all()
        with pytest.raises(InvalidRangeError, match="are not contiguous"):
            pinning.copy(back, kind(array[:, ::2], memory.ptr, whose), 100, queue=queue)
        with pytest.raises(InvalidRangeError, match=r"device memory .* needs no lock"):
            pinning.lock(theirs, device=device)
    absent = whose[0], 99
    for nowhere in (kind(array, 4096, absent), kind(array, int(array.ctypes.data), absent)):
        with pytest.raises(InvalidRangeError, match="which no plugin supports"):
            pinning.copy(back, nowhere, queue=queue)


def test_a_capsule_of_another_device_than_its_array_names(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    class OfTheHost(ByCapsule):
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    array = noise(800)
    with pinning.alloc(800, device=device) as memory:
        theirs = OfTheHost(array, memory.ptr)
        with pytest.raises(InvalidRangeError, match=r"says that its DLPack device type is 1, and its capsule"):
            pinning.copy(theirs, array, queue=queue)
        with pytest.raises(InvalidRangeError, match="its capsule"):
            pinning.lock(theirs, device=device)


def test_an_array_that_is_kept_by_its_capsule(device: FakeMemoryDevice) -> None:
    device.held = True
    array = noise(800).view(numpy.float64)
    with pinning.Queue(device) as queue, pinning.alloc(1600, device=device) as memory:
        theirs = ByCapsule(array, memory.ptr)
        gone = weakref.ref(theirs)
        copy = pinning.copy_async(theirs, (memory.ptr + 800, 800), queue=queue)
        del theirs
        gc.collect()
        assert gone() is not None
        device.let_go()
        copy.wait()
        queue.synchronize()
        del copy
        gc.collect()
        assert gone() is None


# ---- other kinds ----


HOST_ENDS: dict[str, Callable[[numpy.ndarray[Any, Any]], object]] = {
    "array": lambda array: array,
    "a part at an offset": lambda array: numpy.concatenate([array, array])[:SIZE],
    "memoryview": lambda array: memoryview(array),
    "bytearray": lambda array: bytearray(array),
    "dimensions in another order": lambda array: array.reshape(10, 100).T,
    "address and size": lambda array: (int(array.ctypes.data), SIZE),
    "NumPy's numbers": lambda array: (numpy.uint64(array.ctypes.data), numpy.int32(SIZE)),
    "array interface": lambda array: SimpleNamespace(__array_interface__=array.__array_interface__),
    "tensor": lambda array: Tensor(array),
}


@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize("kind", HOST_ENDS)
def test_every_kind_of_host_memory(device: FakeMemoryDevice, queue: pinning.Queue, kind: str, locked: bool) -> None:
    array = noise(SIZE)
    end = HOST_ENDS[kind](array)
    with pinning.alloc(SIZE, device=device) as there:
        lock = pinning.lock(end, device=device) if locked else None
        copy = pinning.copy(there, end, queue=queue)
        assert copy.path == ("direct" if locked else "plain")
        plan = pinning.explain(there, end, queue=queue)
        assert (plan.reason, plan.reason_code) == (copy.reason, Reason.LOCKED if locked else Reason.SMALL)
        assert bytes_at(there.ptr, SIZE) == array.tobytes()
        pinning.fill(there, 7, queue=queue)
        pinning.copy(end, there, queue=queue)
        with pinning.lock(end, device=device) as now:
            assert bytes_at(now.ptr, SIZE) == b"\7" * SIZE
        if lock is not None:
            assert pinning.copy(there, lock, queue=queue).path == "direct"
            lock.unlock()


@pytest.mark.parametrize("kind", [MemoryKind.DEVICE, MemoryKind.SHARED, MemoryKind.HOST])
def test_an_address_of_ours_keeps_the_allocation(device: FakeMemoryDevice, kind: MemoryKind) -> None:
    device.held = True
    array = noise(SIZE)
    with pinning.Queue(device) as queue:
        there = pinning.alloc(SIZE, kind, device=device)
        asked = device.vendor_calls.count("memory_info")
        with pinning.lock(array, device=device), pinning.alloc(SIZE, device=device) as other:
            source = other if kind is MemoryKind.HOST else array
            copy = pinning.copy_async(there.ptr + 100, source, 500, queue=queue)
            assert device.vendor_calls.count("memory_info") == asked, "our own tables know"
            with pytest.raises(pinning.StillInUseError):
                there.free()
            device.let_go()
            copy.wait()
            queue.synchronize()
        there.free()


@pytest.mark.parametrize("kind", [MemoryKind.DEVICE, MemoryKind.HOST])
def test_an_address_of_ours_reaches_to_the_end_of_its_allocation(
    device: FakeMemoryDevice, queue: pinning.Queue, kind: MemoryKind, tmp_path: Path
) -> None:
    array = noise(SIZE)
    (tmp_path / "file").write_bytes(array.tobytes())
    with pinning.alloc(SIZE, kind, device=device) as memory, pinning.alloc(SIZE, kind, device=device) as other:
        pinning.fill(memory, 0, queue=queue)
        part = memory.ptr + SIZE - 100
        calls: list[Callable[[int], object]] = [
            lambda size: pinning.copy((part, size), array[:size], queue=queue),
            lambda size: pinning.copy(part, array[:size], queue=queue),
            lambda size: pinning.copy(part, array, size, queue=queue),
            lambda size: pinning.copy(array[:size], part, queue=queue),
            lambda size: pinning.copy(other, part, size, queue=queue),
            lambda size: pinning.explain(part, array, size, queue=queue),
            lambda size: pinning.fill((part, size), 1, queue=queue),
            lambda size: pinning.fill(part, 1, size, queue=queue),
            lambda size: pinning.copy_2d(part, size - 50, array, 50, 50, 2, queue=queue),
            lambda size: pinning.copy_2d(array, 50, part, size - 50, 50, 2, queue=queue),
            lambda size: pinning.copy_batch([(other.ptr, 100), part], [array[:100], array[:size]], queue=queue),
            lambda size: pinning.copy_batch([array[:100], array], [other, part], [100, size], queue=queue),
            lambda size: pinning.copy_file(part, tmp_path / "file", nbytes=size, queue=queue),
        ]
        for call in calls:
            with pytest.raises(InvalidRangeError, match=r"(past the end of the|and the) allocation"):
                call(101)
            call(100)
        assert bytes_at(part, 100) == array[:100].tobytes()


def test_the_vendor_is_asked_for_the_region_in_question_alone(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    arrays = [noise(SIZE, seed) for seed in range(5)]
    device.foreign = {int(array.ctypes.data): SIZE for array in arrays}
    locks = [pinning.lock(array, device=device) for array in arrays]
    assert locks[0].device_ptr == int(arrays[0].ctypes.data) + FOREIGN_OFFSET
    with pinning.alloc(SIZE, device=device) as there:
        calls = len(device.calls)
        assert pinning.copy(there, arrays[2], queue=queue).path == "direct"
        asked = {call.ptr for call in device.calls[calls:]}
        assert asked == {int(arrays[2].ctypes.data)}
        del device.foreign[int(arrays[2].ctypes.data)]  # its owner unpins it
        assert pinning.copy(there, arrays[2], queue=queue).path == "plain"
        assert not locks[2].held
        assert locks[1].held
    for lock in locks:
        lock.unlock()


@pytest.mark.parametrize("ptr", [0, None, -1, 1 << 64])
def test_an_array_that_has_no_address(device: FakeMemoryDevice, queue: pinning.Queue, ptr: Any) -> None:
    interface = {"data": (ptr, False), "shape": (10,), "typestr": "|u1", "version": 3}
    array = SimpleNamespace(__cuda_array_interface__=interface)
    with pinning.alloc(10, device=device) as there:
        for attempt in (
            lambda: pinning.copy_async(there, array, queue=queue),
            lambda: pinning.copy_async(array, there, queue=queue),
            lambda: pinning.fill_async(array, 1, queue=queue),
        ):
            with pytest.raises(InvalidRangeError, match=r"is null|not memory"):
                attempt()
        with pytest.raises(InvalidRangeError, match="not an address"):
            pinning.copy_async(there, ((1 << 64) - 5, 10), queue=queue)


@pytest.mark.parametrize(
    "interface", [5, {}, {"typestr": "zz"}, {"typestr": 4}, {"data": (4096,)}, {"shape": 3}], ids=str
)
def test_an_array_with_a_malformed_interface(device: FakeMemoryDevice, interface: Any) -> None:
    correct = {"data": (4096, False), "shape": (10,), "typestr": "|u1", "version": 3}
    array = SimpleNamespace(__cuda_array_interface__=interface if interface in (5, {}) else {**correct, **interface})
    with pinning.alloc(10, device=device) as there, pytest.raises(InvalidRangeError, match="is malformed"):
        pinning.copy(there, array)
    strict: list[dict[str, Any]] = [{"shape": (-3,)}, {"shape": ("a",)}, {"strides": (1, 2)}, {"stream": -1}]
    for each in (array, *[SimpleNamespace(__cuda_array_interface__={**correct, **wrong}) for wrong in strict]):
        with pytest.raises(InvalidRangeError, match="is malformed"):
            pinning.arrays.as_device_array(each)


class NumbaArray:
    """Like numba's device arrays: of a release whose pointer is an integer (`later`), or of an earlier one."""

    __cuda_ndarray__ = True
    asked = 0

    def __init__(self, ptr: int, shape: tuple[int, ...], strides: tuple[int, ...], later: bool) -> None:
        self.shape, self.strides, self.dtype = shape, strides, numpy.dtype("i4")
        self.gpu_data = SimpleNamespace(device_pointer=ptr if later else ctypes.c_uint64(ptr))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self.asked += 1
        pointer = self.gpu_data.device_pointer
        ptr = pointer if isinstance(pointer, int) else pointer.value
        return {"data": (ptr, False), "shape": self.shape, "strides": self.strides, "typestr": "<i4", "version": 3}


@pytest.mark.parametrize("later", [True, False])
def test_an_array_of_numbas(device: FakeMemoryDevice, queue: pinning.Queue, later: bool) -> None:
    data, back = noise(240).view("i4").reshape(6, 10), numpy.zeros((6, 10), "i4")
    with pinning.alloc(240, device=device) as there:
        array = NumbaArray(there.ptr, (6, 10), (40, 4), later)
        pinning.copy(array, data, queue=queue)
        pinning.copy(back, array, queue=queue)
        assert (back == data).all()
        assert (array.asked == 0) is later
        columns = NumbaArray(there.ptr, (6, 5), (40, 8), later)
        with pytest.raises(InvalidRangeError, match="are not contiguous"):
            pinning.copy(columns, data[:, :5], queue=queue)
        with pytest.raises(InvalidRangeError):
            pinning.copy(NumbaArray(0, (0, 5), (20, 4), later), back, queue=queue)


# ---- a Lock as an end ----


def test_a_lock_as_an_end_keeps_the_buffer(device: FakeMemoryDevice) -> None:
    device.held = True
    array = noise(SIZE)
    expected, gone = array.tobytes(), weakref.ref(array)
    with pinning.Queue(device) as queue, pinning.alloc(SIZE, device=device) as there:
        lock = pinning.lock(array, device=device)
        copy = pinning.copy_async(there, lock, queue=queue)
        lock.unlock()
        del array
        gc.collect()
        assert gone() is not None
        assert len(device.locked) == 1
        device.let_go()
        copy.wait()
        queue.synchronize()
        assert bytes_at(there.ptr, SIZE) == expected
        assert gone() is None
        assert device.locked == {}
        with pytest.raises(InvalidRangeError, match="copy the buffer itself"):
            pinning.copy_async(there, lock, queue=queue)


def test_an_address_of_memory_that_is_gone() -> None:
    memory, array = Memory(3), noise(3 * PAGE)
    lock = pinning.lock((memory.ptr, memory.size), device="host")
    memory.unmap(1)
    interface = {"data": (memory.ptr + PAGE, False), "shape": (PAGE,), "typestr": "|u1", "version": 3}
    outlived = SimpleNamespace(__cuda_array_interface__=interface)
    gone: list[tuple[Any, int]] = [(lock, 3), ((memory.ptr, memory.size), 3), ((memory.ptr + PAGE, PAGE), 1)]
    for each, pages in [*gone, (outlived, 1)]:
        with pytest.raises(InvalidRangeError, match="not mapped"):
            pinning.copy(array, each, pages * PAGE)
        with pytest.raises(InvalidRangeError, match="not mapped"):
            pinning.copy_2d(each, PAGE, array, PAGE, 8, pages)
        with pytest.raises(InvalidRangeError, match="not mapped"):
            pinning.fill(each, 1, pages * PAGE)
    with pinning.alloc(200, device="host") as there, pytest.raises(InvalidRangeError, match="not mapped"):
        pinning.copy(there, memory.ptr + PAGE - 100, 200)
    with pytest.raises(InvalidRangeError, match="not mapped"):
        pinning.copy_batch([array[:8], memory.ptr + 2 * PAGE], [memory.ptr + PAGE, array[8:16]], 8)
    with pytest.raises(InvalidRangeError, match="not mapped"):
        pinning.copy_blocks((memory.ptr, 3 * PAGE), [0, 1], array, [0, 1], PAGE)
    pinning.copy_blocks((memory.ptr, 3 * PAGE), [0, 2], array, [1, 2], PAGE)
    pinning.fill(memory.ptr + 2 * PAGE, 7, PAGE)
    assert bytes_at(memory.ptr, PAGE) == array[PAGE : 2 * PAGE].tobytes()
    assert bytes_at(memory.ptr + 2 * PAGE, PAGE) == b"\7" * PAGE
    pinning.copy(memory.ptr, array, PAGE)
    assert bytes_at(memory.ptr, PAGE) == array[:PAGE].tobytes()


def test_a_lock_of_what_is_read_only_is_not_written(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    with pinning.lock(bytes(SIZE), device=device) as lock, pinning.alloc(SIZE, device=device) as there:
        with pytest.raises(InvalidRangeError, match="read-only"):
            pinning.copy_async(lock, there, queue=queue)
        pinning.copy(there, lock, queue=queue)


def test_an_array_that_is_read_only_is_not_written(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    with pinning.alloc(100, device=device) as there, pinning.alloc(100, device=device) as other:
        interface = {"data": (there.ptr, True), "shape": (100,), "typestr": "|u1", "version": 3}
        array = SimpleNamespace(__cuda_array_interface__=interface)
        for attempt in (
            lambda: pinning.copy_async(array, other, queue=queue),
            lambda: pinning.copy_2d_async(array, 20, other, 20, 10, 5, queue=queue),
            lambda: pinning.copy_batch_async([array], [other], queue=queue),
            lambda: pinning.copy_blocks_async(array, [1], other, [0], 50, queue=queue),
            lambda: pinning.fill_async(array, 1, queue=queue),
        ):
            with pytest.raises(InvalidRangeError, match="read-only"):
                attempt()
        pinning.copy(other, array, queue=queue)


def test_copies_beside_a_thread_that_locks_and_unlocks(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    """No error, whatever is locked at the moment: all of the range, a part, or nothing."""
    array = noise(64 << 10)
    ended = False

    def lock_and_unlock() -> None:
        while not ended:
            for part in (array, array[1000:2000], array[:100]):
                with suppress(PartialOverlapError):  # a copy still holds an earlier lock
                    pinning.lock(part, device=device).unlock()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    other = Background(lock_and_unlock)
    try:
        with pinning.alloc(array.nbytes, device=device) as there:
            for _ in range(300):
                pinning.copy(there, array, queue=queue)
            assert bytes_at(there.ptr, array.nbytes) == array.tobytes()
    finally:
        ended = True
        sys.setswitchinterval(interval)
        other.result()


def locked_when_submitted(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], object], method: str = "copy") -> None:
    """Have `act` called, with the number of the call, just before the vendor checks a copy, as if by another thread."""
    vendors = getattr(FakeQueue, method)
    numbers = itertools.count()

    def copy(queue: FakeQueue, *arguments: int) -> None:
        act(next(numbers))
        vendors(queue, *arguments)

    monkeypatch.setattr(FakeQueue, method, copy)


def locked_at_first(
    monkeypatch: pytest.MonkeyPatch, part: Any, device: FakeMemoryDevice, method: str = "copy"
) -> list[pinning.Lock]:
    """Have a part locked just before the vendor checks the first copy; its lock comes into the list."""
    locks: list[pinning.Lock] = []

    def act(number: int) -> None:
        if number == 0:
            locks.append(pinning.lock(part, device=device))

    locked_when_submitted(monkeypatch, act, method)
    return locks


@pytest.mark.parametrize("to_device", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_a_part_is_locked_while_a_copy_is_submitted(
    device: FakeMemoryDevice, queue: pinning.Queue, monkeypatch: pytest.MonkeyPatch, to_device: bool, kept: bool
) -> None:
    """Also if nothing is locked any more when the copy is planned again."""
    array, other = noise(SIZE), noise(SIZE, 2)

    def forget(call: Any, *arguments: Any) -> None:
        try:
            check(call, *arguments)
        finally:
            if not kept:
                locks[0].unlock()

    check = FakeQueue._check_borders
    with pinning.alloc(SIZE, device=device) as there:
        pinning.copy(there, other, queue=queue)
        locks = locked_at_first(monkeypatch, array[100:200], device)
        monkeypatch.setattr(FakeQueue, "_check_borders", forget)
        copy = pinning.copy(there, array, queue=queue) if to_device else pinning.copy(array, there, queue=queue)
        assert copy.path == "plain"
        assert "in 3 parts" in copy.reason if kept else "parts" not in copy.reason
        assert bytes_at(there.ptr, SIZE) == array.tobytes() == (array if to_device else other).tobytes()
    assert sum(each.refused for each in device.queues) == 1
    locks[0].unlock()


def test_a_part_is_being_locked_while_a_copy_is_submitted(
    device: FakeMemoryDevice, queue: pinning.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendor has locked it, but the map does not show it yet."""
    array = noise(SIZE)
    locking: list[Background] = []
    locked, told = threading.Event(), threading.Event()
    lock_it = device.data_lock

    def slow_lock(*arguments: Any) -> int:
        device_ptr = lock_it(*arguments)
        locked.set()
        assert told.wait(60)
        return device_ptr

    def act(number: int) -> None:
        if number == 0:
            locking.append(Background(lambda: pinning.lock(array[100:200], device=device)))
            assert locked.wait(60)
            threading.Timer(0.05, told.set).start()

    monkeypatch.setattr(device, "data_lock", slow_lock)
    locked_when_submitted(monkeypatch, act)
    with pinning.alloc(SIZE, device=device) as there:
        assert "in 3 parts" in pinning.copy(there, array, queue=queue).reason
        assert bytes_at(there.ptr, SIZE) == array.tobytes()
    assert sum(each.refused for each in device.queues) == 1
    lock = locking[0].result()
    assert isinstance(lock, pinning.Lock)
    lock.unlock()


def test_a_refusal_while_nothing_is_locked_is_told_at_once(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    array = noise(SIZE)
    with pinning.alloc(SIZE, device=device) as there, pinning.lock(noise(SIZE), device=device):
        calls = device.vendor_calls.count("queue.copy")
        device.fail_call()
        with pytest.raises(pinning.VendorError, match="FAKE_FAILURE"):
            pinning.copy(there, array, queue=queue)
        assert device.vendor_calls.count("queue.copy") == calls + 1
        assert pinning.copy(there, array, queue=queue).path == "plain"


def test_a_copy_that_is_refused_for_ever(
    device: FakeMemoryDevice, queue: pinning.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = noise(SIZE)

    def act(number: int) -> None:
        pinning.lock(array[:100], device=device).unlock()
        raise pinning.VendorError("fakeCopy", 5, "FAKE_INVALID_VALUE")

    with pinning.alloc(SIZE, device=device) as there:
        with monkeypatch.context() as patched, pytest.raises(pinning.VendorError, match="INVALID_VALUE"):
            locked_when_submitted(patched, act)
            pinning.copy(there, array, queue=queue)
        assert pinning.copy(there, array, queue=queue).path == "plain"


def test_a_wait_list_is_gone_through_once(
    device: FakeMemoryDevice, queue: pinning.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is submitted a second time waits for the same events as the first time."""
    array = noise(SIZE)
    with pinning.alloc(SIZE, device=device) as there, pinning.Queue(device, order="out_of_order") as other:
        device.queues[0].held = True
        first = queue.submit(lambda vendor: vendor.fill(there.ptr, b"a", SIZE))
        locks = locked_at_first(monkeypatch, array[100:200], device)
        copy = pinning.copy_async(there, array, queue=other, wait_for=iter([first]))
        assert not copy.done()
        device.let_go()
        copy.wait()
        assert bytes_at(there.ptr, SIZE) == array.tobytes()
    locks[0].unlock()


def test_a_part_is_locked_while_rows_are_submitted(
    device: FakeMemoryDevice, queue: pinning.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = noise(10 * 100).reshape(10, 100)
    locks = locked_at_first(monkeypatch, array.reshape(-1)[330:700], device, "copy_2d")
    with pinning.alloc(10 * 40, device=device) as there:
        pinning.copy_2d(there, 40, array, 100, 40, 10, queue=queue)
        assert bytes_at(there.ptr, 400) == array[:, :40].tobytes()
    assert sum(each.refused for each in device.queues) == 1
    locks[0].unlock()


# ---- fills ----


@pytest.mark.parametrize("value", [4, numpy.uint8(4), numpy.int64(4), numpy.uint16(4), b"\4", bytearray(b"\4")])
def test_a_byte_of_any_kind(device: FakeMemoryDevice, queue: pinning.Queue, value: Any) -> None:
    with pinning.alloc(8, device=device) as there:
        pinning.fill(there, value, queue=queue)
        assert bytes_at(there.ptr, 8) == b"\4" * 8


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (1.0, TypeError),
        (numpy.float32(1), TypeError),
        (256, InvalidRangeError),
        (-1, InvalidRangeError),
        (numpy.uint16(300), InvalidRangeError),
        (b"abc", InvalidRangeError),
        (b"", InvalidRangeError),
    ],
)
def test_what_is_no_byte(device: FakeMemoryDevice, queue: pinning.Queue, value: Any, error: type[Exception]) -> None:
    array = numpy.zeros(12, numpy.uint8)
    with pinning.alloc(12, device=device) as there:
        for dst in (there, array):
            with pytest.raises(error, match="byte"):
                pinning.fill_async(dst, value, queue=queue)


# ---- rows ----


@pytest.mark.parametrize("to_device", [True, False])
@pytest.mark.parametrize("locked", [slice(None), slice(0, 450), slice(330, 700), slice(300, 308), slice(0, 0)])
def test_rows_across_the_borders_of_locks(
    device: FakeMemoryDevice, queue: pinning.Queue, to_device: bool, locked: slice
) -> None:
    host = noise(10 * 100).reshape(10, 100)
    part = host.reshape(-1)[locked]
    lock = pinning.lock(part, device=device) if part.size else None
    with pinning.alloc(10 * 40, device=device) as there:
        pinning.copy(there, noise(400, seed=2), queue=queue)
        before, device_before = host.copy(), bytes_at(there.ptr, 400)
        corner = int(host.ctypes.data) + 20, 9 * 100 + 40
        if to_device:
            pinning.copy_2d(there, 40, corner, 100, 40, 10, queue=queue)
            assert bytes_at(there.ptr, 400) == before[:, 20:60].tobytes()
            assert (host == before).all()
        else:
            pinning.copy_2d(corner, 100, there, 40, 40, 10, queue=queue)
            before[:, 20:60] = numpy.frombuffer(device_before, numpy.uint8).reshape(10, 40)
            assert (host == before).all()
    if lock is not None:
        lock.unlock()


def test_rows_of_the_host_are_measured_by_their_own_pitch(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    """With the pitch of the other side, the rows would reach beyond the array, into locked memory."""
    whole = noise(4000)
    with pinning.lock(whole[1000:], device=device), pinning.alloc(4000, device=device) as there:
        copy = pinning.copy_2d_async(whole[:1000], 100, there, 400, 100, 10, queue=queue)
        assert copy.path == "plain"
        copy.wait()


# ---- when a source may be read ----


def test_an_order_of_accesses_that_is_none(device: FakeMemoryDevice, queue: pinning.Queue) -> None:
    with pinning.alloc(SIZE, device=device) as there, pytest.raises(ArgumentError, match="src_access_order"):
        pinning.copy_async(there, noise(SIZE), SIZE, queue=queue, src_access_order="later")  # type: ignore[arg-type]


def test_a_lock_that_goes_while_a_copy_is_planned(
    device: FakeMemoryDevice, queue: pinning.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = noise(SIZE)
    lock = pinning.lock(array[SIZE // 2 :], device=device)
    is_pinned_ptr = device.is_pinned_ptr

    def unlocked_meanwhile(ptr: int) -> Any:
        lock.unlock()  # as another thread may
        return is_pinned_ptr(ptr)

    monkeypatch.setattr(costs, "stage_to_device", SIZE // 4)  # so that the vendor is asked
    monkeypatch.setattr(costs, "threads", 1)
    monkeypatch.setattr(device, "is_pinned_ptr", unlocked_meanwhile)
    with pinning.alloc(SIZE, device=device) as there:
        assert pinning.copy(there, array, queue=queue).path == "plain"
        assert bytes_at(there.ptr, SIZE) == array.tobytes()


# ---- references to Python objects ----


class Packed(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("tag", ctypes.c_char), ("thing", ctypes.py_object)]


class Either(ctypes.Union):
    _fields_ = [("number", ctypes.c_double), ("thing", ctypes.py_object)]


class Numbers(ctypes.Structure):
    _fields_ = [("One", ctypes.c_double), ("Other", ctypes.c_double)]


class Interface:
    def __init__(self, array: numpy.ndarray[Any, Any]) -> None:
        self.__array_interface__ = array.__array_interface__
        self.array = array


RECORDS = [("One", "f8"), ("thing", "O")]
REFERENCES: dict[str, Callable[[], Any]] = {
    "an array": lambda: numpy.array([None, None]),
    "an array of records": lambda: numpy.zeros(2, RECORDS),
    "a memoryview": lambda: memoryview(numpy.array([None, None])),
    "ctypes": lambda: (ctypes.py_object * 2)(None, None),
    "ctypes, nested": lambda: (ctypes.py_object * 2 * 2)(),
    "a packed structure": lambda: (Packed * 2)(),
    "a union": lambda: (Either * 2)(),
    "a derived structure": lambda: (type("Derived", (Packed,), {}) * 2)(),
    "an array interface": lambda: Interface(numpy.array([None, None])),
    "an array interface of records": lambda: Interface(numpy.zeros(2, RECORDS)),
}


@pytest.mark.parametrize("lock", [False, True], ids=["itself", "its lock"])
@pytest.mark.parametrize("make", REFERENCES.values(), ids=REFERENCES)
def test_references_to_python_objects_are_not_copied(make: Callable[[], Any], lock: bool, tmp_path: Path) -> None:
    buffer, file = make(), tmp_path / "file"
    file.write_bytes(b"A" * 64)
    with ExitStack() as stack:
        end = stack.enter_context(pinning.lock(buffer, device="host")) if lock else buffer
        size = pinning.lock(buffer, device="host")
        size.unlock()
        junk = numpy.full(size.size, 0x41, "u1")
        before = ctypes.string_at(size.ptr, size.size)
        for attempt in (
            lambda: pinning.copy(end, junk),
            lambda: pinning.copy(junk, end),
            lambda: pinning.copy_async(end, junk, 8),
            lambda: pinning.fill_async(end, 0x41),
            lambda: pinning.copy_batch([junk, end], [junk, junk]),
            lambda: pinning.copy_blocks_async(end, [0], junk, [0], 8),
            lambda: pinning.copy_2d_async(end, 8, junk, 8, 8, 1),
            lambda: pinning.copy_file(end, file, 0, 8),
            lambda: pinning.explain(end, junk),
        ):
            with pytest.raises(TypeError, match="holds Python objects"):
                attempt()
        assert ctypes.string_at(size.ptr, size.size) == before


@pytest.mark.parametrize(
    "records", [numpy.zeros(2, [("One", "f8"), ("Other", "f8")]), (Numbers * 2)()], ids=["numpy", "ctypes"]
)
def test_a_field_whose_name_has_an_o_is_no_reference(records: Any) -> None:
    for end in (records, memoryview(records)):
        pinning.copy(end, numpy.full(32, 0x41, "u1"))
    with pinning.lock(records, device="host") as lock:
        pinning.copy(lock, numpy.full(32, 0x42, "u1"))
    assert bytes(records) == b"B" * 32

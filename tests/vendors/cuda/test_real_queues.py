# SPDX-License-Identifier: Apache-2.0
"""Queues, events and kinds of memory against a real NVIDIA driver: what a stand-in cannot prove."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import own_process
from fake_device import Background
from noise import noise
from pinning.conformance.allocations import Allocations
from pinning.conformance.holding import Buffer, HeldQueue, host_bytes
from pinning.errors import VendorError
from pinning.plugin import MemoryKind
from pinning.plugin.native import NativeQueue
from pinning_cuda import CudaDevice
from standins.work import submit_all

HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED
MIB = 1 << 20


@pytest.fixture(scope="module")
def gpu(real_gpu: CudaDevice) -> CudaDevice:
    return real_gpu


@pytest.fixture
def queue(gpu: CudaDevice) -> Iterator[NativeQueue]:
    queue = gpu.make_queue()
    yield queue
    queue.synchronize()
    queue.close()


class Arrays(Allocations):
    def array(self, size: int, kind: MemoryKind = HOST) -> Any:
        """The host's view of HOST or SHARED memory, zeroed."""
        return numpy.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self(kind, bytes(size))))


@pytest.fixture
def memory(gpu: CudaDevice) -> Iterator[Arrays]:
    memory = Arrays(gpu)
    yield memory
    memory.free()


# ---- memory ----


def test_memory_that_work_uses_is_given_back_after_it(gpu: CudaDevice, queue: NativeQueue, memory: Arrays) -> None:
    source, there, order = memory.array(64 * MIB), gpu.allocate(64 * MIB), memory.array(1)
    for _ in range(10):
        queue.copy(there, source.ctypes.data, source.nbytes)
    queue.fill(order.ctypes.data, b"\1", 1)
    gpu.free(there)
    assert order[0] == 1


# ---- work ----


@pytest.mark.parametrize("size", [1, 4097, 64 * 1024, 20 * MIB + 3])
@pytest.mark.parametrize("locked", [False, True], ids=["pageable", "locked"])
@pytest.mark.parametrize("kind", MemoryKind, ids=lambda kind: kind.value)
def test_bytes_go_there_and_come_back(
    gpu: CudaDevice, queue: NativeQueue, memory: Arrays, kind: MemoryKind, locked: bool, size: int
) -> None:
    source, target, there = noise(size), numpy.zeros(size, dtype=numpy.uint8), memory(kind, bytes(size))
    pointers = (source.ctypes.data, target.ctypes.data) if locked else ()
    for ptr in pointers:
        gpu.data_lock(ptr, size, False)
    queue.copy(there, source.ctypes.data, size)
    queue.copy(target.ctypes.data, there, size)
    queue.synchronize()
    for ptr in pointers:
        gpu.data_unlock(ptr)
    assert (source == target).all()


@pytest.mark.parametrize("pageable", [False, True], ids=["pinned", "pageable"])
def test_rows(queue: NativeQueue, memory: Arrays, pageable: bool) -> None:
    size = 300 * 200
    source, target = (
        (noise(size), numpy.zeros(size, dtype=numpy.uint8)) if pageable else (memory.array(size), memory.array(size))
    )
    source[:] = noise(size)
    there = memory(DEVICE, bytes(100 * 200))
    queue.copy_2d(there, 100, source.ctypes.data, 300, 77, 200)
    queue.copy_2d(target.ctypes.data, 300, there, 100, 77, 200)
    queue.synchronize()
    expected = numpy.zeros((200, 300), dtype=numpy.uint8)
    expected[:, :77] = source.reshape(200, 300)[:, :77]
    assert (target.reshape(200, 300) == expected).all()


def test_a_copy_within_the_host_waits_for_the_work_before_it(queue: NativeQueue, memory: Arrays) -> None:
    source, target = memory.array(10), memory.array(10)
    source[:] = 5
    with HeldQueue(queue) as held:
        thread = threading.Thread(target=queue.copy, args=(target.ctypes.data, source.ctypes.data, 10))
        thread.start()
        time.sleep(0.05)
        assert thread.is_alive()
        held.release()
        thread.join()
        assert target.all()


def test_a_copy_across_the_border_of_a_lock_is_refused(gpu: CudaDevice, queue: NativeQueue, memory: Arrays) -> None:
    array, there = noise(MIB), memory(DEVICE, bytes(MIB))
    gpu.data_lock(array.ctypes.data, MIB // 2, False)
    with pytest.raises(VendorError) as raised:
        queue.copy(there, array.ctypes.data, MIB)
    assert (raised.value.call, raised.value.code) == ("cuMemcpyAsync", 1)
    gpu.data_unlock(array.ctypes.data)
    queue.copy(there, array.ctypes.data, MIB)


# ---- contexts ----


def submit_all_and_look(queue: NativeQueue, ptr: int, there: int) -> None:
    """Submit every kind of work, and copies of pageable memory; check what is there after it."""
    page = Buffer(bytes(64))
    submit_all(queue, ptr, there)
    queue.copy(there, page.ptr, 8)
    queue.copy(page.ptr, there, 8)
    queue.fill(there, b"\1\2\3\4", 2)
    queue.copy(ptr, there, 8)
    queue.synchronize()
    assert host_bytes(ptr, 8) == b"\1\2\3\4" * 2


@pytest.mark.parametrize("handle", [None, 0, 1, 2], ids=["own", "0", "1", "2"])
def test_threads_without_a_context(gpu: CudaDevice, memory: Arrays, handle: int | None) -> None:
    ptr, there = memory(HOST, bytes(64)), memory(DEVICE, bytes(64))
    queue = gpu.make_queue() if handle is None else gpu.adopt_queue(handle)

    def act() -> None:
        from cuda.bindings import driver as cuda

        submit_all_and_look(queue, ptr, there)
        assert int(cuda.cuCtxGetCurrent()[1]) == 0
        queue.close()

    Background(act).result()  # a thread that has not used CUDA


@pytest.mark.parametrize("handle", [None, 0, 1, 2], ids=["own", "0", "1", "2"])
def test_another_context_is_current_and_stays_so(gpu: CudaDevice, memory: Arrays, handle: int | None) -> None:
    from cuda.bindings import driver as cuda

    ptr, there = memory(HOST, bytes(64)), memory(DEVICE, bytes(64))
    theirs = made_context(cuda)
    try:
        queue = gpu.make_queue() if handle is None else gpu.adopt_queue(handle)
        submit_all_and_look(queue, ptr, there)
        queue.close()
        assert int(cuda.cuCtxGetCurrent()[1]) == int(theirs)
    finally:
        cuda.cuCtxDestroy(theirs)


def made_context(cuda: Any) -> Any:
    """Create a context, which becomes current, as a program may do for itself."""
    device = cuda.cuDeviceGet(0)[1]
    try:
        code, context = cuda.cuCtxCreate(None, 0, device)
    except TypeError:  # bindings of CUDA 12
        code, context = cuda.cuCtxCreate(0, device)
    assert code == 0
    return context


# ---- streams of other libraries ----


def test_a_stream_of_a_context_of_a_programs_own(gpu: CudaDevice, memory: Arrays) -> None:
    from cuda.bindings import driver as cuda

    ptr, there = memory(HOST, bytes(64)), memory(DEVICE, bytes(64))
    context = made_context(cuda)
    _, stream = cuda.cuStreamCreate(1)
    cuda.cuCtxPopCurrent()
    try:
        queue = gpu.adopt_queue(int(stream))
        ours = gpu.make_queue()
        submit_all_and_look(queue, ptr, there)
        ours.wait(queue.record())
        ours.synchronize()
        ours.close()
        queue.close()
    finally:
        cuda.cuCtxDestroy(context)


@pytest.mark.parametrize("library", ["torch", "cupy", "cuda.core"])
def test_streams_of_other_libraries(gpu: CudaDevice, memory: Arrays, library: str) -> None:
    module = pytest.importorskip(library)
    if library == "torch":
        stream = module.cuda.Stream()
        handle, wait = stream.cuda_stream, stream.synchronize
    elif library == "cupy":
        stream = module.cuda.Stream(non_blocking=True)
        handle, wait = stream.ptr, stream.synchronize
    else:
        device = module.Device(0)
        device.set_current()
        stream = device.create_stream()
        handle, wait = int(stream.handle), stream.sync
    ptr, there, target = memory(HOST, bytes(64)), memory(DEVICE, bytes(64)), memory.array(8)
    queue = gpu.adopt_queue(handle)
    submit_all_and_look(queue, ptr, there)
    with HeldQueue(queue):
        queue.copy(target.ctypes.data, there, 8)
        assert not queue.done()
    wait()
    assert bytes(target) == b"\1\2\3\4" * 2
    queue.close()
    wait()  # the stream still exists


def test_work_of_torch_and_ours_in_one_stream(gpu: CudaDevice, memory: Arrays) -> None:
    torch = pytest.importorskip("torch")
    target = memory.array(4 * MIB)
    for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
        queue = gpu.adopt_queue(stream.cuda_stream)
        with torch.cuda.stream(stream):
            for value in (1, 2, 3):
                tensor = torch.full((4 * MIB,), value, dtype=torch.uint8, device="cuda")
                queue.copy(target.ctypes.data, tensor.data_ptr(), 4 * MIB)
                queue.synchronize()
                assert (target == value).all()
        queue.close()


def test_cuda_core_takes_a_queue_of_ours(queue: NativeQueue, memory: Arrays) -> None:
    core = pytest.importorskip("cuda.core")
    target = memory.array(10)
    core.Device(0).set_current()  # for its events
    stream = core.Stream.from_handle(queue.handle)
    with HeldQueue(queue) as held:
        queue.fill(target.ctypes.data, b"\5", 10)
        event = stream.record()
        assert not event.is_done
        held.release()
        event.sync()
        assert target.all()


# ---- faults, each in a process of its own ----


def run(program: str) -> str:
    """Return the output of a program in its own interpreter, which must exit with 0 and write nothing to stderr."""
    begin = """
import os, sys
from pinning.errors import PinningError, VendorError
from pinning.plugin import MemoryKind
from pinning_cuda import plugin
gpu = plugin.device(0)
queue = gpu.make_queue()
"""
    return own_process.run(begin + program)


def test_a_kernel_that_fails_shows_in_every_wait(gpu: CudaDevice) -> None:
    pytest.importorskip("cupy")
    said = run("""
import cupy
bad = cupy.RawKernel('extern "C" __global__ void bad(int *p) { *p = 1; }', "bad")
there, ptr = gpu.allocate(64), gpu.allocate(64, MemoryKind.HOST)
queue.synchronize()
with cupy.cuda.ExternalStream(queue.handle):
    bad((1,), (1,), (16,))
event = queue.record()
for name, act in {
    "wait": event.wait, "done": event.done, "queue done": queue.done, "synchronize": queue.synchronize,
    "copy": lambda: queue.copy(there, ptr, 64), "record": queue.record, "free": lambda: gpu.free(there),
    "close": queue.close, "close again": queue.close, "device": gpu.synchronize,
}.items():
    try:
        act()
        print(name, "no error")
    except VendorError as error:
        print(name, error.code)
del event, act, name, queue
sys.stdout.flush()
os._exit(0)  # other libraries' ends are not ours to test
""")
    assert {line.rsplit(" ", 1)[1] for line in said.splitlines()} == {"700"}, said
    assert len(said.splitlines()) == 10


@pytest.mark.parametrize("end", ["", "queue.close()"])
def test_a_process_ends_with_work_pending(gpu: CudaDevice, end: str) -> None:
    run(f"""
events = [queue.record() for _ in range(3)]
size = 1 << 28
there, ptr = gpu.allocate(size), gpu.allocate(size, MemoryKind.HOST)
for _ in range(20):
    queue.copy(there, ptr, size)
gpu.adopt_queue(0).record()
{end}
""")

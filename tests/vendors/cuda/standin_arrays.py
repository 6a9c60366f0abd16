# SPDX-License-Identifier: Apache-2.0
"""Arrays on GPUs: what they tell other libraries, and which driver calls they make."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

import pinning
from pinning import InvalidRangeError, LayoutError, MemoryKind, arrays
from pinning.interop.dlpack import take_capsule
from pinning.memory import default_pool
from queue_work import holding
from standins.standin import StandIn


@pytest.fixture(autouse=True)
def given_back(standin: StandIn) -> Iterator[None]:
    """Free everything, so that the stand-in finds nothing left."""
    yield
    gc.collect()
    for name in ("cuda:0", "cuda:1"):
        arrays.synchronize(name)
        arrays.default_stream(name).close()
        for kind in MemoryKind:
            default_pool(pinning.device(name), kind).trim_to(0)
    gc.collect()


def numbers(*shape: int) -> Any:
    return numpy.arange(numpy.prod(shape), dtype=numpy.float32).reshape(shape)


def test_it_goes_there_and_comes_back(standin: StandIn) -> None:
    there = arrays.to_device(numbers(3, 4))
    assert there.device is pinning.device("cuda:0")
    there[1:, ::2] = arrays.to_device(numpy.full((2, 2), 7, "f4"))
    there[0] = 1.5
    expected = numbers(3, 4)
    expected[1:, ::2], expected[0] = 7, 1.5
    assert (there.copy_to_host() == expected).all()
    assert (there.T.ravel().copy_to_host() == expected.T.ravel()).all()


def test_the_interface_of_cuda(standin: StandIn) -> None:
    there = arrays.to_device(numbers(3, 4), device="cuda:1")
    assert there.__cuda_array_interface__ == {
        "shape": (3, 4),
        "typestr": "<f4",
        "descr": [("", "<f4")],
        "data": (there.device_ptr, False),
        "strides": None,
        "stream": None,
        "version": 3,
    }
    view = there[1:, ::2].__cuda_array_interface__
    assert (view["data"], view["shape"], view["strides"]) == ((there.device_ptr + 16, False), (2, 2), (16, 8))
    assert there[:0].__cuda_array_interface__["data"] == (0, False)
    assert arrays.is_device_array(there)

    class Other:
        __cuda_array_interface__ = view

    theirs = arrays.as_device_array(Other())
    assert theirs.device is pinning.device("cuda:1")
    assert (theirs.copy_to_host() == there[1:, ::2].copy_to_host()).all()
    theirs[0, 0] = 99
    assert there[1, 0] == 99


def test_the_stream_in_which_work_is_under_way_is_told(standin: StandIn) -> None:
    with arrays.stream("cuda") as stream, arrays.stream("cuda") as consumer:
        there = arrays.to_device(numbers(100))
        here = arrays.pinned_array_like(there)
        with holding(stream):
            there.copy_to_host(here, stream=stream)  # does nothing until the queue is released
            assert there.__cuda_array_interface__["stream"] == stream.handle
            for given, waits in ((consumer.handle, consumer.handle), (None, 1), (2, 2), (-1, None)):
                standin.configure()
                there.__dlpack__(stream=given)
                told = [int(call.split()[1], 16) for call in standin.calls("cuStreamWaitEvent")]
                assert told == ([] if waits is None else [waits])
            with pytest.raises(BufferError, match="ambiguous"):
                there.__dlpack__(stream=0)
            with pytest.raises(BufferError, match="stream is -2"):
                there.__dlpack__(stream=-2)
        stream.synchronize()
        assert there.__cuda_array_interface__["stream"] is None
        assert (here == numbers(100)).all()


def test_work_in_the_stream_of_an_interface_is_over_when_its_array_is_taken(standin: StandIn) -> None:
    with arrays.stream("cuda") as stream:
        there, zeros = arrays.to_device(numbers(100)), arrays.pinned_array(100, numpy.float32)
        zeros[:] = 0
        with holding(stream) as held:
            there.copy_to_device(zeros, stream=stream)
            pending = stream.record()
            interface = {**there.__cuda_array_interface__, "stream": stream.handle}
            assert not pending.done()
            threading.Timer(0.2, held.release).start()
            theirs = arrays.as_device_array(SimpleNamespace(__cuda_array_interface__=interface))
            assert pending.done()
        assert not theirs.copy_to_host().any()


def test_the_stream_that_is_told_comes_after_the_work_in_all(standin: StandIn) -> None:
    with arrays.stream("cuda") as one, arrays.stream("cuda") as other, arrays.stream("cuda") as consumer:
        there = arrays.to_device(numbers(100))
        here = arrays.pinned_array_like(there)
        with holding(one) as of_one, holding(other) as of_other:
            copies = []
            for stream in (one, other):
                there.copy_to_host(here, stream=stream)
                copies.append(stream.record())
            standin.configure()
            there.__dlpack__(stream=consumer.handle)
            told = [int(call.split()[1], 16) for call in standin.calls("cuStreamWaitEvent")]
            assert told == [consumer.handle] * 2
            first = [one.handle, other.handle].index(there.__cuda_array_interface__["stream"])
            after = (one, other)[first].record()
            (of_one, of_other)[first].release()
            copies[first].wait()
            assert not after.done()
        after.wait()


def test_what_a_copy_in_a_stream_reads_is_not_overwritten_before(standin: StandIn) -> None:
    with arrays.stream("cuda") as stream:
        source, to = arrays.to_device(numbers(100)), arrays.device_array(100, numpy.float32)
        with holding(stream) as held:
            to.copy_to_device(source, stream=stream)
            threading.Timer(0.2, held.release).start()
            source.copy_to_device(numpy.zeros(100, numpy.float32))
        assert (to.copy_to_host() == numbers(100)).all()
        assert not source.copy_to_host().any()


def test_a_staged_copy_in_a_stream_that_others_use_reads_in_its_turn(standin: StandIn) -> None:
    """It does not know what they have submitted there. (The driver's own copy of less has read it when it returns.)"""
    size = 12 << 20
    source, back = numpy.zeros(size, "u1"), numpy.zeros(size, "u1")
    write = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: ctypes.memset(source.ctypes.data, 1, size) and None)
    with pinning.Queue("cuda:0") as theirs, pinning.alloc(size, device="cuda:0") as there, holding(theirs) as held:
        theirs.submit(lambda vendor: vendor.call(ctypes.cast(write, ctypes.c_void_p).value, 0))
        threading.Timer(0.2, held.release).start()
        queue = arrays.external_stream(theirs.handle)
        pinning.copy_async(there, source, queue=queue).wait()
        pinning.copy(back, there, queue=queue)
        queue.close()
    assert back.all()


def test_dlpack_says_what_memory_it_is(standin: StandIn) -> None:
    there = arrays.to_device(numbers(3, 4), device="cuda:1")
    assert there.__dlpack_device__() == (2, 1)
    tensor = take_capsule(there[:, 1:].__dlpack__(max_version=(1, 0)))
    assert (tensor.ptr, tensor.shape, tensor.strides) == (there.device_ptr + 4, (3, 3), (4, 1))
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.read_only) == (2, 32, 1, False)
    copied = take_capsule(there.__dlpack__(copy=True))
    assert copied.ptr != there.device_ptr
    here = take_capsule(there.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    assert pinning.memory_info(here.ptr) is None
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    for options, flags in (({}, 0), ({"copy": True}, 2), ({"dl_device": (1, 0)}, 2)):  # 2: it is a copy
        capsule = there.__dlpack__(max_version=(1, 0), **options)
        assert ctypes.c_uint64.from_address(pointer_of(capsule, b"dltensor_versioned") + 24).value == flags
    with pytest.raises(BufferError, match="without a copy"):
        there.__dlpack__(dl_device=(1, 0), copy=False)


class Tensor:
    """A tensor of another library in memory of this package."""

    def __init__(self, kind: int, array: Any) -> None:
        self._kind, self._array = kind, array
        self.options: dict[str, Any] = {}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._kind, 1

    def __dlpack__(self, **options: Any) -> object:
        self.options = options
        options.pop("stream", None)
        return self._array.__dlpack__(max_version=(1, 0))


def test_tensors_of_others_are_taken_where_they_are(standin: StandIn) -> None:
    there = arrays.to_device(numbers(3, 4), device="cuda:1")
    theirs = arrays.as_device_array(Tensor(2, there.T))
    assert (theirs.device_ptr, theirs.strides, theirs.device) == (there.device_ptr, (4, 16), there.device)
    assert arrays.is_device_array(Tensor(2, there))
    managed = arrays.managed_array(5, "i4", device="cuda:1")
    managed[:] = 3
    theirs = arrays.as_device_array(Tensor(13, managed))
    assert (theirs.device_ptr, theirs.__dlpack_device__()) == (managed.device_ptr, (13, 1))
    assert theirs.copy_to_host().tolist() == [3] * 5
    pinned = arrays.pinned_array(5, "i4", device="cuda:1")
    pinned[:] = 4
    tensor = Tensor(3, pinned)
    assert not arrays.is_device_array(tensor)  # it is host memory
    theirs = arrays.as_device_array(tensor)
    assert theirs.device_ptr == pinned.ctypes.data
    theirs[1:] = 5
    assert pinned.tolist() == [4, 5, 5, 5, 5]
    with pytest.raises(InvalidRangeError, match="its capsule that it is 2"):
        arrays.as_device_array(Tensor(1, there))


@pytest.mark.parametrize("make", [arrays.mapped_array, arrays.managed_array])
def test_mapped_and_managed_arrays_are_told_of_too(standin: StandIn, make: Any) -> None:
    array = make((2, 3), "i4")
    array[:] = [[1, 2, 3], [4, 5, 6]]
    assert array[1:, 1:].__cuda_array_interface__["data"] == (array.ctypes.data + 16, False)
    assert not hasattr(array + 1, "__cuda_array_interface__")
    theirs = arrays.as_device_array(array[:, ::-1])
    assert theirs.copy_to_host().tolist() == [[3, 2, 1], [6, 5, 4]]
    theirs[0] = 0
    assert array.tolist() == [[0, 0, 0], [4, 5, 6]]
    array.flags.writeable = False
    assert array.__cuda_array_interface__["data"] == (array.ctypes.data, True)


def test_write_combined_memory_is_asked_of_the_driver(standin: StandIn) -> None:
    standin.configure()
    array = arrays.mapped_array(1000, "u1", wc=True)
    assert standin.calls("cuMemHostAlloc") == ["cuMemHostAlloc 1000 7"]
    assert pinning.is_locked(array)
    del array
    gc.collect()
    arrays.synchronize()
    assert len(standin.calls("cuMemFreeHost")) == 1
    arrays.mapped_array(1000, "u1")
    assert standin.calls("cuMemHostAlloc")[1:] == ["cuMemHostAlloc 1024 3"]
    with pinning.alloc(1000, "host", device="cuda:0", write_combined=True, alignment=1 << 20):
        assert {call.split()[2] for call in standin.calls("cuMemHostAlloc")[2:]} == {"7"}, "also where it tries again"


def test_pinned_views_that_overlap(standin: StandIn) -> None:
    array = numpy.zeros(10000, "u1")
    with arrays.pinned(array[:6000], array[4000:]), arrays.pinned(array[10:]):
        assert {size for _, size in standin.registrations()} == {10000}
    assert standin.registrations() == set()


def test_from_one_gpu_to_another(standin: StandIn) -> None:
    first = arrays.to_device(numbers(4, 5), device="cuda:0")
    second = arrays.to_device(first, device="cuda:1")
    assert second.device is pinning.device("cuda:1")
    first[:, 1:3] = second[:, 3:]
    assert (first.copy_to_host()[:, 1:3] == numbers(4, 5)[:, 3:]).all()
    with pytest.raises(LayoutError):
        first.copy_to_device(second.T)

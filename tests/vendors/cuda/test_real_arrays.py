# SPDX-License-Identifier: Apache-2.0
"""Arrays on a real GPU: CuPy, torch and numba use this package's arrays in place, and this package uses theirs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

import pinning
from pinning import MemoryKind, arrays
from pinning.memory import default_pool
from pinning.plugin import Device

MIB = 1 << 20


@pytest.fixture(autouse=True)
def gpu(real_gpu: Device) -> Iterator[Device]:
    yield real_gpu
    gc.collect()
    arrays.synchronize(real_gpu)
    assert [default_pool(real_gpu, kind).used for kind in MemoryKind] == [0, 0, 0]


def numbers(*shape: int) -> Any:
    return numpy.arange(numpy.prod(shape), dtype=numpy.float32).reshape(shape)


class Library:
    """Another library: how it takes an array of ours, an array's address and host copy, and how it makes an array."""

    def __init__(
        self,
        takes: dict[str, Callable[[Any], Any]],
        pointer: Callable[[Any], int],
        to_host: Callable[[Any], Any],
        make: Callable[[Any], Any],
        add_one: Callable[[Any], object],
        unordered: frozenset[str] = frozenset(),
    ) -> None:
        self.takes = takes
        self.pointer = pointer
        self.to_host = to_host
        self.make = make
        self.add_one = add_one
        self.unordered = unordered  # ways to take our array that ignore the stream of its pending work


def cupy_library() -> Library:
    cupy = pytest.importorskip("cupy", reason="needs CuPy: pip install cupy-cuda13x")

    def add_one(array: Any) -> None:
        array += 1

    return Library(
        {"the interface of CUDA": cupy.asarray, "DLPack": cupy.from_dlpack},
        lambda array: array.data.ptr,
        cupy.asnumpy,
        cupy.asarray,
        add_one,
    )


def torch_library() -> Library:
    torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
    return Library(
        {"the interface of CUDA": lambda ours: torch.as_tensor(ours, device="cuda"), "DLPack": torch.from_dlpack},
        lambda tensor: tensor.data_ptr(),
        lambda tensor: tensor.cpu().numpy(),
        lambda array: torch.from_numpy(array).cuda(),
        lambda tensor: tensor.add_(1),
        frozenset({"the interface of CUDA"}),
    )


def numba_library() -> Library:
    cuda = pytest.importorskip("numba.cuda", reason="needs numba-cuda: pip install numba-cuda")
    if not hasattr(numpy, "row_stack"):  # removed in NumPy 2.5; older releases of numba compile nothing without it
        numpy.row_stack = numpy.vstack

    @cuda.jit
    def add(array: Any) -> None:
        i, j = cuda.grid(2)
        if i < array.shape[0] and j < array.shape[1]:
            array[i, j] += 1

    def add_one(array: Any) -> None:
        add[(-(-array.shape[0] // 16), -(-array.shape[1] // 16)), (16, 16)](array)

    return Library(
        {"the interface of CUDA": cuda.as_cuda_array},
        lambda array: array.__cuda_array_interface__["data"][0],
        lambda array: array.copy_to_host(),
        cuda.to_device,
        add_one,
    )


@pytest.fixture(params=[cupy_library, torch_library, numba_library], ids=lambda make: make.__name__)
def library(request: pytest.FixtureRequest) -> Library:
    return request.param()  # type: ignore[no-any-return]


def test_it_goes_there_and_comes_back() -> None:
    for array in (numbers(300, 400), numbers(300, 400).T, numbers(300, 400)[::2, ::-3], numbers(), numbers(0, 3)):
        assert (arrays.to_device(array).copy_to_host() == array).all()
    there, expected = arrays.to_device(numbers(300, 400)), numbers(300, 400)
    for index in (
        (slice(None, None, 2), slice(3, 50)),
        (slice(None, None, -1), 7),
        (slice(None), slice(None, None, 5)),
    ):
        assert (there[index].copy_to_host() == expected[index]).all()
        there[index] = expected[index] = 5
        there[index] = expected[index] = numbers(*expected[index].shape)
        assert (there.copy_to_host() == expected).all()
    assert (there.T.ravel().copy_to_host() == expected.T.ravel()).all()
    there[1:, 1:] = there[:-1, :-1]
    expected[1:, 1:] = expected[:-1, :-1].copy()
    assert (there.copy_to_host() == expected).all()


def test_they_take_ours(library: Library) -> None:
    for name, take in library.takes.items():
        there = arrays.to_device(numbers(50, 60))
        theirs = take(there)
        assert library.pointer(theirs) == there.device_ptr, name
        assert (library.to_host(theirs) == numbers(50, 60)).all(), name
        library.add_one(theirs)
        assert (there.copy_to_host() == numbers(50, 60) + 1).all(), name  # waits for their kernel
        part = take(there[10:, ::2])
        assert library.pointer(part) == there[10:, ::2].device_ptr, name
        assert (library.to_host(part) == numbers(50, 60)[10:, ::2] + 1).all(), name
        del there, part
        gc.collect()
        arrays.synchronize()
        arrays.to_device(numpy.zeros((50, 60), "f4"))
        assert (library.to_host(theirs) == numbers(50, 60) + 1).all(), name  # their array keeps the memory alive
        del theirs
        gc.collect()


def test_we_take_theirs(library: Library) -> None:
    theirs = library.make(numbers(50, 60))
    library.add_one(theirs)
    assert arrays.is_device_array(theirs)
    there = arrays.as_device_array(theirs)
    assert (there.device_ptr, there.device) == (library.pointer(theirs), pinning.device("cuda:0"))
    assert (there.copy_to_host() == numbers(50, 60) + 1).all()
    there[1:3, ::2] = 0
    assert (library.to_host(theirs)[1:3, ::2] == 0).all()
    assert arrays.to_device(theirs).device_ptr == library.pointer(theirs)
    copied = arrays.device_array_like(theirs)
    copied.copy_to_device(theirs)
    assert (copied.copy_to_host() == library.to_host(theirs)).all()


def test_dlpack_of_theirs(library: Library) -> None:
    theirs = library.make(numbers(50, 60))
    if not hasattr(theirs, "__dlpack__"):
        pytest.skip("this library has no DLPack")

    class OnlyDlpack:
        def __dlpack__(self, **options: Any) -> object:
            return theirs.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return theirs.__dlpack_device__()

    there = arrays.as_device_array(OnlyDlpack())
    assert there.device_ptr == library.pointer(theirs)
    assert (there.copy_to_host() == numbers(50, 60)).all()


def test_kernels_of_theirs_read_what_was_copied_in_a_stream(library: Library) -> None:
    source = arrays.pinned_array((4096, 4096), "f4")
    source[:] = numbers(4096, 4096)
    for name, take in library.takes.items():
        with arrays.stream() as stream:
            there = arrays.to_device(source, stream=stream)
            if name in library.unordered:
                stream.synchronize()
            theirs = take(there)
            library.add_one(theirs)
            back = there.copy_to_host()
            assert (back[::77] == source[::77] + 1).all()
        del there, theirs, back


def test_memory_is_not_reused_under_a_kernel_of_theirs(library: Library) -> None:
    take = library.takes["the interface of CUDA"]
    for _ in range(5):
        there = arrays.to_device(numpy.zeros((8192, 2048), "f4"))
        theirs = take(there)
        for _ in range(20):
            library.add_one(theirs)
        del there, theirs
        fresh = arrays.to_device(numpy.full((8192, 2048), 3, "f4"))
        assert (fresh.copy_to_host() == 3).all()
        del fresh


def test_mapped_and_managed_arrays(library: Library) -> None:
    for make in (arrays.mapped_array, arrays.managed_array):
        array = make((50, 60), "f4")
        array[:] = numbers(50, 60)
        theirs = library.takes["the interface of CUDA"](array)
        library.add_one(theirs)
        arrays.synchronize()
        assert (array == numbers(50, 60) + 1).all()
        assert library.pointer(theirs) == array.device_ptr
        del theirs, array
    array = arrays.mapped_array((50, 60), "f4", wc=True)
    array[:] = 3
    assert (library.to_host(library.takes["the interface of CUDA"](array)) == 3).all()


def test_pinned_arrays_are_pinned_for_torch() -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
    torch.cuda.init()  # before that, torch takes no memory for pinned
    array = arrays.pinned_array(MIB, "f4")
    array[:] = 1
    tensor = torch.from_numpy(array)
    assert tensor.is_pinned()
    assert tensor.to("cuda", non_blocking=True).sum().item() == MIB
    ordinary = numpy.ones(MIB, "f4")
    with arrays.pinned(ordinary[: MIB // 2], ordinary[1000:]):
        assert torch.from_numpy(ordinary).is_pinned()
        assert torch.from_numpy(ordinary).cuda().sum().item() == MIB  # one lock, so no border to cross
    assert not torch.from_numpy(ordinary).is_pinned()


def test_their_streams_are_ours() -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
    theirs = torch.cuda.Stream()
    stream = arrays.external_stream(theirs.cuda_stream, "cuda:0")
    source = arrays.pinned_array((1024, 1024), "f4")
    source[:] = 2
    with arrays.auto_synchronize(stream), torch.cuda.stream(theirs):
        there = arrays.to_device(source, stream=stream)
        doubled = torch.as_tensor(there, device="cuda") * 2
    assert (doubled.cpu().numpy() == 4).all()
    stream.close()

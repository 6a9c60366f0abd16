# SPDX-License-Identifier: Apache-2.0
"""Arrays on a device: they behave as NumPy's, copy only if necessary, and give all memory back."""

from __future__ import annotations

import ctypes
import gc
import itertools
import random
import re
import sys
import threading
import tracemalloc
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pinning
from exchange_tensors import DLTensor
from fake_device import Background, in_threads
from fake_memory import FakeMemoryDevice
from folders import ROOT
from own_process import QUIET, python
from pinning import (
    ArgumentError,
    InvalidRangeError,
    LayoutError,
    MemoryKind,
    PartialOverlapError,
    PinningError,
    VendorError,
    arrays,
)
from pinning.arrays.move import rows_between
from pinning.memory import default_pool
from queue_work import holding

FAR = 1 << 45
HOST = "host:0"


class FarDevice(FakeMemoryDevice):
    """Its DEVICE memory has addresses that are invalid on the host: touching them by mistake ends the process."""

    def allocate(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        base = super().allocate(size, kind)
        if kind is not MemoryKind.DEVICE:
            return base
        self.allocated[base + FAR] = self.allocated.pop(base)
        return base + FAR

    def free(self, ptr: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        if kind is MemoryKind.DEVICE:
            self.allocated[ptr - FAR] = self.allocated.pop(ptr)
            ptr -= FAR
        super().free(ptr, kind)

    def real(self, ptr: int, size: int) -> int:
        for base, (length, kind) in self.allocated.items():
            if kind is MemoryKind.DEVICE and base <= ptr and ptr + size <= base + length:
                return ptr - FAR
        return super().real(ptr, size)


def leave_nothing_pinned(device: Any) -> None:
    """Give back the memory that pools keep."""
    gc.collect()
    arrays.synchronize(device)
    for kind in MemoryKind:
        default_pool(pinning.device(device) if isinstance(device, str) else device, kind).trim_to(0)


@pytest.fixture(autouse=True, scope="module")
def host_is_as_before() -> Iterator[None]:
    yield
    leave_nothing_pinned(HOST)


def finish(device: FakeMemoryDevice) -> None:
    """Give back all memory that arrays have used, and check that none is missing."""
    device.let_go()
    gc.collect()
    arrays.synchronize(device)
    arrays.default_stream(device).close()
    for kind in MemoryKind:
        pool = default_pool(device, kind)
        assert pool.used == 0
        pool.trim_to(0)
    device.check()
    pinning.pinned_map(device).close()


@pytest.fixture(params=["held", "host"])
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A device whose memory only the device itself can touch; and the host."""
    if request.param == "host":
        yield pinning.device(HOST)
        return
    device = FarDevice(held=False)
    yield device
    finish(device)


@pytest.fixture
def far() -> Iterator[FarDevice]:
    device = FarDevice(held=False)
    yield device
    finish(device)


@pytest.fixture
def held() -> Iterator[FarDevice]:
    """A device whose queues hold their work until it is released."""
    device = FarDevice()
    yield device
    finish(device)


def numbers(*shape: int, dtype: Any = numpy.float64) -> Any:
    return numpy.arange(numpy.prod(shape), dtype=dtype).reshape(shape)


def same(array: arrays.DeviceArray, expected: Any) -> bool:
    there = array.copy_to_host()
    return there.dtype == expected.dtype and there.shape == expected.shape and there.tobytes() == expected.tobytes()


# ---- as NumPy ----

DTYPES = st.sampled_from(["u1", "i2", ">u4", "f8", "c16", "S3", "M8[s]", "i4, f8"])


def whole_indices(shape: tuple[int, ...], **options: bool) -> st.SearchStrategy[Any]:
    """Indices that make views, even of a single element."""
    plain = hnp.basic_indices(shape, allow_ellipsis=False, **options)
    return plain.map(lambda index: (*index, ...) if isinstance(index, tuple) else (index, ...))


@st.composite
def host_arrays(draw: st.DrawFn) -> Any:
    """Arrays of any shape, contiguous in either order, or with gaps, reversed, transposed."""
    dtype = numpy.dtype(draw(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    count = int(numpy.prod(shape)) * dtype.itemsize
    array = (numpy.arange(count) % 251).astype(numpy.uint8).view(dtype).reshape(shape)
    if draw(st.booleans()):
        array = numpy.asfortranarray(array)
    if draw(st.booleans()):
        array = array[draw(whole_indices(shape))]
    return array.transpose(draw(st.permutations(range(array.ndim)))) if array.ndim else array


MANY = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@given(host_arrays())
@MANY
def test_it_goes_there_and_comes_back(device: Any, array: Any) -> None:
    there = arrays.to_device(array, device=device)
    assert (there.shape, there.dtype, there.size, there.ndim) == (array.shape, array.dtype, array.size, array.ndim)
    assert there.nbytes == array.nbytes
    compact = numpy.empty_like(array)
    assert there.is_c_contiguous() == compact.flags.c_contiguous
    assert there.is_f_contiguous() == compact.flags.f_contiguous
    assert same(there, array)


@given(array=host_arrays(), data=st.data())
@MANY
def test_slices_are_numpys(device: Any, array: Any, data: st.DataObject) -> None:
    index = data.draw(hnp.basic_indices(array.shape, allow_newaxis=True))
    source = array.copy(order="K")
    there = arrays.to_device(source, device=device)[index]
    expected = source[index]
    if isinstance(there, arrays.DeviceArray):
        assert same(there, numpy.asarray(expected, array.dtype))
    else:
        assert numpy.array_equal(there, expected)
        assert type(there) is type(expected)


@given(array=host_arrays(), data=st.data())
@MANY
def test_what_is_put_into_a_slice_is_there_and_nothing_else_changes(
    device: Any, array: Any, data: st.DataObject
) -> None:
    index = data.draw(hnp.basic_indices(array.shape, allow_newaxis=True))
    expected = array.copy(order="K")
    there = arrays.to_device(expected, device=device)
    part = expected[index]
    kind = data.draw(st.sampled_from(["scalar", "zero", "array", "device", "itself"]))
    value: Any = numpy.zeros(part.shape, array.dtype)
    if kind == "scalar":
        value = numpy.frombuffer(bytes(range(1, array.dtype.itemsize + 1)), array.dtype)[0]
    elif kind == "array":
        value = numpy.frombuffer(bytes(value.nbytes // 1 * [7]), array.dtype).reshape(part.shape)
    elif kind == "device":
        value = arrays.to_device(
            numpy.full(part.shape, b"\x09" * array.itemsize, f"V{array.itemsize}")
            .view(array.dtype)
            .reshape(part.shape),
            device=device,
        )
    elif kind == "itself" and part.ndim:
        value = there[index][::-1]
    expected[index] = value.copy_to_host() if isinstance(value, arrays.DeviceArray) else value
    there[index] = value
    assert same(there, expected)


VALUES = st.one_of(
    st.integers(-(2**65), 2**65),
    st.floats(width=64),
    st.complex_numbers(),
    st.booleans(),
    st.none(),
    st.text("0123456789.eé", max_size=4),
    st.binary(max_size=4),
    st.tuples(st.integers(-300, 300), st.floats()),
    st.lists(st.integers(-300, 300), max_size=3),
    st.lists(st.lists(st.integers(-300, 300), min_size=3, max_size=3), max_size=2),
    st.sampled_from(["u1", "i8", "f4", "c8", "?", "U3", "O", "M8[D]"]).flatmap(
        lambda dtype: st.sampled_from([(), (1,), (3,), (1, 1, 3), (2,)]).map(lambda shape: numpy.ones(shape, dtype))
    ),
    st.sampled_from([numpy.uint8(200), numpy.float64("nan"), numpy.complex64(1j), numpy.datetime64("2020"), 10**30]),
)
INTO = st.sampled_from(["u1", "i4", "u8", "f2", "f8", "c8", "?", "S2", "U2", "M8[D]", "m8[s]", "i4, f8", ">i2"])
PARTS = st.sampled_from([0, -1, (), slice(None), slice(0, 0), slice(1, None), slice(None, None, -2), ..., None])


@given(dtype=INTO, index=PARTS, value=VALUES)
@example(dtype="S2", index=slice(0, 0), value=numpy.ones((), "M8[D]"))  # does not fit into two characters
@example(dtype="f8", index=..., value=numpy.ones((1, 3)).view(numpy.matrix))  # a part of it has two dimensions too
@settings(MANY, max_examples=400)
def test_values_are_converted_as_numpy_does(device: Any, dtype: str, index: Any, value: Any) -> None:
    expected = numpy.zeros(3, dtype)
    there = arrays.to_device(expected, device=device)

    def assign(array: Any) -> tuple[type[Warning], ...]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            array[index] = value
        return tuple(each.category for each in told)

    try:
        told = assign(expected)
    except Exception as error:  # such as OverflowError of 300 in uint8, ValueError of NaN, TypeError of 1j
        refused = LayoutError if isinstance(error, ValueError) else type(error)
        with pytest.raises(refused):
            assign(there)
        expected = numpy.zeros(3, dtype)  # NumPy keeps what it has converted so far
    else:
        assert set(assign(there)) == set(told)
    assert same(there, expected)


def test_an_array_of_the_device_loses_dimensions_of_length_one(device: Any) -> None:
    there = arrays.to_device(numbers(4), device=device)
    there[:] = arrays.to_device(numbers(1, 1, 4) + 5, device=device)
    assert same(there, numbers(4) + 5)
    there[...] = arrays.to_device(numpy.full((1, 1), 7.0), device=device)
    assert same(there, numpy.full(4, 7.0))
    with pytest.raises(LayoutError):
        there[:] = arrays.to_device(numbers(2, 4), device=device)


@given(shape=st.sampled_from([(2, 3), (3, 2), (2, 2, 2), (5,)]), data=st.data())
@MANY
def test_strides_are_refused_only_where_elements_share_memory(
    device: Any, shape: tuple[int, ...], data: st.DataObject
) -> None:
    strides = tuple(data.draw(st.integers(0, 13)) for _ in shape)
    starts = sorted(sum(i * step for i, step in zip(index, strides, strict=True)) for index in numpy.ndindex(*shape))
    shared = any(after - before < 2 for before, after in itertools.pairwise(starts))
    there = arrays.device_array(shape, "u2", strides=strides, device=device)
    values = numbers(*shape, dtype="u2") + 1
    with pytest.raises(LayoutError, match="share memory") if shared else nullcontext():
        there.copy_to_device(values)
        assert same(there, values)


def test_a_layout_tells_of_itself_without_a_look_at_the_memory(far: FarDevice) -> None:
    there = arrays.to_device(numbers(3, 4), device=far)
    for layout in (there._layout, there[1:]._layout, there[0, 0:1]._layout):
        assert f"{there.dtype}" in repr(layout)
        assert repr(layout) == str(layout)


@given(array=host_arrays(), data=st.data())
@MANY
def test_shapes_are_numpys_and_views_where_numpys_are(device: Any, array: Any, data: st.DataObject) -> None:
    order = data.draw(st.sampled_from("CF"))
    source = array.copy(order="K")
    there = arrays.to_device(source, device=device)
    index = data.draw(whole_indices(array.shape, allow_newaxis=True))
    source, there = source[index], there[index]
    lengths = [1, source.size] if data.draw(st.booleans()) else [-1]
    lengths = data.draw(st.permutations(lengths)) if source.size else [source.size]
    for shaped, expected in (
        (there.reshape(*lengths, order=order), source.reshape(lengths, order=order)),
        (there.reshape(tuple(lengths)), source.reshape(lengths)),
        (there.ravel(order=order), source.ravel(order=order)),
        (there.T, source.T),
        (there.squeeze(), source.squeeze()),
    ):
        assert same(shaped, expected)
        if source.nbytes:
            assert (shaped._buffer is there._buffer) == numpy.shares_memory(expected, source)


def test_elements_of_other_dtypes(device: Any) -> None:
    array = numbers(3, 4)
    there = arrays.to_device(array, device=device)
    assert same(there.view("u4"), array.view("u4"))
    assert there.view("u4").shape == (3, 8)
    with pytest.raises(LayoutError, match="shape is"):
        there[:, ::2].view("u4")
    between_words = arrays.to_device(numpy.zeros(9, "u1"), device=device)[1:].view("u4")  # no vendor fills words there
    between_words[:] = 7
    assert same(between_words, numpy.full(2, 7, "u4"))


def test_every_element_by_itself(device: Any) -> None:
    there = arrays.to_device(numbers(2, 3), device=device)
    assert [[there[i, j] for j in range(3)] for i in range(2)] == [[0, 1, 2], [3, 4, 5]]
    there[1, 2] = 9
    there[-1, 0] += 0.5
    assert numpy.asarray(there).tolist() == [[0, 1, 2], [3.5, 4, 9]]
    assert numpy.asarray(there, numpy.int8).dtype == numpy.int8
    with pytest.raises(ValueError, match="without a copy"):
        numpy.asarray(there, copy=False)
    assert len(there) == 2
    with pytest.raises(IndexError):
        there[2]


def test_it_is_iterated_over_like_numpys(device: Any) -> None:
    array = numbers(2, 3)
    rows = list(arrays.to_device(array, device=device))
    assert len(rows) == 2
    assert all(same(row, expected) for row, expected in zip(rows, array, strict=True))
    assert [*rows[1]] == [3, 4, 5]
    assert list(arrays.device_array((0, 3), device=device)) == []
    with pytest.raises(TypeError, match="iteration over a 0-d array"):
        iter(arrays.to_device(3.0, device=device))


def test_broadcasting_is_numpys(device: Any) -> None:
    there = arrays.to_device(numpy.zeros((3, 4)), device=device)
    there[:] = [1, 2, 3, 4]
    there[1] = numpy.array([[5, 6, 7, 8]])
    there[:, 0] = arrays.to_device(numpy.full(1, 9.0), device=device)
    assert there.copy_to_host().tolist() == [[9, 2, 3, 4], [9, 6, 7, 8], [9, 2, 3, 4]]
    for value in ([1, 2], numpy.zeros((2, 4)), arrays.to_device(numpy.zeros(5), device=device)):
        with pytest.raises(LayoutError, match="does not fit into shape"):
            there[:] = value
    with pytest.raises(LayoutError, match="dtype int64"):
        there[:] = arrays.to_device(numpy.zeros(4, int), device=device)


# ---- how it is copied ----


def copies(device: FakeMemoryDevice, act: Callable[[], object]) -> list[str]:
    before = len(device.vendor_calls)
    act()
    wanted = ("queue.copy", "queue.copy_2d", "queue.fill")
    return [call for call in device.vendor_calls[before:] if call in wanted]


def test_as_few_copies_as_there_can_be(far: FarDevice) -> None:
    cube = arrays.to_device(numbers(6, 5, 4), device=far)
    other = arrays.device_array_like(cube)
    for part, wanted in (
        (cube, ["queue.copy"]),
        (cube.T, ["queue.copy"]),
        (cube[2:4], ["queue.copy"]),
        (cube[:, 1:3], ["queue.copy_2d"]),
        (cube[:, :, 0], ["queue.copy_2d"]),
        (cube[::-1, ::-1], ["queue.copy"]),
        (cube[::2, 1:4, 1], ["queue.copy_2d"] * 3),
        (cube[:0], []),
    ):
        assert copies(far, part.copy_to_host) == wanted
        here = numpy.full(part.shape, 3.5)
        here.flat[-1:] = 1
        assert copies(far, lambda part=part, here=here: part.copy_to_device(here)) == wanted
    assert copies(far, lambda: other.copy_to_device(cube)) == ["queue.copy"]
    assert copies(far, lambda: other.__setitem__(..., 0)) == ["queue.fill"]
    assert copies(far, lambda: cube.reshape(30, 4)) == []
    assert copies(far, lambda: cube[:, 1:3].ravel()) == ["queue.copy_2d"]


@pytest.mark.parametrize(("pitch", "heights"), [((1 << 31) - 1, [2]), (1 << 31, [1, 1])])
def test_rows_too_far_apart_for_a_copy_of_rows_are_copied_one_by_one(pitch: int, heights: list[int]) -> None:
    near = numpy.zeros((2, 3), "u1")
    apart = numpy.lib.stride_tricks.as_strided(near, strides=(pitch, 1))  # no byte of it is read
    for to, origin in ((near, apart), (apart, near)):
        assert [rows.height for rows in rows_between(to, origin)] == heights


def test_an_array_that_is_given_is_filled_whatever_its_order(device: Any) -> None:
    array = numbers(3, 4, 5)
    there = arrays.to_device(array, device=device)
    for ary in (
        numpy.empty_like(array),
        numpy.empty_like(array, order="F"),
        numpy.empty((3, 4, 10))[:, :, ::2],
        numpy.empty_like(array)[::-1],
    ):
        assert there.copy_to_host(ary) is ary
        assert (ary == array).all()
        assert (there[::-1, :, 1:].copy_to_host(ary[:, :, 1:]) == array[::-1, :, 1:]).all()
        with pinning.Queue(device) as queue:
            ary[:] = 0
            assert there.copy_to_host(ary, stream=queue) is ary
            queue.synchronize()
            assert (ary == array).all()


@pytest.mark.parametrize(("start", "to_strides", "of_strides"), [(0, (40, 8), (20, 4)), (48, (20, 4), (40, 8))])
@pytest.mark.parametrize("how", ["assigned", "copy_to_device", "copy_to_host"])
def test_overlapping_memory_of_the_host(start: int, to_strides: Any, of_strides: Any, how: str) -> None:
    memory = numpy.arange(40, dtype="i4")
    to, of = (numpy.ndarray((3, 5), "i4", memory, *each) for each in ((start, to_strides), (0, of_strides)))
    expected = of.copy()
    if how == "assigned":
        arrays.as_device_array(to, device=HOST)[...] = of
    elif how == "copy_to_device":
        arrays.as_device_array(to, device=HOST).copy_to_device(of)
    else:
        arrays.as_device_array(of, device=HOST).copy_to_host(to)
    assert (to == expected).all()


def test_a_fill_takes_no_memory_of_the_host() -> None:
    there = arrays.device_array((1 << 10, 1 << 14), "u1", order="F", device=HOST)
    tracemalloc.start()
    try:
        there[:] = 3
        there[:, 1:] = 4
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert there[5, 0] == 3 and there[5, 1] == 4
    assert most < 1 << 20


def test_one_element_of_a_device_is_assigned_to_another(far: FarDevice) -> None:
    """The host must not read it at its address."""
    array = numbers(5)
    there, scalar = arrays.to_device(array, device=far), arrays.device_array((), array.dtype, device=far)
    there[2] = there[3:4]
    scalar[()] = there[4:].reshape(1, 1)
    assert same(there, array[[0, 1, 3, 3, 4]])
    assert scalar.copy_to_host() == array[4]


def test_between_two_devices(far: FarDevice) -> None:
    array = numbers(3, 4)
    here = arrays.to_device(array, device=HOST)
    there = arrays.to_device(here, device=far)
    assert there.device is far
    assert same(there, array)
    here[:, 1:] = there[:, :3]
    array[:, 1:] = array[:, :3].copy()
    assert same(here, array)


def test_a_copy_from_locked_memory_is_direct_and_from_the_same_array(held: FarDevice) -> None:
    array = arrays.pinned_array(1000, "u1", device=held)
    array[:] = 1
    stream = arrays.stream(held)
    there = arrays.to_device(array, stream=stream)
    array[:] = 2  # before the device copies it
    held.let_go()
    assert (there.copy_to_host() == 2).all()
    stream.close()


# ---- order ----


def waits_for(device: FakeMemoryDevice, queue: Any, act: Callable[[], object]) -> bool:
    """Whether `act` returns only after the release of this queue, which is the only one that holds its work."""
    acting = Background(act)
    acting.join(0.1)
    waited = acting.is_alive()
    queue.held = False
    device.release()
    acting.result()
    return waited


def test_in_a_stream_it_returns_at_once_and_without_it_waits(far: FarDevice) -> None:
    array = numbers(100)
    there = arrays.to_device(array, device=far)  # makes the default queue
    with arrays.stream(far) as stream:
        vendor = far.queues[-1]
        vendor.held = True
        there.copy_to_device(array + 1, stream=stream)
        back = there.copy_to_host(stream=stream)
        back[:] = -1
        later = []
        assert waits_for(far, vendor, lambda: later.append(there.copy_to_host()))
        assert (later[0] == array + 1).all()
        assert (back == array + 1).all()
        other = arrays.to_device(array, device=far)
        for into, source in ((there, other), (other, there)):  # it waits for the work of either
            vendor.held = True
            there.copy_to_device(array + 2, stream=stream)
            assert waits_for(far, vendor, lambda into=into, source=source: into.copy_to_device(source))
            assert (into.copy_to_host() == source.copy_to_host()).all()


def test_it_waits_for_those_who_know_the_address(far: FarDevice) -> None:
    array = numbers(100)
    there, other = (arrays.to_device(array, device=far) for _ in range(2))
    with arrays.stream(far):
        vendor = far.queues[-1]  # to which other code submits
        vendor.held = True
        vendor.mark(lambda: None)
        other[0] = 3  # no other code knows its address
        assert len(vendor.pending()) == 1
        assert there.device_ptr
        assert waits_for(far, vendor, there.copy_to_host)


def test_memory_in_use_is_not_given_back(held: FarDevice) -> None:
    stream = arrays.stream(held)
    there = arrays.to_device(numbers(64), stream=stream)
    pool = default_pool(held, MemoryKind.DEVICE)
    del there
    gc.collect()
    arrays.buffer.tidy()
    assert pool.used == 512
    held.let_go()
    stream.close()
    arrays.synchronize(held)
    assert pool.used == 0


def test_exported_memory_is_returned_after_the_device_is_idle(held: FarDevice) -> None:
    for make in (
        lambda: arrays.device_array(64, device=held).device_ptr,
        lambda: arrays.pinned_array(64, device=held).ctypes.data,
        lambda: arrays.managed_array(64, device=held).ctypes.data,
    ):
        first = make()
        gc.collect()
        before = held.vendor_calls.count("synchronize")
        second = make()
        assert held.vendor_calls.count("synchronize") == before + 1
        assert first == second
    kept = arrays.device_array(64, device=held)  # tidies the last exported array; later there is no such wait
    before = held.vendor_calls.count("synchronize")
    del kept
    arrays.device_array(64, device=held)
    assert held.vendor_calls.count("synchronize") == before


class Meddling(pinning.Queue):
    """Calls `meanwhile` during `poll`, as if another thread ran at that moment."""

    meanwhile: Callable[[], object] | None = None

    def poll(self) -> bool:
        answer: bool = super().poll()
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return answer


def test_work_that_another_thread_submits_is_not_forgotten(held: FarDevice) -> None:
    there = arrays.device_array(4, device=held)
    with Meddling(held) as queue, pinning.Queue(held) as other:
        there.copy_to_device(numbers(4), stream=queue)
        held.release()

        def meanwhile() -> None:
            there.copy_to_device(numbers(4), stream=queue)
            there.copy_to_device(numbers(4), stream=other)

        queue.synchronize()
        queue.meanwhile = meanwhile  # type: ignore[method-assign]
        there._buffer.queues()
        assert set(there._buffer.queues()) == {queue, other}
        held.let_go()


def test_two_threads_with_one_array() -> None:
    values = numbers(1000)
    there = arrays.to_device(values, device=HOST)
    streams = [arrays.stream(HOST) for _ in range(4)]

    def with_streams() -> None:
        back = [numpy.empty_like(values) for _ in streams]
        for _ in range(200):
            for stream, array in zip(streams, back, strict=True):
                there.copy_to_host(array, stream=stream)

    def without() -> None:
        for _ in range(200):
            assert (there.copy_to_host() == values).all()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(lambda act: act(), [with_streams, without, without])
    finally:
        sys.setswitchinterval(interval)
        for stream in streams:
            stream.close()


def test_a_stream_of_another_device(far: FarDevice) -> None:
    there = arrays.to_device(numbers(4), device=far)
    with pinning.Queue(HOST) as queue, pytest.raises(PinningError, match="is not a stream of fake:0"):
        there.copy_to_host(stream=queue)
    with pytest.raises(TypeError, match="is not a queue"):
        there.copy_to_host(stream="s")


def test_streams_by_their_names(far: FarDevice) -> None:
    assert arrays.default_stream(far) is arrays.default_stream(far)
    with arrays.stream(far) as stream:
        assert arrays.external_stream(stream.handle, far).handle == stream.handle
        with arrays.auto_synchronize(stream) as same_stream:
            there = arrays.to_device(numbers(9), stream=same_stream)
        assert stream.done()
        assert there.device is far


# ---- memory ----


def test_dropped_arrays_give_their_memory_back_and_views_keep_it(device: Any) -> None:
    pool = default_pool(device, MemoryKind.DEVICE)
    arrays.synchronize(device)
    gc.collect()
    arrays.synchronize(device)
    before = pool.used
    there = arrays.to_device(numbers(100), device=device)
    view = there[10:].T
    del there
    arrays.synchronize(device)
    assert pool.used == before + 1024
    assert same(view, numbers(100)[10:])
    with arrays.defer_cleanup():
        with arrays.defer_cleanup():
            del view
        arrays.synchronize(device)
        assert pool.used == before + 1024
    assert pool.used == before


def test_dropped_arrays_do_not_warn_also_in_cycles(far: FarDevice, recwarn: pytest.WarningsRecorder) -> None:
    there: Any = [arrays.to_device(numbers(100), device=far)]
    there.append(there)
    del there
    gc.collect()
    arrays.synchronize(far)
    assert default_pool(far, MemoryKind.DEVICE).used == 0
    assert [each for each in recwarn if each.category is ResourceWarning] == []


def test_memory_that_cannot_be_given_back_is_tried_again(far: FarDevice) -> None:
    pool = default_pool(far, MemoryKind.HOST)
    array = arrays.pinned_array(100, device=far)
    del array
    far.fail_call()  # synchronize
    with pytest.raises(VendorError):
        arrays.synchronize(far)
    far.fail_call(calls_before=1)
    arrays.synchronize(far)
    assert pool.used == 1024
    arrays.synchronize(far)
    assert pool.used == 0


def test_no_memory(far: FarDevice) -> None:
    far.capacity = 1000
    arrays.device_array(100, "u1", device=far)
    with pytest.raises(VendorError, match="OUT_OF_MEMORY"):
        arrays.device_array(1001, "u1", device=far)
    with pytest.raises(LayoutError, match="more than any memory"):
        arrays.device_array((1 << 40, 1 << 40), device=far)


def test_each_call_fails_in_turn(far: FarDevice) -> None:
    source = numbers(6, 5)

    def act() -> None:
        there = arrays.to_device(source, device=far)
        there[1:, 1:4] = there[:5, :3]
        assert there.copy_to_host()[5, 3] == source[4, 2]
        del there

    failed = set()
    for n in range(100):
        arrays.default_stream(far).close()  # so that a new queue is made, without failures
        start = len(far.vendor_calls)
        far.fail_call(calls_before=n)
        try:
            act()
        except VendorError:
            failed.add(far.vendor_calls[start + n])
        if len(far.vendor_calls) <= start + n:
            break
        far.fail_no_more()
        with suppress(VendorError):
            arrays.default_stream(far).synchronize()
    far.fail_no_more()
    assert failed >= {"make_queue", "allocate", "queue.copy", "queue.copy_2d"}
    act()


def test_after_fork_the_childs_arrays_do_nothing() -> None:
    program = """
import os, gc, numpy
from pinning import arrays
there = arrays.to_device(numpy.arange(9), device="host")
pinned = arrays.pinned_array(9, device="host")
child = os.fork()
if child == 0:
    del there, pinned
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert (there.copy_to_host() == numpy.arange(9)).all()
pinned[:] = 1
print("good")
"""
    done = python("-W", "error", *QUIET, "-c", program)
    assert (done.stdout, done.stderr) == ("good\n", "")


# ---- host memory ----


def test_pinned_arrays_are_numpys_in_locked_memory(device: Any) -> None:
    array = arrays.pinned_array((3, 4), "i4", order="F", device=device)
    assert type(array) is numpy.ndarray
    assert array.flags.f_contiguous
    assert pinning.is_locked(array, device=device)
    like = arrays.pinned_array_like(array[:, ::2], device=device)
    assert (like.shape, like.dtype, like.flags.f_contiguous) == ((3, 2), array.dtype, True)
    strided = arrays.pinned_array((2, 2), "u1", strides=(10, 1), device=device)
    assert strided.strides == (10, 1)
    view = array[1:]
    alive = weakref.ref(array)
    del array
    assert alive() is None
    view[:] = 5  # it keeps the memory
    assert pinning.is_locked(view, device=device)
    assert arrays.pinned_array((0, 3), device=device).shape == (0, 3)


@pytest.mark.parametrize("make", [arrays.mapped_array, arrays.managed_array])
def test_mapped_and_managed_arrays_have_an_address_for_the_device(far: FarDevice, make: Any) -> None:
    array = make((3, 4), device=far)
    array[:] = numbers(3, 4)
    kind = MemoryKind.HOST if make is arrays.mapped_array else MemoryKind.SHARED
    offset = array.device_ptr - array.ctypes.data
    assert offset == (1 << 44 if kind is MemoryKind.HOST else 0)
    assert array[1, 2:].device_ptr == array.device_ptr + 6 * 8
    assert (array + 1).sum() == 78
    for none in (array + 1, array.copy()):
        with pytest.raises(AttributeError, match="ordinary memory"):
            _ = none.device_ptr
    assert not arrays.is_device_array(array)  # no CUDA here
    there = arrays.to_device(array, device=far)
    assert same(there, numbers(3, 4))
    like = arrays.mapped_array_like(array.T, device=far)
    assert (like.shape, like.flags.f_contiguous) == ((4, 3), True)


def test_write_combined_memory(far: FarDevice) -> None:
    with pytest.raises(PinningError, match="fake:0 has no write-combined memory"):
        arrays.mapped_array(10, wc=True, device=far)
    array = arrays.mapped_array(10, wc=True, portable=True, device=HOST)
    array[:] = 3
    assert pinning.is_locked(array, device=HOST)
    ptr = array.ctypes.data
    del array
    gc.collect()
    arrays.synchronize(HOST)
    assert pinning.memory_info(ptr) is None


def test_pinned_nested_and_overlapping(far: FarDevice) -> None:
    array = numpy.zeros(1000, "u1")
    base = array.ctypes.data

    def regions() -> list[tuple[int, int]]:
        return [(each.start - base, each.size) for each in pinning.regions(far)]

    with arrays.pinned(array, device=far), arrays.pinned(array[10:20], array[::-1], array, device=far):
        assert regions() == [(0, 1000)]
    assert regions() == []
    with arrays.pinned(array[:600], array[400:], array[:0], device=far):
        assert regions() == [(0, 1000)]  # one lock, so that any library can copy each of them
    with arrays.pinned(array, array[10:20], device=far):
        assert regions() == [(0, 1000)]
    with arrays.pinned(array[:100], array[200:300], device=far):
        assert regions() == [(0, 100), (200, 100)]
        with arrays.pinned(array[50:250], array[290:400], device=far) as locks:
            assert regions() == [(0, 100), (100, 100), (200, 100), (300, 100)]
            assert [lock.size for lock in locks] == [50, 100, 50, 10, 100]
            assert pinning.is_locked(array[50:100], device=far)
        assert regions() == [(0, 100), (200, 100)]
    assert far.locked == {}


def test_strided_copies_across_the_borders_of_locks(far: FarDevice) -> None:
    """The device refuses a copy that begins in locked memory and ends outside it; see `FakeQueue`."""
    rows = numpy.zeros((10, 8))
    wide = numbers(10, 16)
    there = arrays.to_device(wide, device=far)
    with arrays.pinned(rows[:5], device=far), arrays.pinned(rows, device=far):
        for part in (slice(None, 8), slice(None, None, 2)):
            there[:, part].copy_to_host(rows)
            assert (rows == wide[:, part]).all()
            rows += 1
            there[:, part] = wide[:, part] = rows
            assert same(there, wide)
        there[:, :8].copy().copy_to_host(rows)


def test_pinned_while_others_lock_and_unlock_overlapping_parts() -> None:
    array = numpy.zeros(1 << 18, "u1")
    rounds = 400

    def lock_at_random(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(rounds):
            at = chance.randrange(array.size // 2)
            with arrays.pinned(array[at : at + array.size // 4], device=HOST):
                pass

    in_threads(lock_at_random, range(4))
    assert [each for each in pinning.regions(HOST) if array.ctypes.data in each] == []


def test_pinned_beside_what_others_have_pinned_in_part(far: FarDevice) -> None:
    array = numpy.zeros(1000, "u1")
    far.foreign[array.ctypes.data + 500] = 1000
    with pytest.raises(PartialOverlapError), arrays.pinned(array, device=far):
        pass


def test_pinned_locks_all_or_none(far: FarDevice) -> None:
    array = numpy.zeros(1000, "u1")
    with pytest.raises(TypeError, match="not a buffer"), arrays.pinned(array, 3.5, device=far):
        pass
    far.fail(VendorError("fakeLock", 1, "FAKE_FAILURE"), calls_before=1)
    with pytest.raises(VendorError), arrays.pinned(array[:10], array[20:30], device=far):
        pass
    assert far.locked == {}
    resizable = bytearray(100)
    with arrays.pinned(resizable, device=far), pytest.raises(BufferError):
        resizable.append(1)
    with pytest.raises(KeyError), arrays.pinned(array, device=far):
        raise KeyError
    assert far.locked == {}


# ---- bad input ----


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (((2, -1),), LayoutError, "shape is"),
        ((2.5,), TypeError, "must be an integer"),
        (((2, 3), "f8", (8,)), LayoutError, "needs 2"),
        (((2,), "f8", (-8,)), LayoutError, "negative"),
        (((2,), "f8", None, "K"), ArgumentError, "order is 'K'"),
        (((2,), object), TypeError, "Python objects"),
        (((2,), [("a", "f8"), ("b", object)]), TypeError, "Python objects"),
        (((2,), "S"), TypeError, "have no bytes"),
        (((2,), "nonsense"), TypeError, "nonsense"),
    ],
)
@pytest.mark.parametrize("make", [arrays.device_array, arrays.pinned_array, arrays.mapped_array, arrays.managed_array])
def test_what_no_array_can_be_made_of(make: Any, arguments: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=re.escape(says)):
        make(*arguments, device=HOST)


def test_what_cannot_be_copied(device: Any) -> None:
    there = arrays.device_array((2, 3), device=device)
    for ary, says in (
        (numpy.zeros((3, 2)), "shape (3, 2)"),
        (numpy.zeros((2, 3), "f4"), "dtype float32"),
        (arrays.device_array((2, 4), device=device), "shape (2, 4)"),
    ):
        with pytest.raises(LayoutError, match=re.escape(says)):
            there.copy_to_device(ary)
        if isinstance(ary, numpy.ndarray):
            with pytest.raises(LayoutError, match=re.escape(says)):
                there.copy_to_host(ary)
    with pytest.raises(TypeError, match="is a list"):
        there.copy_to_host([1])  # type: ignore[arg-type]
    closed = numpy.zeros((2, 3))
    closed.flags.writeable = False
    with pytest.raises(LayoutError, match="read-only"):
        there.copy_to_host(closed)
    with pytest.raises(TypeError, match="Python objects"):
        arrays.to_device(numpy.array([object()]), device=device)
    masked = numpy.ma.array(numpy.zeros((2, 3)), mask=True)
    for act in (
        lambda: arrays.to_device(masked, device=device),
        lambda: arrays.to_device(masked, to=there),
        lambda: arrays.as_device_array(masked),
        lambda: there.copy_to_device(masked),
        lambda: there.__setitem__(..., masked),
        lambda: there.__setitem__((0, 0), numpy.ma.masked),
    ):
        with pytest.raises(TypeError, match=r"masked array, .*; give filled\(\) of it"):
            act()
    assert not arrays.is_device_array(masked)
    assert arrays.device_array_like(masked, device=device).shape == (2, 3)  # takes no elements
    overlapping = arrays.device_array((3, 2), "u1", strides=(1, 1), device=device)
    with pytest.raises(LayoutError, match="share memory"):
        overlapping.copy_to_device(numpy.arange(6, dtype="u1").reshape(3, 2))
    with pytest.raises(LayoutError, match="6 elements"):
        there.reshape(4, 2)
    with pytest.raises(ArgumentError, match="order is 'K'"):
        there.ravel("K")
    with pytest.raises(ArgumentError, match="order is 'Z'; it must be 'C' or 'F' or 'K'"):
        there.copy("Z")
    for index in ([0, 1], numpy.array([True, False]), True, 1.5, "x"):
        with pytest.raises(TypeError, match="takes integers"):
            there[index]  # type: ignore[index]
    with pytest.raises(LayoutError, match="not a permutation of 2"):
        there.transpose((0, 0))


def test_an_array_that_overlaps_itself_can_be_read(device: Any) -> None:
    whole = arrays.to_device(numpy.arange(6, dtype="u1"), device=device)
    windows = numpy.lib.stride_tricks.as_strided(whole._layout, (4, 3), (1, 1))
    assert arrays.DeviceArray(windows, whole._buffer).copy_to_host().tolist() == [
        [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]
    ]  # fmt: skip


# ---- with others ----


def test_dlpack_of_the_hosts_arrays(device: Any) -> None:
    there = arrays.to_device(numbers(3, 4, dtype="f4"), device=device)
    if device.name != HOST:
        with pytest.raises(BufferError, match="no type for a device such as fake:0"):
            there.__dlpack_device__()
        with pytest.raises(BufferError):
            there.__dlpack__()
        return
    assert there.__dlpack_device__() == (1, 0)
    for part in (there, there.T, there[::2, 1:], there[:0], there[1, 1, ...]):
        theirs = numpy.from_dlpack(part)
        assert (theirs == part.copy_to_host()).all()
        assert theirs.ctypes.data == part.device_ptr or not part.size
        old = arrays.as_device_array(Old(part))
        assert (old.device_ptr, old.shape) == (part.device_ptr, part.shape)
        back = arrays.as_device_array(theirs)
        assert (back.device_ptr, back.shape, back.device.name) == (part.device_ptr, part.shape, HOST)
        assert back.strides == part.strides or part.size < 2
    theirs = numpy.from_dlpack(there)
    theirs[0, 0] = 77
    assert there[0, 0] == 77
    copied = numpy.from_dlpack(there, copy=True)
    copied[0, 0] = 5
    assert there[0, 0] == 77
    del there, copied
    gc.collect()
    arrays.synchronize(HOST)
    arrays.to_device(numpy.zeros((3, 4), "f4"), device=HOST)
    assert theirs[0, 0] == 77  # it has kept the memory


def test_a_copy_of_an_array_comes_after_its_pending_work_in_other_streams() -> None:
    there, ones = arrays.to_device(numpy.zeros(64, "u1"), device=HOST), numpy.ones(64, "u1")
    back = numpy.zeros(64, "u1")
    with arrays.stream(HOST) as stream, pinning.Queue(HOST) as queue, holding(stream) as held:
        there.copy_to_device(ones, stream=stream)
        threading.Timer(0.1, held.release).start()
        pinning.copy(back, there, queue=queue)
        assert back.all()


class Old:
    """An exporter from before DLPack had versions."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self) -> object:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_dlpack_is_read_once_and_freed_once() -> None:
    from pinning.interop.dlpack import take_capsule

    there = arrays.to_device(numbers(4), device=HOST)
    alive = weakref.ref(there)
    for versioned in (None, (1, 0)):
        capsule = there.__dlpack__(max_version=versioned)
        tensor = take_capsule(capsule)
        assert (tensor.shape, tensor.strides, tensor.bits, tensor.lanes) == ((4,), (1,), 64, 1)
        with pytest.raises(BufferError, match="already been consumed"):
            take_capsule(capsule)
        del capsule, tensor
        there.__dlpack__(max_version=versioned)  # and dropped
    with pytest.raises(TypeError, match="not a capsule"):
        take_capsule(3)
    del there
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        ({"lanes": 4}, PinningError, "4 lanes"),  # of another length than the type says
        ({"bits": 24}, PinningError, "24 bits"),
        ({"code": 5, "bits": 32}, PinningError, "code 5, 32 bits"),
        ({"data": None}, InvalidRangeError, "address 0"),
    ],
)
def test_tensors_that_no_array_can_be_are_refused(changed: Any, error: type[Exception], says: str) -> None:
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )

    class Odd:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, **_: Any) -> object:
            capsule = numbers(4).__dlpack__()
            tensor = DLTensor.from_address(pointer_of(capsule, b"dltensor"))
            for name, value in changed.items():
                setattr(tensor, name, value)
            return capsule

    with pytest.raises(error, match=says):
        arrays.as_device_array(Odd(), device=HOST)


def test_dlpack_refuses_what_it_has_not() -> None:
    there = arrays.to_device(numbers(4), device=HOST)
    for options, says in (
        ({"stream": 1}, "must be None"),
        ({"dl_device": (2, 0)}, "DLPack's device (2, 0)"),
    ):
        with pytest.raises(BufferError, match=re.escape(says)):
            there.__dlpack__(**options)
    for dtype in ("M8[s]", "S3", ">f4", "i4, f8", "longdouble", "clongdouble"):
        with pytest.raises(BufferError, match="no type for dtype"):
            arrays.device_array(3, dtype, device=HOST).__dlpack__()
    packed = arrays.device_array(2, "f4", strides=6, device=HOST)
    with pytest.raises(BufferError, match="whole number of elements"):
        packed.__dlpack__()


def test_read_only_memory_stays_so() -> None:
    source = numbers(4)
    source.flags.writeable = False
    there = arrays.as_device_array(source)
    assert there.read_only
    for value in (1, arrays.to_device(numbers(4), device=HOST)):
        with pytest.raises(LayoutError, match="read-only"):
            there[:] = value
    with pytest.raises(BufferError, match="max_version"):
        there.__dlpack__()
    assert not numpy.from_dlpack(there).flags.writeable
    assert numpy.from_dlpack(there, copy=True).flags.writeable
    assert same(there, source)


def test_what_is_an_array_of_a_device(far: FarDevice) -> None:
    there = arrays.device_array(3, device=far)
    assert arrays.is_device_array(there)
    assert arrays.as_device_array(there) is there
    assert arrays.to_device(there) is there
    with pinning.alloc(24, device=far) as bytes_of_device:  # without shape and dtype
        for other in (numbers(3), [1], 3, None, "x", int, arrays.DeviceArray, bytes_of_device):
            assert not arrays.is_device_array(other)
    with pytest.raises(TypeError, match="to_device"):
        arrays.as_device_array([1])
    with pytest.raises(AttributeError, match="that is for CUDA"):
        _ = there.__cuda_array_interface__
    assert not hasattr(there, "__cuda_array_interface__")


class Foreign:
    """An array of another library, in a device's memory."""

    def __init__(self, **interface: Any) -> None:
        self.__cuda_array_interface__ = {"version": 3, **interface}


def test_another_librarys_array_is_taken_where_it_is(far: FarDevice) -> None:
    with pinning.alloc(96, device=far) as memory, arrays.stream(far) as stream:
        pinning.copy(memory, numbers(12))
        for strides, expected in ((None, numbers(3, 4)), ((8, 24), numbers(4, 3).T), ((-32, 8), None)):
            ptr = memory.ptr + (64 if expected is None else 0)
            foreign = Foreign(shape=(3, 4), typestr="<f8", data=(ptr, False), strides=strides, stream=stream.handle)
            theirs = arrays.as_device_array(foreign, device=far)
            assert arrays.is_device_array(theirs)
            assert (theirs.device_ptr, theirs.device, theirs.shape) == (ptr, far, (3, 4))
            assert same(theirs, numbers(3, 4)[::-1] if expected is None else expected)
        alive = weakref.ref(foreign)
        del foreign
        assert alive() is not None
        del theirs
        gc.collect()
        assert alive() is None
    fields = Foreign(shape=(0,), typestr="|V12", descr=[("a", "<i4"), ("b", "<f8")], data=(0, True), strides=None)
    empty = arrays.as_device_array(fields, device=far)
    assert (empty.dtype, empty.device_ptr) == (numpy.dtype([("a", "<i4"), ("b", "<f8")]), 0)
    for data, strides in (((0, True), (32, 8)), ((0, False), (-8, 24))):  # as a view of no rows may have
        none = Foreign(shape=(0, 4), typestr="<f8", data=data, strides=strides)
        assert arrays.as_device_array(none, device=far).shape == (0, 4)
    with pytest.raises(PinningError, match="mask"):
        arrays.as_device_array(Foreign(shape=(1,), typestr="<f8", data=(1, False), mask=3), device=far)
    with pytest.raises(InvalidRangeError, match="has no memory at"):
        arrays.as_device_array(Foreign(shape=(1,), typestr="<f8", data=(4096, False)), device=far)
    with pytest.raises(InvalidRangeError, match="address 0"):
        arrays.as_device_array(Foreign(shape=(1,), typestr="<f8", data=(0, False)), device=far)
    with pytest.raises(TypeError, match="Python objects"):
        arrays.as_device_array(Foreign(shape=(1,), typestr="|O", data=(4096, False)), device=HOST)


# ---- the documentation ----


def test_the_examples_of_the_documentation_run() -> None:
    text = (ROOT / "docs" / "arrays.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (says,) = re.findall(r"```text\n(.*?)```", text, re.S)
    done = python("-W", "error", "-W", "ignore:the host is the default device", "-c", program)
    assert (done.stdout, done.stderr) == (says, "")


def test_the_documentation_has_every_name() -> None:
    text = (ROOT / "docs" / "arrays.md").read_text()
    for name in arrays.__all__:
        assert f"`{name}" in text or f".{name}" in text, name

# SPDX-License-Identifier: Apache-2.0
"""Calls that are wrong in plausible ways: each is refused with the value and the remedy, and changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import pinning
from fake_device import FakeDevice
from pagetable import PageTable, RangeError
from pinning import (
    Arena,
    ArgumentError,
    Context,
    Event,
    InvalidRangeError,
    LayoutError,
    MemoryKind,
    NotLockedError,
    OutOfMemoryError,
    PinningError,
    Pool,
    Queue,
    VendorError,
    arrays,
)

A, B = numpy.ones(512), numpy.zeros(512)
NONE = numpy.array([], numpy.uint64)
ENDS = (numpy.array([A.ctypes.data, A.ctypes.data + 8], numpy.uint64), numpy.array([B.ctypes.data] * 2, numpy.uint64))
OBJECTS = numpy.array([None] * 512, dtype=object)
HOST = pinning.device("host")
TABLE = PageTable()
MAP = pinning.PinnedMap(HOST)


class Series:
    """An object that can be converted to an array, as in pandas."""

    def __array__(self) -> object:
        return A


class Streaming:
    def __cuda_stream__(self) -> object:
        return 5


class EmptyTensor:
    """An array without elements, and so without an address."""

    @property
    def __array_interface__(self) -> dict[str, object]:
        return {"data": (0, False), "shape": (0,), "typestr": "|u1", "version": 3}


class UnmadeQueue(Queue):
    def __init__(self) -> None:
        """Not that of a queue."""


class UnmadePool(Pool):
    def __init__(self) -> None:
        """Not that of a pool."""


class Interface:
    """Memory that an interface describes, of the host or, by another name, of a GPU."""

    def __init__(self, data: object = (8192, False), shape: object = (1,)) -> None:
        self.__array_interface__ = {"data": data, "shape": shape, "typestr": "<f8", "version": 3}

    @property
    def __cuda_array_interface__(self) -> object:
        return self.__array_interface__


def with_arena(call: Callable[[Arena], object]) -> None:
    with Arena(4096, "host") as arena:
        arena.wait()
        call(arena)


def with_memory(call: Callable[[pinning.Allocation], object]) -> None:
    with pinning.alloc(64, device="host") as memory:
        call(memory)


def enter_cancelled() -> None:
    pending = pinning.lock_async(A, device="host")
    pending.cancel()
    with pending:
        pass


def closed_arena() -> Arena:
    with Arena(64, "host") as arena:
        return arena


def freed() -> pinning.Allocation:
    with pinning.alloc(4096, device="host") as memory:
        return memory


def used_twice(closed_at_its_end: Any) -> None:
    for _ in range(2):
        with closed_at_its_end:
            pass


def initialized_again(handle: Any, closed: bool = False) -> None:
    with handle:
        if not closed:
            handle.__init__("host")
    handle.__init__("host")


CALLS: list[tuple[Callable[[], object], type[Exception], str]] = [
    # A device, or several buffers, where the size goes.
    (lambda: pinning.lock(A, "cuda:0"), TypeError, "size is 'cuda:0'.* device="),
    (lambda: pinning.lock(A, B), TypeError, "size is a ndarray.* pinning.locked"),
    (lambda: pinning.lock_async(A, "host"), TypeError, "size is 'host'.* device="),
    (lambda: pinning.locked([A, B]), TypeError, r"one by one.* locked\(\*buffers\)"),
    (lambda: pinning.locked((A, B)), TypeError, r"one by one.* locked\(\*buffers\)"),
    (lambda: pinning.locked(5), TypeError, "int is not a buffer; pass"),
    (lambda: arrays.pinned(5), TypeError, "int is not a buffer; pass"),
    (lambda: pinning.locked(A, device="foo"), ArgumentError, "foo"),
    # A device that is misspelt, rather than missing.
    (lambda: pinning.device("foo"), ArgumentError, "no device 'foo', nor a plugin 'foo': .*host:0.* plugins .*host"),
    (lambda: pinning.alloc(8, device="hots"), ArgumentError, "no device 'hots'"),
    (lambda: pinning.device("host:x"), ArgumentError, "'host:x': give an index, as in 'host:0'"),
    (lambda: pinning.device("host:"), ArgumentError, "'host:': give an index"),
    (lambda: pinning.device("host:00"), ArgumentError, "'host:00': give an index"),
    (lambda: pinning.device("host:7"), pinning.PluginUnavailableError, "no device 'host:7': those present are"),
    (lambda: pinning.alloc(8, context="host", device="cuda"), ArgumentError, "cuda is not in .*: name one of its"),
    # Not a device.
    *(
        (call, TypeError, "0 is not a device; give a name")
        for call in (
            lambda: pinning.device(0),
            lambda: pinning.lock(A, device=0),
            lambda: pinning.unlock(A, device=0),
            lambda: pinning.is_locked(A, device=0),
            lambda: pinning.regions(0),
            lambda: pinning.pinned_map(0),
            lambda: pinning.memory_connection(0, 0),
            lambda: Context(0),
            lambda: Context([0]),
            lambda: Pool(0),
            lambda: Queue(0),
            lambda: Arena(4096, devices=0),
            lambda: Arena(4096, devices=["host", 0]),
        )
    ),
    # Not a number of bytes.
    (lambda: pinning.alloc("1GB"), TypeError, "nbytes is '1GB'; it must be an integer"),
    (lambda: pinning.alloc(4096.0), TypeError, "nbytes is 4096.0; it must be an integer"),
    (lambda: pinning.alloc(4096, alignment="16"), TypeError, "alignment is '16'"),
    (lambda: Arena("1GB"), TypeError, "nbytes is '1GB'"),
    (lambda: Arena(4096, unit="x"), TypeError, "unit is 'x'"),
    (lambda: Arena(4096, name=5), TypeError, "name is 5; it must be a string"),
    (lambda: Pool("host", maximum_size="x"), TypeError, "maximum_size is 'x'"),
    (lambda: pinning.lock(A, piece=1.5), TypeError, "piece is 1.5"),
    (lambda: pinning.lock(A, unit="x"), TypeError, "unit is 'x'"),
    (lambda: pinning.lock(A, stall_ms="x"), TypeError, "stall_ms is 'x'"),
    (lambda: pinning.is_locked(8192, 1.5), TypeError, "size is 1.5"),
    (lambda: pinning.copy(A, B, 8.0), TypeError, "nbytes is 8.0; it must be an integer"),
    (lambda: pinning.copy_2d_async(A, "64", B, 64, 64, 1), TypeError, "dst_pitch is '64'"),
    (lambda: pinning.copy_blocks_async(A, [0], B, [0], "64"), TypeError, "block_bytes is '64'"),
    (lambda: pinning.copy_file(A, __file__, "x"), TypeError, "offset is 'x'"),
    (lambda: pinning.lock(A, unit=3), InvalidRangeError, "unit is 3; it must be a multiple of .* 8 bytes"),
    (lambda: used_twice(Queue("host")), PinningError, "is closed: make another"),
    (lambda: used_twice(Context("host")), PinningError, "is closed: make another"),
    (lambda: used_twice(Pool(Context("host"))), PinningError, "is closed: make another"),
    (lambda: used_twice(Arena(1, "host")), PinningError, "is closed: make another"),
    (lambda: closed_arena().allocate(1), PinningError, "is closed, .*: make another"),
    (lambda: initialized_again(Queue("host")), TypeError, "a Queue cannot be initialized again"),
    (lambda: initialized_again(Context("host")), TypeError, "a Context cannot be initialized again"),
    (lambda: initialized_again(Pool("host")), TypeError, "a Pool cannot be initialized again"),
    (lambda: initialized_again(Queue("host"), closed=True), TypeError, "a Queue cannot be initialized again"),
    (lambda: initialized_again(Context("host"), closed=True), TypeError, "a Context cannot be initialized again"),
    (lambda: initialized_again(Pool("host"), closed=True), TypeError, "a Pool cannot be initialized again"),
    (lambda: pinning.budget(idle="x"), TypeError, "idle is 'x'; .*, or True or False"),  # type: ignore[arg-type]
    (lambda: pinning.alloc(5, alignment=1 << 62, device="host"), InvalidRangeError, "alignment is .* and 1073741824"),
    (lambda: with_arena(lambda arena: arena.allocate(5, 1 << 40)), InvalidRangeError, "alignment is 1099511627776"),
    (lambda: pinning.lock(A, stall_ms=0), InvalidRangeError, "stall_ms is 0; it must be above 0"),
    (lambda: pinning.copy(A.ctypes.data, B.ctypes.data, 1 << 64), InvalidRangeError, r"between 1 and 2\*\*63 - 1"),
    (lambda: MAP.register(8192, 100, (1 << 64) - 5), InvalidRangeError, "the device's range .* passes 2.64"),
    (lambda: MAP.register(0, 10, 0), InvalidRangeError, "the range begins at the null pointer"),
    (lambda: MAP.register(8192, 0, 8192), InvalidRangeError, "has 0 bytes; give at least one"),
    (lambda: HOST.is_pinned_ptr(-1), InvalidRangeError, r"ptr is -1; it must lie in \[0, 2\*\*64\)"),
    (lambda: HOST.memory_info(1 << 70), InvalidRangeError, "ptr is 1180591620717411303424; it must lie"),  # type: ignore[attr-defined]
    (lambda: HOST.data_lock("x", 1, None), TypeError, "ptr is 'x'; it must be an integer"),  # type: ignore[arg-type]
    *(
        (lambda call=call: call(freed()), InvalidRangeError, "no longer has any bytes .* allocate another")
        for call in (lambda m: pinning.explain(A, m), lambda m: pinning.copy(m, A), lambda m: pinning.fill(m, 0))
    ),
    # Not a bool, and a bool where something else belongs.
    (lambda: pinning.regions(idle="no"), TypeError, "idle is 'no'; it must be True or False"),  # type: ignore[arg-type]
    (lambda: pinning.fill(A, True), TypeError, "the value is True; give a byte, such as 1"),
    (lambda: Queue("host").submit(None, keep=5), TypeError, "keep is 5; it must be several objects"),  # type: ignore[call-overload]
    (lambda: Queue("host").submit(None, kind=5), TypeError, "kind is 5; it must be a function"),  # type: ignore[call-overload]
    (lambda: arrays.to_device(A, device="host").__dlpack__(max_version=5), TypeError, "max_version is 5; it must be"),  # type: ignore[arg-type]
    # What others return.
    (
        lambda: pinning.copy(A, B, queue=Streaming()),
        TypeError,
        r"__cuda_stream__ returned 5; it must return \(0, handle\)",
    ),
    (lambda: pinning.lock(Interface((1 << 70, False))), InvalidRangeError, "this Interface gives no access"),
    (lambda: arrays.as_device_array(Interface(shape=(1 << 62,))), InvalidRangeError, "is malformed"),
    (lambda: Arena(4096, name="a\ud800"), ArgumentError, "name is 'a.ud800'; it must have 1 to 200 bytes"),
    (lambda: with_memory(lambda memory: pinning.free(memory, "host")), TypeError, "context is 'host'"),  # type: ignore[arg-type]
    (lambda: copy.copy(PageTable()), TypeError, "a PageTable is neither copied nor pickled"),
    # Indices, addresses and sizes of a batch.
    (lambda: pinning.copy_blocks_async(A, NONE, B, NONE, 8), InvalidRangeError, "dst_indices is empty"),
    (lambda: pinning.copy_blocks_async(A, [], B, [], 8), InvalidRangeError, "dst_indices is empty"),
    (
        lambda: pinning.copy_blocks_async(A, [0, 1 << 64], B, [0, 1], 8),
        InvalidRangeError,
        r"item 1 .* not in \[0, 2\*\*64\)",
    ),
    (lambda: pinning.copy_blocks_async(A, [0, 1.5], B, [0, 1], 8), TypeError, "item 1 .* dst_indices is 1.5"),
    (lambda: pinning.copy_blocks_async(A, [0], B, [[0], [1, 2]], 8), TypeError, "src_indices is a list"),
    (lambda: pinning.copy_batch([A, A], [B, B], [8, -(1 << 63)]), InvalidRangeError, "item 1 .* in sizes is negative"),
    (lambda: pinning.copy_batch([A, A], [B, B], [8, 1 << 64]), InvalidRangeError, "item 1 .* in sizes is not in"),
    (lambda: pinning.copy_batch(*ENDS, [8, 1 << 63]), InvalidRangeError, f"item 1 .* its size is {1 << 63}"),
    (lambda: pinning.copy_batch(*ENDS, [1 << 62, 1 << 62]), InvalidRangeError, "item 1 .* together have fewer"),
    (lambda: pinning.copy_batch([A, A], [B, B], [8, [8, 8]]), TypeError, "item 1 of sizes is a list"),
    (lambda: pinning.copy_batch([1 << 64], [B], 8), InvalidRangeError, "item 0 .* not an address of memory"),
    (lambda: pinning.copy_batch([A, 1 << 64], [B, B], 8), InvalidRangeError, "item 1 .* not an address of memory"),
    (lambda: pinning.copy(1 << 64, A, 8), InvalidRangeError, "not an address of memory"),
    (lambda: MAP.overlapping(8, 0), InvalidRangeError, "at least one byte"),
    (lambda: pinning.copy(5, 6, 7), InvalidRangeError, "0x5 is not an address .* pass a buffer"),
    (lambda: pinning.copy_blocks(A, [0.5], B, [0], 8), TypeError, "item 0 of dst_indices is 0.5; it must be an"),
    (lambda: pinning.copy_batch([8192], [8192]), InvalidRangeError, "item 0 .*: give sizes"),
    (lambda: pinning.copy_2d_async(A, 64, B, 64, 8, 0), InvalidRangeError, "width is 8 and height 0; both must"),
    (lambda: pinning.copy_file(A, __file__, -1), InvalidRangeError, "offset is -1; it must be at least 0 and below"),
    # Not a bool, not a callback.
    (lambda: pinning.lock(A, coherent="yes"), TypeError, "coherent is 'yes'"),
    (lambda: pinning.lock(A, read_only="no"), TypeError, "read_only is 'no'"),
    (lambda: pinning.lock(A, progress=5), TypeError, "progress is 5"),
    # Objects whose class has left out __init__.
    *(
        (call, PinningError, "is closed; nothing can be submitted")
        for call in (
            lambda: pinning.copy(B, A, queue=UnmadeQueue()),
            lambda: pinning.copy_batch([B], [A], queue=UnmadeQueue()),
            lambda: pinning.fill(B, 1, queue=UnmadeQueue()),
        )
    ),
    (lambda: Queue("host").alloc(8, pool=UnmadePool()), PinningError, "has not called __init__"),
    # A buffer where an address goes, and vice versa.
    *(
        (call, TypeError, "int64 is not a buffer; pass .* an address and size=")
        for call in (
            lambda: pinning.lock(numpy.int64(A.ctypes.data)),
            lambda: pinning.lock_async(numpy.int64(A.ctypes.data)),
            lambda: pinning.locked(numpy.int64(A.ctypes.data)),
        )
    ),
    *((call, TypeError, "address is True") for call in (lambda: MAP.find(True), lambda: True in MAP)),
    (lambda: A in pinning.pinned_map("host"), TypeError, "pinning.is_locked"),
    (lambda: pinning.pinned_map("host").lock(A, 8), TypeError, "address is a ndarray"),
    (lambda: pinning.pinned_map("host").lock(A), TypeError, "address is a ndarray; .* buffers are for pinning.lock"),
    (lambda: pinning.pinned_map("host").lock(8192), TypeError, r"size is missing; .* lock\(address, size\)"),
    (lambda: pinning.unlock(A), NotLockedError, r"no locked region holds 0x.*pinning.regions\(\)"),
    *((lambda call=call: call(True), TypeError, "True is neither") for call in (pinning.unlock, pinning.memory_info)),
    (lambda: pinning.lock(True, 10), TypeError, "True is neither a buffer nor an address"),
    (lambda: pinning.unlock(pinning.lock(A), device=FakeDevice()), NotLockedError, "not a lock for fake:0"),
    (lambda: with_arena(lambda arena: pinning.unlock(arena.ptr)), NotLockedError, "by its owner, an arena"),
    (lambda: of_allocation(pinning.unlock), NotLockedError, "by its owner, an arena, an allocation"),
    (lambda: of_allocation(pinning.pinned_map("host").unlock), NotLockedError, "by its owner, an arena, an allocation"),
    (
        lambda: of_allocation(lambda ptr: pinning.lock((ptr + 50, 100), device="host")),
        InvalidRangeError,
        "its owner, an arena, an alloc.*: close, free",
    ),
    (lambda: pinning.copy(A, (4096, 8), 8), InvalidRangeError, "not mapped"),
    (lambda: with_memory(lambda memory: pinning.copy(memory, (4096, 8), 8)), InvalidRangeError, "not mapped"),
    (lambda: with_memory(lambda memory: pinning.copy((4096, 8), memory, 8)), InvalidRangeError, "not mapped"),
    (enter_cancelled, pinning.PinningError, "was cancelled; lock the buffer again"),
    (lambda: pinning.pinned_map("host").find(A), TypeError, "address is a ndarray"),
    (lambda: pinning.free(A), TypeError, "memory is a ndarray"),
    (lambda: pinning.copy(A, 5), InvalidRangeError, "0x5 is not an address"),
    (lambda: pinning.fill_async(A, 1.5), TypeError, "1.5 is not a byte"),
    (lambda: pinning.fill_async(A, "1"), TypeError, "'1' is not a byte"),
    # Queues, events, pools.
    (lambda: Queue("host").submit(3), TypeError, "work is 3; it must be a function"),  # type: ignore[call-overload]
    (lambda: Queue("host").call(3), TypeError, "function is 3; it must be a function"),  # type: ignore[arg-type]
    (lambda: Queue("host").alloc(4096, "x"), ValueError, "kind is 'x'"),
    (lambda: Queue("host").alloc(4096, pool="x"), TypeError, "pool is 'x'"),
    (lambda: Queue("host").alloc(4096, wait_for=5), TypeError, "wait_for is 5"),
    (lambda: Queue("host").free(A), TypeError, "memory is a ndarray; it must be an allocation"),
    (lambda: Pool("host").alloc(A, 4096), TypeError, "queue is a ndarray"),
    (lambda: pinning.copy(A, B, queue=A), TypeError, "a ndarray is not a queue"),
    (lambda: pinning.copy_batch(None, [B]), TypeError, "dsts is None"),
    (lambda: pinning.load_file(5), TypeError, "path is 5"),
    (lambda: pinning.save_file(5, "x"), TypeError, "tensors is 5"),
    (lambda: Queue(order=A), ValueError, "order is a ndarray; it must be 'in_order'"),
    (lambda: Queue.adopt(-1, "host"), InvalidRangeError, "-0x1 is not a handle"),
    (lambda: Queue.adopt(1 << 80, "host"), InvalidRangeError, "is not a handle"),
    (lambda: Queue("host").call(print, wait_for=A), TypeError, "wait_for takes a list of events"),
    (lambda: Queue("host").wait_for([]), TypeError, r"an argument is a list; .* wait_for\(\*events\)"),  # type: ignore[arg-type]
    (lambda: Queue.adopt(True), TypeError, "the queue is True; it must be an integer, the handle"),
    (lambda: pinning.load_file("/dev/null", 3), TypeError, "3 is not a device"),  # type: ignore[call-overload]
    (lambda: pinning.copy_blocks(B, None, A, [0], 8), TypeError, "dst_indices is None; it must be whole numbers"),  # type: ignore[arg-type]
    (lambda: Queue("host").record().elapsed(3), TypeError, "since is 3; it must be the event"),
    (lambda: Event._over(error="x"), TypeError, "error is 'x'; it must be an exception"),
    (lambda: pinning.copy_batch_async([A, A], [B, B], engine=A), ValueError, "engine is a ndarray; it must be"),
    (lambda: pinning.memory_info(int), TypeError, "is a class; give an object of it"),
    (lambda: pinning.lock(numpy.ndarray), TypeError, "is a class; give an object of it"),
    (lambda: pinning.lock(A, stall_ms="3"), TypeError, "stall_ms is '3'; it must be a number of milliseconds"),
    (lambda: MAP.lock(A.ctypes.data, True), TypeError, "size is True; a map takes integers"),
    (lambda: pinning.copy_batch(*[numpy.ones(2, "u2")] * 2, 8), TypeError, "dsts is an array of uint16"),
    # Objects whose bytes must not be copied, or cannot be accessed.
    (lambda: pinning.copy(OBJECTS, A), TypeError, "holds Python objects.* astype"),
    (lambda: pinning.copy(A, memoryview(OBJECTS)), TypeError, "holds Python objects"),
    (lambda: pinning.fill_async(OBJECTS, 1), TypeError, "holds Python objects"),
    (lambda: pinning.lock(Series()), TypeError, "Series is not a buffer; pass its array, such as to_numpy"),
    (
        lambda: numpy.asarray(Queue("host").alloc(8)[0]),
        TypeError,
        r"not memory that NumPy can read: .*pinning.copy\(",
    ),
    (lambda: pinning.alloc(8, 5), TypeError, "kind is 5; it must be a MemoryKind"),
    # Times and paths.
    (lambda: waited(timeout="x"), TypeError, "timeout is 'x'; it must be a number of seconds"),
    (lambda: waited(timeout=float("nan")), InvalidRangeError, "timeout is nan"),
    (lambda: waited_for_arena(timeout=float("nan")), InvalidRangeError, "timeout is nan"),
    (lambda: pinning.load_file([], "host"), ArgumentError, "path names no file; give at least one"),
    (lambda: pinning.save_file({"a": A.astype(">f4")}, "x"), TypeError, r"big-endian.*: save astype\('<f4'\)"),
    (lambda: pinning.files.shard(0, 0, 0), InvalidRangeError, "of is 0; it must be at least 1"),
    (lambda: waited(nbytes="x"), TypeError, "nbytes is 'x'; it must be an integer"),
    (lambda: waited_for_arena(timeout="x"), TypeError, "timeout is 'x'"),
    (lambda: pinning.copy_file(A, None), TypeError, "path is None; it must be a path"),
    (lambda: pinning.copy_file(A, b"\0"), ValueError, "null character"),
    (lambda: pinning.load_file([1]), TypeError, "path is 1; it must be a path"),
    (lambda: pinning.save_file({"a": A}, 5), TypeError, "path is 5; it must be a path"),
    (lambda: pinning.save_file({"a": A}, "x", metadata="y"), TypeError, "metadata is 'y'; it must be a dict"),
    (lambda: pinning.save_file({"a": A}, "x", metadata={"b": 1}), TypeError, "metadata has 'b': 1; both must"),
    (lambda: pinning.save_file({"a": 5}, "x"), TypeError, "the tensor 'a' is 5; it must be an array"),
    (lambda: pinning.save_file({"a": A}, "/no/such/x"), FileNotFoundError, "'/no/such/x'$"),
    # Page tables and maps.
    *(
        (call, TypeError, f"{name} is 'x'; it must be an integer")
        for name, call in (
            ("address", lambda: TABLE.find("x")),  # type: ignore[arg-type]
            ("address", lambda: "x" in TABLE),
            ("start", lambda: TABLE.find_range("x", 1)),  # type: ignore[arg-type]
            ("size", lambda: TABLE.insert(1, "x")),  # type: ignore[arg-type]
            ("start", lambda: TABLE.remove("x")),  # type: ignore[arg-type]
            ("size", lambda: TABLE.overlapping(1, "x")),  # type: ignore[arg-type]
        )
    ),
    (lambda: PageTable(5), TypeError, "no positional argument, such as int; give none"),  # type: ignore[arg-type]
    (lambda: pinning.Region(), TypeError, "a Region comes from"),
    (lambda: PageTable(flat="x"), TypeError, "flat is 'x'; it must be True or False"),  # type: ignore[arg-type]
    (lambda: TABLE.contains_many([1], [1, 2]), RangeError, r"shape \(2,\); give one size, or one for each of 1"),
    (lambda: MAP.add_registrar(print, 5), TypeError, "unregister is 5; it must be a function"),
    (lambda: MAP.add_registrar(print, print, name=5), TypeError, "name is 5; it must be a string"),
    (lambda: MAP.lock_mapped(8, 8, []), ValueError, "policy is a list; it must be one of 'off'"),
    (lambda: region_of_a().device_ptr_of(1.5), TypeError, "address is 1.5"),
    (lambda: region_of_a().in_one_piece("x", 8), TypeError, "address is 'x'"),
    (lambda: "x" in region_of_a(), TypeError, "address is 'x'"),
    # Arrays of devices, and arenas.
    (lambda: arrays.device_array(8, dtype="x"), TypeError, "dtype is 'x'; it must be a NumPy dtype"),
    (lambda: arrays.device_array(8, order=A), ArgumentError, "order is a ndarray; it must be 'C'"),
    (lambda: arrays.to_device(A, to="host"), TypeError, "to is 'host'; it must be a DeviceArray.* device="),
    (lambda: arrays.to_device(A, device="host").transpose("x"), TypeError, "axes is 'x'"),
    (lambda: arrays.to_device(A, device="host").squeeze([]), TypeError, "axis is a list"),
    (lambda: arrays.to_device(A, device="host").transpose((0.0,)), TypeError, r"axes\[0\] is 0.0; it must be an"),
    (lambda: arrays.to_device(A, device="host").reshape(256, 2.0), TypeError, r"shape\[1\] is 2.0; it must be an"),
    (lambda: arrays.to_device(A, device="host").reshape("x"), TypeError, "shape is 'x'; it must be an.* or several"),
    (lambda: arrays.device_array((2.0, 3)), TypeError, r"shape\[0\] is 2.0; it must be an integer"),
    (lambda: arrays.device_array(b"ab"), TypeError, "shape is b'ab'; it must be an integer, .* or several"),
    (lambda: arrays.device_array(True), TypeError, "shape is True; it must be an integer"),
    (lambda: arrays.device_array((2, 3), strides=("x", 1)), TypeError, r"strides\[0\] is 'x'; it must be an"),
    (lambda: arrays.device_array((2, 3), strides=()), LayoutError, r"strides are \(\); the shape \(2, 3\) needs 2"),
    (lambda: pinning.lock(EmptyTensor()), InvalidRangeError, "the buffer is empty"),
    (lambda: arrays.to_device(None, device="host"), TypeError, "None is no array"),
    (lambda: arrays.to_device({}, device="host"), TypeError, "a dict is no array"),
    (lambda: arrays.device_array(1, device="host").copy_to_device(None), TypeError, "None is no array"),
    (lambda: arrays.to_device(A, copy="x", device="host"), TypeError, "copy is 'x'; it must be True or False"),
    (lambda: arrays.as_device_array(A, sync=3), TypeError, "sync is 3; it must be True or False"),
    *(
        (lambda make=make, what=what: make(A, device="host", **what), TypeError, "is 1; it must be True or False")
        for make in (lambda a, **how: arrays.mapped_array(a.shape, **how), arrays.mapped_array_like)
        for what in ({"wc": 1}, {"portable": 1})
    ),
    *(
        (lambda call=call: call(), TypeError, "a DeviceArray comes from device_array, to_device or")
        for call in (arrays.DeviceArray, lambda: arrays.DeviceArray(A, None))
    ),
    *(
        (lambda call=call: call(stream=0), ArgumentError, "stream is 0; omit the argument where numba takes")
        for call in (
            lambda stream: arrays.to_device(A, stream=stream),
            arrays.to_device(A, device="host").copy_to_host,
            lambda stream: arrays.mapped_array(8, stream=stream),
            lambda stream: arrays.auto_synchronize(stream).__enter__(),
        )
    ),
    (lambda: Arena(4096, devices=(), numa_node=4711), InvalidRangeError, "it must be one of this machine's nodes: 0"),
    (lambda: Arena(4096, devices=(), numa_node=[]), TypeError, "numa_node is a list"),
    (lambda: Arena(4096, devices=(), huge_pages=A), ArgumentError, "huge_pages is a ndarray"),
    (lambda: Pool("host").trim_to("x"), TypeError, "the size to trim to is 'x'"),
]

# Each takes a number of bytes, which must not be 0.
BYTES: dict[str, Callable[[Any], object]] = {
    "lock": lambda n: pinning.lock(A, n),
    "lock of an address": lambda n: pinning.lock(A.ctypes.data, n),
    "lock of a pair": lambda n: pinning.lock((A.ctypes.data, n)),
    "piece": lambda n: pinning.lock(A, piece=n),
    "unit": lambda n: pinning.lock(A, unit=n),
    "lock_async": lambda n: pinning.lock_async(A, n),
    "alloc": pinning.alloc,
    "alignment": lambda n: pinning.alloc(64, alignment=n),
    "Context.alloc": lambda n: Context("host").alloc(n),
    "Queue.alloc": lambda n: Queue("host").alloc(n),
    "Pool.alloc": lambda n: Pool("host").alloc(Queue("host"), n),
    "Arena": lambda n: Arena(n, devices=()),
    "grow": lambda n: Arena(64, devices=(), grow=n),
    "unit of an arena": lambda n: Arena(64, devices=(), unit=n),
    "Arena.allocate": lambda n: of_arena("allocate", n),
    "alignment in an arena": lambda n: of_arena("allocate", 64, n),
    "device_ptr_of": lambda n: of_arena("device_ptr_of", A.ctypes.data, n),
    "copy": lambda n: pinning.copy(A, B, n),
    "explain": lambda n: pinning.explain(A, B, n),
    "fill": lambda n: pinning.fill_async(A, 0, n),
    "copy_batch": lambda n: pinning.copy_batch([A, A], [B, B], n),
    "copy_batch of addresses": lambda n: pinning.copy_batch(*ENDS, n),
    "copy_batch, one item": lambda n: pinning.copy_batch([A], [B], n),
    "copy_blocks": lambda n: pinning.copy_blocks_async(A, [0], B, [0], n),
    "copy_2d_async, width": lambda n: pinning.copy_2d_async(A, 64, B, 64, n, 2),
    "copy_2d_async, pitch": lambda n: pinning.copy_2d_async(A, n, B, 64, 8, 2),
    "copy_file": lambda n: pinning.copy_file(A, __file__, 0, n),
}

# Each takes a number of bytes, which may be 0.
FROM_0: dict[str, Callable[[Any], object]] = {
    "budget": pinning.budget,
    "give_back_idle": pinning.give_back_idle,
    "idle": lambda n: pinning.budget(idle=n),
    "Arena.wait": lambda n: of_arena("wait", n),
    "PendingLock.wait": lambda n: waited(nbytes=n),
    "offset": lambda n: pinning.copy_file(A, __file__, n),
    "part": lambda n: Arena(64, devices=(), name="/none", part=slice(n, 64)),
}


@pytest.mark.parametrize("name", [*BYTES, *FROM_0])
def test_a_number_of_bytes_that_nothing_has_is_refused(name: str) -> None:
    for wrong in (-1, 1 << 63, 1 << 64, 10**30, *([0] if name in BYTES else [])):
        with pytest.raises(InvalidRangeError):
            print((BYTES | FROM_0)[name](wrong), "for", wrong)


@pytest.mark.parametrize("name", [*BYTES, *FROM_0])
def test_what_is_no_number_of_bytes_is_refused_by_its_type(name: str) -> None:
    wrong = [True, 8.0, numpy.float32(8), numpy.bool_(True), "8", b"8", 8j]
    if name == "idle":
        wrong.remove(True)  # means no limit
    if name == "budget":
        wrong = [each for each in wrong if not isinstance(each, float | numpy.floating)]  # refused as fractions
    for each in wrong:
        with pytest.raises(TypeError, match="it must be an integer"):
            print((BYTES | FROM_0)[name](each), "for", each)


def waited(**arguments: Any) -> None:
    pending = pinning.lock_async(A, device="host")
    try:
        pending.wait(**arguments)
    finally:
        pending.cancel()


def of_arena(method: str, *arguments: Any) -> object:
    with Arena(4096, devices="host") as arena:
        return getattr(arena, method)(*arguments)


def waited_for_arena(timeout: Any) -> None:
    with Arena(4096, devices="host") as arena:
        arena.wait(timeout=timeout)


def of_allocation(call: Callable[[int], object]) -> object:
    with pinning.alloc(100, "host", device="host") as memory:
        return call(memory.ptr)


def region_of_a() -> pinning.Region:
    with pinning.lock(A, device="host") as lock:
        assert lock.region is not None
        return lock.region


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_a_wrong_call_is_refused_with_the_way_out(number: int) -> None:
    call, error, text = CALLS[number]
    with pytest.raises(error, match=text) as caught:
        call()
    assert len(str(caught.value)) < 400
    assert not pinning.is_locked(A)


def test_names_do_wherever_a_device_does() -> None:
    name = HOST.name
    assert pinning.device(HOST) is HOST
    assert pinning.memory_connection(name, name) == pinning.memory_connection(HOST, HOST)
    with pinning.alloc(4096, MemoryKind.HOST, context=name) as one, pinning.alloc(4096, "host", context=HOST) as other:
        assert one.context is other.context
        assert type(one) is pinning.Allocation
        assert one.kind is other.kind is MemoryKind.HOST


def test_no_memory_is_one_error() -> None:
    with pytest.raises(MemoryError, match="asked for 1152921504606846976 bytes; allocate less") as caught:
        pinning.alloc(1 << 60, MemoryKind.DEVICE, device="host")
    assert isinstance(caught.value, OutOfMemoryError)
    assert isinstance(caught.value, VendorError)
    assert caught.value.name == "ENOMEM"
    with pytest.raises(MemoryError, match="more than the machine's memory allows"):
        pinning.alloc(1 << 60, MemoryKind.HOST, device="host")

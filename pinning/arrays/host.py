# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays in memory that devices access: locked for a while, pinned, mapped, managed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy
from numpy.typing import DTypeLike

from pinning.arrays.buffer import allocate
from pinning.arrays.create import layout_of
from pinning.arrays.layout import Array, Plan, Shape, plan, plan_like
from pinning.arrays.streams import Stream, device_of, queue_of
from pinning.errors import PartialOverlapError
from pinning.interop.memory_of import HostBuffer, host_buffer
from pinning.locking.devices import pinned_map
from pinning.locking.lock import Lock, lock
from pinning.map.pinned_map import PinnedMap, Region
from pinning.memory import Allocation
from pinning.memory.allocation import find
from pinning.plugin import Device, MemoryKind
from pinning.runtime.arguments import flag
from pinning.runtime.buffers import Buffer
from pinning.runtime.handles import Block

_TRIES = 100  # to lock a range while other threads lock and unlock parts of it


def pinned(*arylist: Buffer, device: Device | str | None = None) -> AbstractContextManager[tuple[Lock, ...]]:
    """Lock arrays, or other buffers of the host, during a ``with`` block: all of them or none.

    They may overlap one another and locked memory. Arrays that overlap or touch are locked as one range; a part that is
    already locked is counted there, and only the rest is newly locked.

    Yields
    ------
    tuple of Lock
        In the order of addresses; most programs do not need them.

    Raises
    ------
    TypeError, InvalidRangeError, LockLimitError, VendorError
        As `pinning.lock`.
    """
    buffers = [host_buffer(each) for each in arylist if not _is_empty(each)]  # these also keep the memory in place
    device_map = pinned_map(device)
    return Block(lambda: _pinned(buffers, device_map), "pinning.arrays.pinned")


@contextmanager
def _pinned(buffers: list[HostBuffer], device_map: PinnedMap) -> Iterator[tuple[Lock, ...]]:
    with ExitStack() as stack:
        yield tuple(lock for whole in _united(buffers) for lock in _locked_in_parts(whole, device_map, stack))


def pinned_array(
    shape: Shape,
    dtype: DTypeLike = numpy.float64,
    strides: Shape | None = None,
    order: str = "C",
    *,
    device: Device | str | None = None,
) -> Array:
    """An uninitialized NumPy array in pinned memory, whose copies to and from devices are direct.

    Parameters and errors are those of `device_array`. The memory returns to the device's pool some time after the last
    view of the array is gone, and after the device has completed all its work.
    """
    return _host_array(plan(shape, dtype, strides, order), MemoryKind.HOST, None, device)


def pinned_array_like(ary: Any, *, device: Device | str | None = None) -> Array:
    """A `pinned_array` with the shape, dtype and order of dimensions of an array."""
    return _host_array(plan_like(layout_of(ary)), MemoryKind.HOST, None, device)


class MappedArray(numpy.ndarray[Any, Any]):
    """A NumPy array in memory that the host and devices access in place, from `mapped_array` or `managed_array`.

    Its views are of this class too, and so are results of arithmetic with it; these lie in ordinary memory and have
    neither `device_ptr` nor ``__cuda_array_interface__``. If the host and a device use it at the same time, the program
    must ensure the order, such as by ``synchronize``.
    """

    @property
    def device_ptr(self) -> int:
        """Address of the first element, for the device where it was allocated."""
        allocation = self._allocation()
        return allocation.device_ptr + self.ctypes.data - allocation.ptr

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        device = self._allocation().device
        if device.vendor != "cuda":
            raise AttributeError(f"an array of {device.name} has no __cuda_array_interface__: that is for CUDA")
        address = self.device_ptr, not self.flags.writeable
        return {**self.__array_interface__, "data": address, "stream": None, "version": 3}

    def _allocation(self) -> Allocation:
        allocation = find(self.ctypes.data)
        if allocation is None:
            raise AttributeError(
                "this array lies in ordinary memory, which no device reaches: copy it into a mapped_array"
            )
        return allocation


def mapped_array(
    shape: Shape,
    dtype: DTypeLike = numpy.float64,
    strides: Shape | None = None,
    order: str = "C",
    stream: Stream = None,
    portable: bool = True,
    wc: bool = False,
    *,
    device: Device | str | None = None,
) -> MappedArray:
    """A NumPy array in pinned memory that devices access in place, over the bus.

    Parameters
    ----------
    shape, dtype, strides, order, stream, device
        As for `device_array`.
    portable : bool
        Whether all devices of the plugin can use it. They always can.
    wc : bool
        Write-combined: faster for devices to read, and very slow for the host to read. It comes from the vendor, not
        from the pool.

    Raises
    ------
    PinningError
        `wc`, and the device has no such memory. Otherwise as `device_array`.
    """
    flag(portable, "portable")  # either way: `MemoryDevice.allocate` pins HOST memory for all devices of the plugin
    return _host_array(plan(shape, dtype, strides, order), MemoryKind.HOST, stream, device, wc).view(MappedArray)


def mapped_array_like(
    ary: Any, stream: Stream = None, portable: bool = True, wc: bool = False, *, device: Device | str | None = None
) -> MappedArray:
    """A `mapped_array` with the shape, dtype and order of dimensions of an array."""
    flag(portable, "portable")
    return _host_array(plan_like(layout_of(ary)), MemoryKind.HOST, stream, device, wc).view(MappedArray)


def managed_array(
    shape: Shape,
    dtype: DTypeLike = numpy.float64,
    strides: Shape | None = None,
    order: str = "C",
    stream: Stream = None,
    *,
    device: Device | str | None = None,
) -> MappedArray:
    """A NumPy array in memory that migrates between the host and devices when used. As `mapped_array`."""
    return _host_array(plan(shape, dtype, strides, order), MemoryKind.SHARED, stream, device).view(MappedArray)


def _host_array(
    planned: Plan, kind: MemoryKind, stream: Stream, device: Device | str | None, wc: bool = False
) -> Array:
    flag(wc, "wc")
    target = device_of(device, stream)
    buffer = allocate(planned.nbytes, kind, target, None if stream is None else queue_of(stream, target), wc)
    return planned.over(numpy.asarray(buffer) if planned.nbytes else numpy.empty(0, numpy.uint8))


# ---- ranges to lock ----


def _is_empty(buffer: Buffer) -> bool:
    return isinstance(buffer, numpy.ndarray) and not buffer.nbytes


def _united(buffers: list[HostBuffer]) -> list[tuple[int, int, bool | None]]:
    """Start, end and `read_only` of the ranges that buffers form together, in the order of addresses."""
    ranges: list[tuple[int, int, bool | None]] = []
    for each in sorted(buffers, key=lambda buffer: buffer.ptr):
        start, end, read_only = each.ptr, each.ptr + each.size, each.read_only
        if ranges and start <= ranges[-1][1]:
            start, before, same = ranges.pop()
            end, read_only = max(end, before), read_only if read_only == same else None
        ranges.append((start, end, read_only))
    return ranges


def _locked_in_parts(whole: tuple[int, int, bool | None], device_map: PinnedMap, stack: ExitStack) -> list[Lock]:
    """Lock a range in parts: inside the regions that are already locked, and between them."""
    start, end, read_only = whole
    tries = 0
    while True:
        regions = device_map.overlapping(start, end - start)
        try:
            with ExitStack() as undo:
                locks = [
                    undo.enter_context(lock((at, to - at), device=device_map.device, read_only=read_only))
                    for at, to in _parts(regions, start, end)
                ]
                stack.push(undo.pop_all())
                return locks
        except PartialOverlapError:
            tries += 1
            if tries == _TRIES:  # otherwise another thread has probably locked or unlocked a part meanwhile
                raise


def _parts(regions: Iterable[Region], start: int, end: int) -> Iterator[tuple[int, int]]:
    """A range, cut at the bounds of the regions that are already locked."""
    at = start
    for region in regions:
        if region.start > at:
            yield at, region.start
            at = region.start
        part_end = min(region.start + region.whole, end)
        yield at, part_end
        at = part_end
    if at < end:
        yield at, end

# SPDX-License-Identifier: Apache-2.0
"""Numba's memory from pinning: device memory from pools, and `numba.cuda.pinned` through the map.

    NUMBA_CUDA_MEMORY_MANAGER=pinning.numba python program.py

or, before the first use of a GPU, ``numba.cuda.set_memory_manager(pinning.numba.MemoryManager)``.

`numba.cuda.pinned` and `mapped` may then be nested and may overlap, because the map counts locks. This package's copies
find these locks, and locking memory that this package has locked makes no vendor call. The module is an External Memory
Management plug-in of Numba, interface version 1.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from pinning.locking.devices import device as device_of_name
from pinning.locking.lock import lock
from pinning.memory import Context, Pool, alloc
from pinning.plugin import MemoryKind
from pinning.queues import Queue

try:
    import numpy
    from numba import cuda
    from numba.cuda.cudadrv.driver import AutoFreePointer, MappedMemory, MemoryInfo, PinnedMemory, binding
except ImportError as error:
    raise ImportError(
        f"pinning.numba needs numba-cuda, of which this is missing: {error}; pip install numba-cuda cuda-bindings"
    ) from error

_LEGACY_STREAM = 1  # CU_STREAM_LEGACY: its work is ordered with that of all streams that Numba makes
_LARGEST_WHOLE = 1 << 30


class MemoryManager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """The memory of one of Numba's contexts.

    Freed device memory returns to a pool of the device, in the order of the legacy default stream, with which all
    streams that Numba makes synchronize. A non-blocking stream of another library does not: as with Numba's other
    pools, wait for its work before the last array over the memory is gone.
    """

    _pool: Pool | None = None
    _queue: Queue

    @property
    def interface_version(self) -> int:
        """The version of Numba's interface, 1."""
        return 1

    def initialize(self) -> None:
        """Called whenever the context is made current."""
        if self._pool is not None:
            return
        device = self.context.device  # the driver's number, in a context that another library has made
        self._device = device_of_name(f"cuda:{int(getattr(device, 'id', device))}")
        self._queue = Queue.adopt(_LEGACY_STREAM, self._device)
        # Once the handle has been read, others may submit to the stream, so each free records its event there at once.
        assert self._queue.handle
        self._pool = Pool(Context(self._device), MemoryKind.DEVICE)
        self.deallocations.memory_capacity = self.get_memory_info().total

    def memalloc(self, size: int) -> Any:
        """Device memory from the pool."""
        allocation = self._retried(lambda: self._allocate(size))
        key, finalize = allocation.ptr, self._finalizer(allocation, size)
        memory = AutoFreePointer(weakref.proxy(self.context), _pointer(key), size, finalizer=finalize)
        self.allocations[key] = memory
        return memory.own()

    def memhostalloc(self, size: int, mapped: bool = False, portable: bool = False, wc: bool = False) -> Any:
        """Locked host memory; always portable."""
        allocation = self._retried(lambda: alloc(max(size, 1), MemoryKind.HOST, device=self._device, write_combined=wc))
        key, finalize = allocation.ptr, self._finalizer(allocation, size)
        context = weakref.proxy(self.context)
        if not mapped:
            return PinnedMemory(context, key, size, finalizer=finalize)
        memory = MappedMemory(context, key, size, finalizer=finalize)
        self.allocations[key] = memory
        return memory.own()

    def mempin(self, owner: Any, pointer: int, size: int, mapped: bool = False) -> Any:
        """Lock an array; memory that is already locked is counted.

        The array that owns the memory is locked as a whole, up to 1 GiB, so that overlapping views share one lock, and
        no copy by Numba crosses the border of a lock.
        """
        held = self._retried(lambda: lock(_whole(owner, int(pointer), size), device=self._device))
        allocations, key = self.allocations, held  # the same address may be mapped twice

        def finalize() -> None:
            allocations.pop(key, None)
            held.unlock()

        context = weakref.proxy(self.context)
        if not mapped:
            return PinnedMemory(context, pointer, size, owner=owner, finalizer=finalize)
        memory = MappedMemory(context, pointer, size, owner=owner, finalizer=finalize)
        allocations[key] = memory
        return memory.own()

    def get_memory_info(self) -> Any:
        """Free and total bytes of the device, as the driver reports them; free bytes of the pool count as free."""
        info = cuda.cudadrv.driver.driver.cuMemGetInfo()
        pool = self._pool
        idle = 0 if pool is None else pool.reserved - pool.used
        return MemoryInfo(free=info[0] + idle, total=info[1])

    def reset(self) -> None:
        """Free everything, and give it back to the driver."""
        super().reset()
        if self._pool is not None:
            self._queue.synchronize()  # blocks freed in it can be trimmed once earlier work is complete
            self._pool.trim_to(0)

    def _finalizer(self, allocation: Any, size: int) -> Callable[[], None]:
        """The function that Numba calls when the last reference is gone; it must not keep this manager alive."""
        allocations, deallocations, key = self.allocations, self.deallocations, allocation.ptr

        def finalize() -> None:
            allocations.pop(key, None)
            deallocations.add_item(_free, allocation, size)

        return finalize

    def _allocate(self, size: int) -> Any:
        assert self._pool is not None
        allocation, _ = self._queue.alloc(max(size, 1), pool=self._pool)
        return allocation

    def _retried(self, allocate: Any) -> Any:
        """Call `allocate`; if memory has run out, free all pending deallocations and try once more."""
        try:
            return allocate()
        except MemoryError:
            pass
        self.deallocations.clear()
        return allocate()


def _free(allocation: Any) -> None:
    allocation.free()


def _pointer(address: int) -> Any:
    return binding.CUdeviceptr(address)


def _whole(owner: Any, pointer: int, size: int) -> Any:
    """The buffer to lock: the array that owns these bytes if it is not too large, else these bytes."""
    if not isinstance(owner, numpy.ndarray):
        return pointer, size
    base = owner
    while isinstance(base.base, numpy.ndarray):
        base = base.base
    low, high = numpy.lib.array_utils.byte_bounds(base)
    if high - low > max(_LARGEST_WHOLE, size) or not base.flags.forc:
        return pointer, size
    return base


_numba_memory_manager = MemoryManager  # the name that NUMBA_CUDA_MEMORY_MANAGER looks for

# SPDX-License-Identifier: Apache-2.0
"""Memory resources for cuda.core, from this package's pools and from its host memory.

    memory = pinning.cuda_core.DeviceMemory("cuda:0")
    buffer = memory.allocate(nbytes, stream=stream)

A `pinning.Queue` of an NVIDIA GPU has ``__cuda_stream__``: pass it wherever cuda.core takes a foreign stream,
as in ``cuda.core.Device().create_stream(queue)``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any
from weakref import finalize

from pinning.locking.devices import device as device_of_name
from pinning.memory import Allocation, Context, Pool, alloc
from pinning.plugin import Device, MemoryKind
from pinning.queues import Queue
from pinning.runtime.arguments import describe
from pinning.runtime.process import defer

try:
    from cuda.core import Buffer, MemoryResource
except ImportError as error:
    raise ImportError(
        f"pinning.cuda_core needs cuda-core 1.0 or newer ({error}); pip install 'cuda-core>=1'"
    ) from error


class DeviceMemory(MemoryResource):  # type: ignore[misc]
    """Memory of one GPU, from a pool, in the order of the stream with which it is allocated.

    Parameters
    ----------
    device : Device or str
        A CUDA device, such as ``"cuda:0"``.
    pool : Pool, optional
        The pool to allocate from; by default its own, which keeps freed memory for the next allocation.

    Attributes
    ----------
    pool : Pool
    """

    is_device_accessible: bool = True
    is_host_accessible: bool = False
    is_managed: bool = False

    def __init__(self, device: Device | str = "cuda:0", pool: Pool | None = None) -> None:
        self._device = device_of_name(device)
        if pool is not None and not isinstance(pool, Pool):
            raise TypeError(f"pool is {describe(pool)}; it must be a pinning.Pool")
        if pool is None:
            pool = Pool(Context(self._device), MemoryKind.DEVICE)
            finalize(self, defer, pool.close).atexit = False  # buffers keep this alive, so none is left by then
        self.pool = pool
        self._allocations: dict[int, Allocation] = {}
        # A freed block is reused at once only in the same stream, which an adopted queue identifies.
        self._queue = lru_cache(maxsize=32)(partial(_adopt, self._device))

    @property
    def device_id(self) -> int:
        """The index of the GPU."""
        return self._device.index

    def __repr__(self) -> str:
        return f"<DeviceMemory of {self.pool!r}>"

    def allocate(self, size: int, *, stream: Any) -> Any:
        """A buffer of `size` bytes, for later work in `stream`.

        Raises
        ------
        VendorError
            The GPU is out of memory.
        PoolLimitError
            The pool has reached its maximum.
        """
        if size == 0:
            return Buffer.from_handle(0, 0, self, stream=stream)
        allocation, _ = self._queue(stream).alloc(size, pool=self.pool)
        self._allocations[allocation.ptr] = allocation
        return Buffer.from_handle(allocation.ptr, size, self, stream=stream)

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        """Return memory to the pool, after all earlier work in `stream`."""
        if size:
            self._queue(stream).free(self._allocations.pop(int(ptr)))


class PinnedMemory(MemoryResource):  # type: ignore[misc]
    """Locked memory of the host, of exactly the size asked for.

    Parameters
    ----------
    allocate : callable, optional
        Takes a number of bytes and returns memory with ``ptr`` and ``free()``, such as ``arena.allocate`` of a
        `pinning.Arena`; by default the driver allocates.
    """

    is_device_accessible: bool = True
    is_host_accessible: bool = True
    is_managed: bool = False

    def __init__(self, allocate: Callable[[int], Any] | None = None) -> None:
        if allocate is not None and not callable(allocate):
            raise TypeError(f"allocate is {describe(allocate)}; it must be a function of the number of bytes")
        self._allocate = _allocate if allocate is None else allocate
        self._allocations: dict[int, Any] = {}

    @property
    def device_id(self) -> int:
        """-1: the memory belongs to no GPU."""
        return -1

    def __repr__(self) -> str:
        return f"<PinnedMemory, {len(self._allocations)} buffers>"

    def allocate(self, size: int, *, stream: Any = None) -> Any:
        """A buffer of `size` bytes, usable at once.

        Raises
        ------
        VendorError
            The driver refused.
        """
        if size == 0:
            return Buffer.from_handle(0, 0, self, stream=stream)
        memory = self._allocate(size)
        self._allocations[memory.ptr] = memory
        return Buffer.from_handle(memory.ptr, size, self, stream=stream)

    def deallocate(self, ptr: Any, size: int, *, stream: Any = None) -> None:
        """Wait for all work in `stream`, then free the memory."""
        if not size:
            return
        if stream is not None:
            stream.sync()
        self._allocations.pop(int(ptr)).free()


def _adopt(device: Device, stream: Any) -> Queue:
    return Queue.adopt(stream, device)


def _allocate(size: int) -> Allocation:
    return alloc(size, MemoryKind.HOST, device="cuda")

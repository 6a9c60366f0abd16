# SPDX-License-Identifier: Apache-2.0
"""CuPy's memory from pinning: of exact size, from this package's pools, and found by the map.

    import pinning.cupy
    pinning.cupy.install()

CuPy's own allocators round pinned memory up to powers of two. After `install`, device memory comes from a pool in the
order of CuPy's current stream, and pinned memory is a HOST allocation of exactly the size asked for, in which every
lookup of the map hits.
"""

from __future__ import annotations

from functools import lru_cache
from sys import is_finalizing
from typing import Any

from pinning.errors import GraphCaptureError, OutOfMemoryError
from pinning.locking.devices import device as device_of_name
from pinning.memory import Allocation, alloc
from pinning.plugin import MemoryKind
from pinning.queues import Queue
from pinning.runtime.process import defer

try:
    import cupy
except ImportError as error:
    raise ImportError(f"pinning.cupy needs CuPy ({error}); pip install cupy-cuda12x or cupy-cuda13x") from error


def install() -> None:
    """Let CuPy allocate device and pinned memory from this package; existing arrays keep their memory."""
    cupy.cuda.set_allocator(device_memory)
    cupy.cuda.set_pinned_memory_allocator(pinned_memory)


def uninstall() -> None:
    """Let CuPy use its own pools again; existing arrays keep their memory."""
    cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
    cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)


def device_memory(nbytes: int) -> Any:
    """Memory of CuPy's current device, in the order of its current stream; for `cupy.cuda.set_allocator`.

    When its last array is gone, the memory is freed in the order of the stream in which it was allocated, as in CuPy's
    own pools. While that stream is under capture, memory comes from CuPy's pool.

    Parameters
    ----------
    nbytes : int

    Returns
    -------
    cupy.cuda.MemoryPointer

    Raises
    ------
    cupy.cuda.memory.OutOfMemoryError
        The device is out of memory.
    """
    index = cupy.cuda.Device().id
    if nbytes == 0:
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(0, 0, None, index), 0)
    queue = _queue(_Stream(cupy.cuda.get_current_stream()), index)
    try:
        allocation, _ = queue.alloc(nbytes)
    except OutOfMemoryError as error:
        raise cupy.cuda.memory.OutOfMemoryError(nbytes, cupy.cuda.Device().mem_info[1]) from error
    except GraphCaptureError:
        return cupy.get_default_memory_pool().malloc(nbytes)
    memory = cupy.cuda.UnownedMemory(allocation.ptr, nbytes, _Owner(allocation), index)
    return cupy.cuda.MemoryPointer(memory, 0)


def pinned_memory(nbytes: int) -> Any:
    """HOST memory of exactly `nbytes` bytes, for `cupy.cuda.set_pinned_memory_allocator`.

    Parameters
    ----------
    nbytes : int

    Returns
    -------
    cupy.cuda.PinnedMemoryPointer

    Raises
    ------
    VendorError
        The driver is out of memory.
    """
    allocation = alloc(max(nbytes, 1), MemoryKind.HOST, device=f"cuda:{cupy.cuda.Device().id}")
    return cupy.cuda.PinnedMemoryPointer(_PinnedMemory(allocation, nbytes), 0)


# A freed block is reused at once only in the same stream, which an adopted queue identifies.
@lru_cache(maxsize=32)
def _queue(stream: _Stream, index: int) -> Queue:
    return Queue.adopt(stream, device_of_name(f"cuda:{index}"))


class _Owner:
    """Frees an allocation of a pool when it is destroyed, which is safe wherever the collector runs."""

    def __init__(self, allocation: Allocation) -> None:
        self._allocation = allocation

    def __del__(self) -> None:
        if not (is_finalizing() or self._allocation.freed):  # at exit, the end of the process frees it
            self._allocation.free()


class _PinnedMemory(_Owner):
    """The interface that CuPy expects of pinned memory."""

    def __init__(self, allocation: Allocation, size: int) -> None:
        super().__init__(allocation)
        self.ptr, self.size = allocation.ptr, size

    def __del__(self) -> None:
        if not is_finalizing():
            defer(self._allocation.free)  # not here: the driver waits for GPUs, and the collector may run in any call


class _Stream:
    """A CuPy stream with ``__cuda_stream__``, which CuPy's null stream does not have in all versions."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream.ptr or 1  # CU_STREAM_LEGACY

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream) and other._stream.ptr == self._stream.ptr

    def __hash__(self) -> int:
        return hash(self._stream.ptr)

# SPDX-License-Identifier: Apache-2.0
"""CuPy's memory from pinning: exact sizes, from pools of ours, known to the map.

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
    """Have CuPy take device and pinned memory from here; arrays that it has made before keep theirs."""
    cupy.cuda.set_allocator(device_memory)
    cupy.cuda.set_pinned_memory_allocator(pinned_memory)


def uninstall() -> None:
    """Give CuPy its own pools back; arrays made meanwhile keep their memory."""
    cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
    cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)


def device_memory(nbytes: int) -> Any:
    """Memory of CuPy's current device, in the order of its current stream; for `cupy.cuda.set_allocator`.

    When the last array over it goes it is given back in the order of the stream in which it was allocated, as in CuPy's
    own pools. While that stream is captured into a graph, memory is from CuPy's pool.

    Parameters
    ----------
    nbytes : int

    Returns
    -------
    cupy.cuda.MemoryPointer

    Raises
    ------
    cupy.cuda.memory.OutOfMemoryError
        The device has no more.
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
    """HOST memory of exactly so many bytes, for `cupy.cuda.set_pinned_memory_allocator`.

    Parameters
    ----------
    nbytes : int

    Returns
    -------
    cupy.cuda.PinnedMemoryPointer

    Raises
    ------
    VendorError
        The driver has no more.
    """
    allocation = alloc(max(nbytes, 1), MemoryKind.HOST, device=f"cuda:{cupy.cuda.Device().id}")
    return cupy.cuda.PinnedMemoryPointer(_PinnedMemory(allocation, nbytes), 0)


# A freed block is reused at once only in the same stream, which an adopted queue identifies.
@lru_cache(maxsize=32)
def _queue(stream: _Stream, index: int) -> Queue:
    return Queue.adopt(stream, device_of_name(f"cuda:{index}"))


class _Owner:
    """Frees an allocation of a pool when it goes; that is safe wherever the collector strikes."""

    def __init__(self, allocation: Allocation) -> None:
        self._allocation = allocation

    def __del__(self) -> None:
        if not (is_finalizing() or self._allocation.freed):  # at the end it goes with the process
            self._allocation.free()


class _PinnedMemory(_Owner):
    """What CuPy expects of pinned memory."""

    def __init__(self, allocation: Allocation, size: int) -> None:
        super().__init__(allocation)
        self.ptr, self.size = allocation.ptr, size

    def __del__(self) -> None:
        if not is_finalizing():
            defer(self._allocation.free)  # not here: the driver waits for GPUs meanwhile, and we may be in any call


class _Stream:
    """A stream of CuPy as an object with ``__cuda_stream__``, which CuPy's null stream is not in all versions."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream.ptr or 1  # CU_STREAM_LEGACY

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream) and other._stream.ptr == self._stream.ptr

    def __hash__(self) -> int:
        return hash(self._stream.ptr)

# SPDX-License-Identifier: Apache-2.0
"""Work that holds a queue until it is released, and host memory with an address."""

from __future__ import annotations

import ctypes
import threading
from types import TracebackType
from typing import Any

from pinning.plugin import VendorQueue

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class HeldQueue:
    """Holds a queue, after the work submitted before, until `release` or the end of the block.

    ``with HeldQueue(queue) as held:``  `begun` is set once the queue has reached this point.
    """

    def __init__(self, queue: VendorQueue) -> None:
        self.begun: threading.Event = threading.Event()
        self._released, self._ended = threading.Event(), threading.Event()
        self._function = _FUNCTION(self._hold)
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        assert address
        queue.call(address, 0)

    def _hold(self, _: Any) -> None:
        self.begun.set()
        self._released.wait(600)
        self._ended.set()

    def release(self) -> None:
        self._released.set()

    def __enter__(self) -> HeldQueue:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.release()
        if error is None:
            assert self._ended.wait(60)


class Buffer:
    """Pageable host memory with the given contents; `bytes_` reads them."""

    def __init__(self, data: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(data, len(data))
        self.ptr: int = ctypes.addressof(self._buffer)
        self.size: int = len(data)

    @property
    def bytes_(self) -> bytes:
        return self._buffer.raw


def host_bytes(ptr: int, size: int) -> bytes:
    """The bytes at a host address."""
    return ctypes.string_at(ptr, size)

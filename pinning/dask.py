# SPDX-License-Identifier: Apache-2.0
"""Dask: workers receive data into locked memory.

    client.register_plugin(pinning.dask.LockedFrames(4 << 30))

Tasks need no change. Blocks of ``dask.array`` and columns of ``dask.dataframe`` that came over the network are copied
to the GPU at the locked rate.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numpy

from pinning.arena import Arena, ArenaAllocation
from pinning.budget.limits import budget
from pinning.errors import PinningError
from pinning.locking.devices import default_device, is_host
from pinning.locking.devices import device as device_of_name
from pinning.map.adapters import synchronize_in_background
from pinning.plugin import Device, MemoryDevice
from pinning.runtime.arguments import byte_count, describe

try:
    import distributed
    from distributed.comm import tcp
    from distributed.protocol import utils
    from distributed.protocol.utils import host_array
except ImportError as error:
    raise ImportError(
        f"pinning.dask needs distributed 2024.1 or newer ({error}); pip install 'distributed>=2024.1'"
    ) from error

_log = logging.getLogger("pinning.dask")


class LockedFrames(distributed.WorkerPlugin):  # type: ignore[misc]
    """Allocates the frames that a worker receives in an arena, which is locked once, in the background.

    Frames that do not fit are allocated as usual. The dashboard's table of workers then shows `locked_bytes`. A worker
    that cannot create the arena, or cannot lock it, logs a warning and works as before.

    Parameters
    ----------
    nbytes : int
        Size of the arena; each process has one.
    device : str, optional
        The device for which it is locked. By default the worker's first GPU; workers without one do nothing.
    smallest : int
        Bytes; smaller frames are allocated as usual.
    """

    name = "pinning"

    def __init__(self, nbytes: int, device: str | None = None, smallest: int = 1 << 16) -> None:
        if device is not None and not isinstance(device, str):
            raise TypeError(f"device is {describe(device)}; give a name, such as 'cuda:0', which each worker looks up")
        self.nbytes: int = byte_count(nbytes)
        self.device: str | None = device
        self.smallest: int = byte_count(smallest, "smallest", 0)

    def __repr__(self) -> str:
        return f"<LockedFrames of {self.nbytes} bytes, for {self.device or 'the first GPU'}>"

    def setup(self, worker: Any) -> None:
        """Called by the worker."""
        try:
            begun = _begin(self.nbytes, self.device, self.smallest)
        except PinningError as error:
            _log.warning("frames are not locked, so they are copied as before: %s", error)
            return
        if begun:
            worker.metrics["locked_bytes"] = _locked_bytes

    def teardown(self, worker: Any) -> None:
        """Called by the worker. Memory that tasks still use stays locked."""
        if worker.metrics.pop("locked_bytes", None) is not None:
            _end()


class _Frames:
    """An arena, and a thread that returns dropped blocks to it once the device has completed its work."""

    def __init__(self, arena: Arena, device: Device, smallest: int) -> None:
        self._arena, self._device, self._smallest = arena, device, smallest
        self._dropped: SimpleQueue[ArenaAllocation | None] = SimpleQueue()
        self._enough = 0 if is_host(device) else arena.nbytes // 4
        self._closing = self._failed = False
        threading.Thread(target=self._settle, name="pinning dask", daemon=True).start()

    def allocate(self, nbytes: int) -> memoryview | None:
        """Memory for a frame, or None."""
        if nbytes < self._smallest or self._failed or self._closing:
            return None
        try:
            return numpy.asarray(_Frame(self._arena.allocate(nbytes), self._dropped)).data
        except PinningError:
            self._dropped.put(None)  # the dropped blocks are needed now
            return None

    def close(self) -> None:
        """Close the arena as soon as no frame of it is left."""
        self._closing = True
        self._dropped.put(None)

    def _settle(self) -> None:
        try:
            self._arena.wait()
        except PinningError as error:
            self._failed = True
            _log.warning("frames are not locked, so they are copied as before: %s", error)
        waiting: list[ArenaAllocation] = []
        while not self._is_over():
            block = self._dropped.get()
            if block is not None:
                waiting.append(block)
            # Copies that were submitted before a block was dropped may still be in progress.
            if waiting and (block is None or self._closing or sum(each.nbytes for each in waiting) >= self._enough):
                with suppress(PinningError):
                    if isinstance(self._device, MemoryDevice):
                        synchronize_in_background(self._device)
                    while waiting:
                        waiting.pop().free()
            del block

    def _is_over(self) -> bool:
        """Whether the arena is closed; after `close`, tries to close it. A concurrent `allocate` may still succeed."""
        if self._closing and not self._arena.allocated:
            with suppress(PinningError):
                self._arena.close()
        return self._arena.closed


class _Frame:
    """Memory of a frame, dropped with the last view of it."""

    def __init__(self, block: ArenaAllocation, dropped: SimpleQueue[ArenaAllocation | None]) -> None:
        self._block, self._dropped = block, dropped
        self.__array_interface__ = {
            "shape": (block.nbytes,),
            "typestr": "|u1",
            "data": (block.ptr, False),
            "version": 3,
        }

    def __del__(self) -> None:
        self._dropped.put(self._block)  # never blocks


_users = 0  # workers of this process
_frames: _Frames | None = None
_before: Callable[[int], memoryview] = host_array  # allocates a frame that is received, or joined from parts
_changing = threading.Lock()


def _host_array(n: int) -> memoryview:
    frames = _frames
    block = None if frames is None else frames.allocate(n)
    return _before(n) if block is None else block


def _begin(nbytes: int, name: str | None, smallest: int) -> bool:
    """Start to allocate frames in an arena; False if there is no device to lock for."""
    global _users, _frames
    device = default_device() if name is None else device_of_name(name)
    if name is None and is_host(device):
        return False
    with _changing:
        if _frames is None:
            _frames = _Frames(Arena(nbytes, device), device, smallest)
            tcp.host_array = utils.host_array = _host_array
        _users += 1
    return True


def _end() -> None:
    global _users, _frames
    with _changing:
        _users -= 1
        if _users == 0 and _frames is not None:
            tcp.host_array = utils.host_array = _before
            frames, _frames = _frames, None
            frames.close()


def _locked_bytes(worker: Any) -> int:
    return budget().used

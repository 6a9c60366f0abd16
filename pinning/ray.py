# SPDX-License-Identifier: Apache-2.0
"""Ray: objects of the store are locked where they lie, as workers first use them.

    ray.init(runtime_env={"worker_process_setup_hook": "pinning.ray.setup"})

Nothing changes in tasks. An array that a worker gets, by ``ray.get`` or as an argument, is a view in the object store's
shared memory; what is locked there goes to the GPU at the locked rate.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from pinning.background import PendingLock, lock_async
from pinning.devices import default_device, is_host
from pinning.devices import device as device_of_name
from pinning.errors import PinningError
from pinning.locks import find, range_of
from pinning.plugin import Device

try:
    import ray
    from ray._private.serialization import SerializationContext
except ImportError as error:
    raise ImportError(f"pinning.ray needs Ray 2.10 or newer ({error}); pip install 'pinning[ray]'") from error

_log = logging.getLogger("pinning.ray")
_HOOKED = "deserialize_objects"  # through which Ray makes values of all objects, those of arguments too
_store: _Store | None = None


def setup(device: Device | str | None = None, smallest: int = 1 << 20) -> None:
    """Have objects of the store locked from now on, each when this process first makes a value of it.

    That is done in the background, so no task waits, and the first copy of an object may still be a pageable one. Only
    the objects that were used are locked, and brought into memory. The lock of an object lasts until another takes its
    place, or the process ends. What is refused is said once in the log, and changes only the rate.

    Each process counts its own locks, within `pinning.budget`. To a driver it is to be called by hand.

    Parameters
    ----------
    device : Device or str, optional
        For which they are locked. By default the first GPU of a worker to which Ray has given GPUs; others do nothing.
    smallest : int
        Bytes; smaller objects are not worth a lock.
    """
    global _store
    if _store is not None:
        _store = _Store(device, smallest)
        return
    hooked = getattr(SerializationContext, _HOOKED, None)
    if hooked is None:
        _log.warning("nothing is locked: Ray %s has no SerializationContext.%s", ray.__version__, _HOOKED)
        return

    @wraps(hooked)
    def deserialize_objects(self: Any, serialized_ray_objects: Any, *arguments: Any, **named: Any) -> Any:
        for each in serialized_ray_objects:
            if _store is not None:
                _store.use(each)
        return hooked(self, serialized_ray_objects, *arguments, **named)

    _store = _Store(device, smallest)
    setattr(SerializationContext, _HOOKED, deserialize_objects)


class _Extent:
    """Where an object lies, or did, and its lock."""

    def __init__(self, start: int, size: int) -> None:
        self.start, self.size = start, size
        self.pending: PendingLock | None = None

    def overlaps(self, other: _Extent) -> bool:
        return self.start < other.start + other.size and other.start < self.start + self.size

    @property
    def gone(self) -> bool:
        """Whether it was locked and is no more, as when its memory was unmapped."""
        if self.pending is None or not self.pending.done:
            return False
        with suppress(PinningError):
            return not self.pending.wait().held
        return False


class _Store:
    """What of the object store is locked: whole objects, so that no copy of one crosses a border."""

    def __init__(self, device: Device | str | None, smallest: int) -> None:
        self._device = None if device is None else device_of_name(device)
        self._smallest = smallest
        self._extents: dict[int, _Extent] = {}  # by where they begin; none overlap
        self._changing = threading.Lock()
        self._said = False

    def use(self, serialized: Any) -> None:
        """Have an object locked, as Ray has it before it makes a value of it: bytes, and what they are."""
        try:
            if serialized[0] is not None and len(serialized[0]) >= self._smallest:
                self._lock(*range_of(serialized[0]))
        except Exception as error:
            self._say(error)

    def _lock(self, start: int, size: int) -> None:
        device = self._device or _device_of_worker()
        if device is None or find(start, size, device=device) is not None:
            return
        self._device = device
        known = self._extents.get(start)
        if (known is not None and known.size == size and not known.gone) or not _in_store(start, size):
            return
        extent = _Extent(start, size)
        with self._changing:
            old = [each for each in self._extents.values() if each.overlaps(extent)]  # of objects that are no more
            for each in old:
                del self._extents[each.start]
            self._extents[start] = extent
        for each in old:
            if each.pending is not None:
                each.pending.cancel()
        extent.pending = lock_async(start, size, device=device)
        threading.Thread(target=self._settle, args=(extent, extent.pending), name="pinning ray", daemon=True).start()

    def _settle(self, extent: _Extent, pending: PendingLock) -> None:
        """Say what went wrong, and give up what somebody else's object has the place of by now."""
        try:
            if self._extents.get(extent.start) is extent:
                pending.wait()
            if self._extents.get(extent.start) is not extent:
                pending.cancel()
        except Exception as error:
            if self._extents.get(extent.start) is extent:
                self._say(error)

    def _say(self, error: Exception) -> None:
        if not self._said:
            self._said = True
            _log.warning("some objects of the store are not locked, so they are copied as ever: %s", error)


def _device_of_worker() -> Device | None:
    if not ray.get_runtime_context().get_accelerator_ids().get("GPU"):
        return None
    found = default_device()
    return None if is_host(found) else found


def _in_store(start: int, size: int) -> bool:
    """Whether memory lies in the store, not in an object sent by itself. Locks divide the store into many mappings."""
    at = start
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, *_, name = line.split(maxsplit=5)
        first, end = (int(each, 16) for each in addresses.split("-"))
        if first <= at < end:
            if not permissions.endswith("s") or "plasma" not in Path(name).name:
                return False
            at = end
            if at >= start + size:
                return True
    return False

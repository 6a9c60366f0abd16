# SPDX-License-Identifier: Apache-2.0
"""Ray: objects of the store are locked in place when a worker first uses them.

    ray.init(runtime_env={"worker_process_setup_hook": "pinning.ray.setup"})

Tasks need no change. An array that a worker gets, by ``ray.get`` or as an argument, is a view in the object store's
shared memory; a locked object is copied to the GPU at the locked rate.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import wraps
from typing import Any

from pinning import arrays
from pinning.locking.devices import default_device, is_host
from pinning.locking.devices import device as device_of_name
from pinning.locking.store import ObjectLocks
from pinning.plugin import Device
from pinning.runtime.arguments import byte_count

try:
    import ray
    from ray._private import serialization
except ImportError as error:
    raise ImportError(f"pinning.ray needs Ray 2.10 or newer ({error}); pip install 'ray>=2.10'") from error

_log = logging.getLogger("pinning.ray")
_HOOKED = "unpack_pickle5_buffers"  # finds the parts of an object, from which Ray then makes a value
_store: ObjectLocks | None = None


def setup(device: Device | str | None = None, smallest: int = 1 << 20) -> None:
    """Lock objects of the store from now on, each when this process first deserializes it.

    Objects are locked in the background, so no task waits, and the first copy of an object may still be pageable. Only
    objects that are used are populated and locked. An object that is no longer used stays in the registration cache,
    which this call enables (``pinning.budget(idle=True)``), until another object takes its place, its room is needed or
    the process ends. A refused lock is logged once and affects only the rate of copies.

    Each process counts its own locks, within `pinning.budget`. A Ray driver has to call this function itself.

    Parameters
    ----------
    device : Device or str, optional
        The device to lock for. By default a worker's first GPU; workers to which Ray has assigned none do nothing.
    smallest : int
        Bytes; smaller objects are not worth a lock.
    """
    global _store
    chosen = None if device is None else device_of_name(device)
    hooked = getattr(serialization, _HOOKED, None)
    if hooked is None:
        _log.warning("nothing is locked: Ray %s has no %s.%s", ray.__version__, serialization.__name__, _HOOKED)
        return
    least = byte_count(smallest, "smallest", 0)
    before, _store = _store, ObjectLocks(lambda: chosen or _device_of_worker(), least, "plasma", _log)
    if before is not None:
        before.close()
        return

    @wraps(hooked)
    def unpack_pickle5_buffers(data: Any) -> tuple[Any, Sequence[Any]]:
        pickled, parts = hooked(data)
        return pickled, parts if _store is None else _store.use(data, parts)

    setattr(serialization, _HOOKED, unpack_pickle5_buffers)


def put(array: Any) -> ray.ObjectRef:
    """`ray.put` of an array on a device, which is copied through locked memory, at the locked rate.

    Ray itself writes each object, from host memory, before the object becomes visible; so nothing can be copied from
    the device into the store directly, and one copy on the host remains. The locked memory is kept for the next call.

    Parameters
    ----------
    array : object
        With ``__cuda_array_interface__`` or DLPack, as `arrays.as_device_array` takes.

    Returns
    -------
    ObjectRef
        Of a NumPy array.

    Raises
    ------
    TypeError
        It is no such array.
    """
    source = arrays.as_device_array(array)
    pinned = arrays.pinned_array(source.shape, source.dtype, device=source.device)
    source.copy_to_host(pinned)
    return ray.put(pinned)


def _device_of_worker() -> Device | None:
    if not ray.get_runtime_context().get_accelerator_ids().get("GPU"):
        return None
    device = default_device()
    return None if is_host(device) else device

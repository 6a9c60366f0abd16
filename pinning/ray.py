# SPDX-License-Identifier: Apache-2.0
"""Ray: objects of the store are locked where they lie, as workers first use them.

    ray.init(runtime_env={"worker_process_setup_hook": "pinning.ray.setup"})

Nothing changes in tasks. An array that a worker gets, by ``ray.get`` or as an argument, is a view in the object store's
shared memory; what is locked there goes to the GPU at the locked rate.
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
    raise ImportError(f"pinning.ray needs Ray 2.10 or newer ({error}); pip install 'pinning[ray]'") from error

_log = logging.getLogger("pinning.ray")
_HOOKED = "unpack_pickle5_buffers"  # which finds the parts of an object, of which Ray then makes a value
_store: ObjectLocks | None = None


def setup(device: Device | str | None = None, smallest: int = 1 << 20) -> None:
    """Have objects of the store locked from now on, each when this process first makes a value of it.

    That is done in the background, so no task waits, and the first copy of an object may still be a pageable one. Only
    the objects that were used are locked, and brought into memory. What is not used any more stays registered, in the
    registration cache, which this switches on (``pinning.budget(idle=True)``): until another object takes its place, or
    its room is wanted, or the process ends. What is refused is said once in the log, and changes only the rate.

    Each process counts its own locks, within `pinning.budget`. To a driver it is to be called by hand.

    Parameters
    ----------
    device : Device or str, optional
        For which they are locked. By default the first GPU of a worker to which Ray has given GPUs; others do nothing.
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
    """`ray.put` of an array of a device: it comes through locked memory, at the locked rate.

    Ray writes an object by itself before others can see it, and only from memory of the host; so nothing can be copied
    from the device to its store directly, and one copy on the host remains. The locked memory is kept for the next one.

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

# SPDX-License-Identifier: Apache-2.0
"""Locks that a runtime takes by itself, of each buffer from its mapping to a device until its unmapping.

The environment variable ``PINNING_LOCK_MAPPED`` controls them:

- ``off`` (the default): nothing is locked; but a buffer that is locked already is counted once more, and one that
  another owner has pinned is entered, so that its copies take the fast path;
- ``on``: a buffer is locked if possible;
- ``mandatory``: it is an error if a buffer cannot be locked.
"""

from __future__ import annotations

import sys
from typing import Literal, cast

from pinning.interop.memory_of import host_buffer
from pinning.locking.devices import pinned_map
from pinning.locking.lock import make_ready, range_of
from pinning.plugin import AutomaticLocking, Device
from pinning.runtime.buffers import Buffer
from pinning.runtime.settings import chosen

__all__ = ["lock_mapped", "unlock_unmapped"]

Policy = Literal["off", "on", "mandatory"]


def lock_mapped(buffer: Buffer, size: int | None = None, *, device: Device | str | None = None) -> int | None:
    """Lock a buffer that is being mapped to a device, as ``PINNING_LOCK_MAPPED`` says at this moment.

    Every call requires an `unlock_unmapped` of the same buffer, whatever it returns. Unlike a `Lock`, it does not keep
    the buffer alive: the buffer must exist until it is unmapped, as all mapped memory must.

    Parameters
    ----------
    buffer : object
        Anything that `pinning.lock` takes.
    size : int, optional
        Only the first `size` bytes; needed with an address.
    device : Device or str, optional
        Such as ``"cuda:0"``; by default the default device.

    Returns
    -------
    int or None
        The device-accessible pointer of the first byte. None if it is not locked now: ``PINNING_LOCK_MAPPED`` is "off",
        as it is if it is not set, or it is "on" and the lock was refused.

    Raises
    ------
    TypeError, InvalidRangeError
        It is not a buffer in host memory. Raised under every policy.
    PluginUnavailableError
        There is no such device.
    PinningError
        ``PINNING_LOCK_MAPPED`` has none of the three values.

    With ``mandatory``, also what `pinning.lock` raises; then there is nothing to unlock.
    """
    policy = _policy()
    memory = host_buffer(buffer, size)
    device_map = pinned_map(device)
    if policy != "off":
        try:
            make_ready(memory, device_map)
        except Exception:
            device_ptr = device_map.lock_mapped(memory.ptr, memory.size, "off", memory.read_only)
            if device_ptr is None and policy == "mandatory":
                device_map.unlock_unmapped(memory.ptr)  # nothing is mapped after an error
                raise
            return device_ptr  # memory that others have pinned is entered under every policy
    return device_map.lock_mapped(memory.ptr, memory.size, policy, memory.read_only)


def unlock_unmapped(buffer: Buffer, *, device: Device | str | None = None) -> None:
    """Undo one `lock_mapped` of a buffer with this address, if it locked anything.

    No other caller's lock is given up, even if that `lock_mapped` locked nothing, or there was none. If several callers
    have mapped the buffer, it stays locked at least until each caller that locked it has unmapped it.

    Parameters
    ----------
    buffer : object
        The buffer, or its address.
    device : Device or str, optional
        The device to which it was mapped; by default the default device.

    Raises
    ------
    VendorError
        The vendor refused. Raised under every policy, because the memory is about to be freed; it is still locked, and
        this can be called again.
    """
    ptr, _ = range_of(buffer)
    pinned_map(device).unlock_unmapped(ptr)


def _policy() -> Policy:
    return cast(Policy, chosen("PINNING_LOCK_MAPPED", ("off", "on", "mandatory"), "off"))


AutomaticLocking._locks_mapped = sys.modules[__name__]

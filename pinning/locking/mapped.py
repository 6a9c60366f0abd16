# SPDX-License-Identifier: Apache-2.0
"""Locks that a runtime takes by itself, of each buffer from its mapping to a device to its unmapping.

The environment variable ``PINNING_LOCK_MAPPED`` chooses whether it does:

- ``off`` (the default): nothing is locked; but a buffer that is locked already is counted once more, and one that
  another owner has pinned is entered, so that its copies take the fast path;
- ``on``: a buffer is locked where it can be;
- ``mandatory``: it is an error where it cannot.
"""

from __future__ import annotations

import os
from typing import Literal, cast

from pinning.errors import PinningError
from pinning.interop.memory_of import host_buffer
from pinning.locking.devices import pinned_map
from pinning.locking.lock import make_ready, range_of
from pinning.plugin import AutomaticLocking, Device

Policy = Literal["off", "on", "mandatory"]
_VARIABLE = "PINNING_LOCK_MAPPED"


def lock_mapped(buffer: object, size: int | None = None, *, device: Device | str | None = None) -> int | None:
    """Lock a buffer that is being mapped to a device, as ``PINNING_LOCK_MAPPED`` says at this moment.

    Every call wants an `unlock_unmapped` of the same buffer, whatever this one answers. Unlike a `Lock`, nothing here
    keeps the buffer alive: it must stay until it is unmapped, as all mapped memory must.

    Parameters
    ----------
    buffer : object
        Anything that `pinning.lock` takes.
    size : int, optional
        Only the first `size` bytes; needed with an address.
    device : Device or str, optional
        Such as ``"cuda:0"``; the first that is not the host by default.

    Returns
    -------
    int or None
        The device-accessible pointer of the first byte; None where it is not locked now.

    Raises
    ------
    TypeError, InvalidRangeError
        It is no buffer in host memory. So under each policy.
    PluginUnavailableError
        There is no such device.
    PinningError
        ``PINNING_LOCK_MAPPED`` is none of the three.

    Where mandatory, also what `pinning.lock` raises; then there is nothing to unlock.
    """
    policy = _policy()
    memory = host_buffer(buffer, size)
    device_map = pinned_map(device)
    if policy != "off":
        try:
            make_ready(memory, device_map)
        except Exception:
            if policy == "mandatory":
                raise
            policy = "off"  # what others have pinned is still to be found
    return device_map.lock_mapped(memory.ptr, memory.size, policy, memory.read_only)


def unlock_unmapped(buffer: object, *, device: Device | str | None = None) -> None:
    """Undo one `lock_mapped` of a buffer with this address, if it locked anything.

    No other caller's lock is given up: not if that call has locked nothing, nor if there was none. Where several have
    mapped the buffer it stays locked as long as one of those that locked it needs it.

    Parameters
    ----------
    buffer : object
        The buffer, or its address.
    device : Device or str, optional
        Where it was mapped to; the first that is not the host by default.

    Raises
    ------
    VendorError
        The vendor refused, under each policy, for the memory is about to go; it is still locked, and this can be called
        again.
    """
    ptr, _ = range_of(buffer)
    pinned_map(device).unlock_unmapped(ptr)


def _policy() -> Policy:
    value = os.environ.get(_VARIABLE, "off")
    if value.lower() not in ("off", "on", "mandatory"):
        raise PinningError(f"{_VARIABLE} is {value!r}; it must be off, on or mandatory: set one of these, or unset it")
    return cast(Policy, value.lower())


class _Methods:
    """The two functions, as `AutomaticLocking` calls them."""

    def lock_mapped(self, device: object, buffer: object, size: int | None) -> int | None:
        return lock_mapped(buffer, size, device=cast(Device, device))

    def unlock_unmapped(self, device: object, buffer: object) -> None:
        unlock_unmapped(buffer, device=cast(Device, device))


AutomaticLocking._locks_mapped = _Methods()

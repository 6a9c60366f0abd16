# SPDX-License-Identifier: Apache-2.0
"""Whose memory a device can use."""

from __future__ import annotations

from pinning.locking.devices import HOST
from pinning.locking.devices import device as device_of_name
from pinning.memory.context import Context
from pinning.plugin import Device, MemoryConnection, MemoryDevice

Place = tuple[Device | str, Context] | Device | str


def memory_connection(memory: Place, user: Place) -> MemoryConnection:
    """What one device can do with DEVICE memory of another.

    Parameters
    ----------
    memory : (Device or str, Context), or Device or str
        Where the memory is, and its owner; if none is named, a context of that device alone.
    user : (Device or str, Context), or Device or str
        The device that is to use it. The host is in every context.

    Returns
    -------
    MemoryConnection
        UNIFIED: the user can access it directly. MIGRATABLE: it cannot, but copies between the two bypass the host.
        NONE: copies go through the host.

    Raises
    ------
    PinningError
        A device is not in its context.
    PluginUnavailableError
        There is no device with one of the names.
    """
    source, target = _member(memory), _member(user)
    if not isinstance(source, MemoryDevice):
        return MemoryConnection.NONE
    return source.connection(target)


def _member(place: Place) -> Device:
    if isinstance(place, tuple) and not (len(place) == 2 and isinstance(place[1], Context)):
        raise TypeError(f"a place is {place!r}; it must be a device, or a pair of a device and a pinning.Context")
    device, context = place if isinstance(place, tuple) else (place, None)
    name = device if isinstance(device, str) else device_of_name(device).name
    if context is not None and name.partition(":")[0] != HOST:
        return context.member(device)
    return device_of_name(device)

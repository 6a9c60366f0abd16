# SPDX-License-Identifier: Apache-2.0
"""Which other devices may carry a part of a queue's large copies over their own buses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from pinning.errors import ArgumentError, PinningError
from pinning.locking import devices
from pinning.machine.topology import way_between
from pinning.plugin import Device, MemoryConnection, MemoryDevice
from pinning.runtime.arguments import describe
from pinning.runtime.per_device import device_slots

Links = Literal["own", "idle"] | Iterable[Device | str]
_FORMS = "'own', 'idle', or a list of devices such as ['cuda:1']"
Chosen = Literal["own", "idle"] | tuple[MemoryDevice, ...]


def named_links(links: Links) -> Literal["own", "idle"] | tuple[Device | str, ...]:
    """Check the form of `links`; TypeError, or ArgumentError for a string other than ``"own"`` and ``"idle"``."""
    if isinstance(links, str):
        if links == "own" or links == "idle":
            return "own" if links == "own" else "idle"
        raise ArgumentError(f"links is {links!r}; it must be {_FORMS}")
    if not isinstance(links, Iterable):
        raise TypeError(f"links is {describe(links)}; it must be {_FORMS}")
    return tuple(links)


def chosen_links(links: Links, device: MemoryDevice) -> Chosen:
    """Check `links` for copies of a device, and look up the devices named.

    Raises as `named_links` and `devices.device`; and PinningError if a device is named twice, is the queue's own, or
    cannot carry its copies.
    """
    given = named_links(links)
    if isinstance(given, str):
        return given
    named: list[Any] = [devices.device(each) for each in given]
    names = [each.name for each in named]
    if len(set(names)) < len(names):
        raise PinningError(f"links has each device once, not {', '.join(names)}")
    if device.name in names:
        raise PinningError(f"links has devices beside the queue's own, which is {device.name}: leave that out")
    for peer in named:
        if (why := obstacle(device, peer)) is not None:
            raise PinningError(
                f"{peer.name} cannot carry copies of {device.name}: {why}; pinning doctor shows the links"
            )
    return tuple(named) or "own"


def peers_of(device: MemoryDevice) -> tuple[MemoryDevice, ...]:
    """All devices that can carry copies of this one."""
    slots = device_slots(device)
    present = devices.plugins()
    known: Any = slots.get(peers_of)
    if known is None or known[0] is not present:
        able: list[Any] = [each for each in devices.devices() if each is not device and _is_able(device, each)]
        known = slots[peers_of] = present, tuple(able)
    return known[1]  # type: ignore[no-any-return]


def obstacle(device: MemoryDevice, peer: Device) -> str | None:
    """Why a peer cannot carry copies of a device; None if it can."""
    if peer.vendor != device.vendor or not isinstance(peer, MemoryDevice):
        return "it is of another vendor"
    link_to: Callable[[Device], str | None] = getattr(peer, "link_to", lambda _: None)
    if link_to(device) is None:
        return "no link joins them that is faster than the bus"
    if peer.connection(device) is not MemoryConnection.UNIFIED:
        return f"{device.name} has no access to its memory"
    if way_between(getattr(device, "pci_address", None), getattr(peer, "pci_address", None)) == "switch":
        return "behind a switch they share the way to the host"
    return None


def _is_able(device: MemoryDevice, peer: Device) -> bool:
    try:
        return obstacle(device, peer) is None
    except Exception:  # of any type: third parties write plugins
        return False

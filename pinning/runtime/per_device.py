# SPDX-License-Identifier: Apache-2.0
"""What is made for a device on demand, once for each, and goes with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, cast
from weakref import ref

T = TypeVar("T")

_ATTRIBUTE = "_pinning"


class DeviceSlots(dict[object, Any]):
    """What was made for a device, as an attribute of the device: they refer to each other, so the collector takes both.

    It stays behind where the device is copied or pickled.
    """

    def __init__(self, owner: int = 0) -> None:
        super().__init__()
        self.owner = owner  # the device's id

    def __reduce__(self) -> tuple[type[DeviceSlots], tuple[()]]:
        return DeviceSlots, ()


class PerDevice(Generic[T]):
    """One object for each device, made on demand by `factory`, which it may keep alive. A device need not be hashable.

    `by_id` has weak references to them by the id of their device, for Cython code that looks one up without a call.
    """

    def __init__(self, factory: Callable[[Any], T]) -> None:
        self._factory = factory
        self.by_id: dict[int, ref[T]] = {}

    def get(self, device: object) -> T:
        """The object of this device."""
        cached = self.by_id.get(id(device))
        value = None if cached is None else cached()
        if value is None:
            value = cast(T, device_slots(device).setdefault(self, self._factory(device)))  # atomic: one thread wins
            self.by_id[id(device)] = ref(value, partial(self.by_id.pop, id(device)))  # whose default is the reference
        return value

    def all(self) -> list[T]:
        """The objects of the devices that are still there, in the order in which they were made."""
        return [value for cached in list(self.by_id.values()) if (value := cached()) is not None]


_of_the_process: dict[int, DeviceSlots] = {}  # of devices without attributes, for good


def device_slots(device: object) -> DeviceSlots:
    """What was made for this device, by what it is for."""
    attributes = getattr(device, "__dict__", None)
    if not isinstance(attributes, dict):  # it has slots, or is a class
        return _of_the_process.setdefault(id(device), DeviceSlots(id(device)))
    slots: DeviceSlots = attributes.setdefault(_ATTRIBUTE, DeviceSlots(id(device)))
    if slots.owner != id(device):  # a copy has its original's
        slots = attributes[_ATTRIBUTE] = DeviceSlots(id(device))
    return slots

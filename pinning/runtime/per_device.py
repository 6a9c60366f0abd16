# SPDX-License-Identifier: Apache-2.0
"""Objects that are made on demand, one for each device, and freed with the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, cast
from weakref import ref

T = TypeVar("T")

_ATTRIBUTE = "_pinning"


class DeviceSlots(dict[object, Any]):
    """The objects made for a device, stored as its attribute: they refer to each other, so the collector frees both.

    A copy or a pickle of the device starts without them.
    """

    def __init__(self, owner: int = 0) -> None:
        super().__init__()
        self.owner = owner  # the device's id

    def __reduce__(self) -> tuple[type[DeviceSlots], tuple[()]]:
        return DeviceSlots, ()


class PerDevice(Generic[T]):
    """One object for each device, made on demand by `factory`; it may refer to the device, which need not be hashable.

    `by_id` maps the id of a device to a weak reference to its object, for Cython code that looks it up without a call.
    """

    def __init__(self, factory: Callable[[Any], T]) -> None:
        self._factory = factory
        self.by_id: dict[int, ref[T]] = {}

    def get(self, device: object) -> T:
        """The object of a device."""
        cached = self.by_id.get(id(device))
        value = None if cached is None else cached()
        if value is None:
            value = cast(T, device_slots(device).setdefault(self, self._factory(device)))  # atomic: one thread wins
            self.by_id[id(device)] = ref(value, partial(self.by_id.pop, id(device)))  # the reference: pop's default
        return value

    def get_open(self, device: object) -> T:
        """The object of a device, made anew if it has been closed."""
        while (value := cast(Any, self.get(device))).closed:
            if device_slots(device).get(self) is value:
                self.by_id.pop(id(device), None)
                device_slots(device).pop(self, None)
        return cast(T, value)

    def all(self) -> list[T]:
        """The objects of the devices that still exist, in the order in which they were made."""
        return [value for cached in list(self.by_id.values()) if (value := cached()) is not None]


_of_the_process: dict[int, DeviceSlots] = {}  # of devices without attributes; kept permanently


def device_slots(device: object) -> DeviceSlots:
    """The objects made for a device, by their purpose."""
    attributes = getattr(device, "__dict__", None)
    if not isinstance(attributes, dict):  # it has slots, or is a class
        return _of_the_process.setdefault(id(device), DeviceSlots(id(device)))
    slots: DeviceSlots = attributes.setdefault(_ATTRIBUTE, DeviceSlots(id(device)))
    if slots.owner != id(device):  # a copy of a device has the original's
        slots = attributes[_ATTRIBUTE] = DeviceSlots(id(device))
    return slots

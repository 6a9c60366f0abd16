# SPDX-License-Identifier: Apache-2.0
"""What is made for a device on demand, once for each, and goes with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, cast
from weakref import ref

T = TypeVar("T")

_ATTRIBUTE = "_pinning"


class Belongings(dict[object, Any]):
    """What a device has, as an attribute of its own: it refers to the device, so the collector takes both at once.

    It stays behind where the device is copied or pickled.
    """

    def __init__(self, owner: int = 0) -> None:
        super().__init__()
        self.owner = owner  # the device's id

    def __reduce__(self) -> tuple[type[Belongings], tuple[()]]:
        return Belongings, ()


class One(Generic[T]):
    """A kind of thing of which each device has one. A device need not be hashable.

    Parameters
    ----------
    make : callable
        Makes that of a device, which it may keep alive.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.made: dict[int, ref[T]] = {}  # by id of the device

    def of(self, device: object) -> T:
        """That of this device."""
        known = self.made.get(id(device))
        there = None if known is None else known()
        if there is not None:
            return there
        there = cast(T, belongings(device).setdefault(self, self._make(device)))  # of two threads one is first
        self.made[id(device)] = ref(there, partial(self.made.pop, id(device)))  # whose default is the reference
        return there

    def all(self) -> list[T]:
        """Those of the devices that are still there, in the order in which they were made."""
        return [there for known in list(self.made.values()) if (there := known()) is not None]


_of_the_process: dict[int, Belongings] = {}  # of devices without attributes, for good


def belongings(device: object) -> Belongings:
    """What this device has, by what it is for."""
    attributes = getattr(device, "__dict__", None)
    if not isinstance(attributes, dict):  # it has slots, or is a class
        return _of_the_process.setdefault(id(device), Belongings(id(device)))
    there = attributes.setdefault(_ATTRIBUTE, Belongings(id(device)))
    if there.owner != id(device):  # a copy has its original's
        there = attributes[_ATTRIBUTE] = Belongings(id(device))
    return there  # type: ignore[no-any-return]

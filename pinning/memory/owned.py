# SPDX-License-Identifier: Apache-2.0
"""Which allocation of ours holds an address: one page table for each device.

It has what is allocated to somebody, not what a pool has in store. Lookups take no lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from weakref import ref

from pagetable import OverlapError, PageTable
from pinning.errors import PinningError
from pinning.plugin import Device

if TYPE_CHECKING:
    from pinning.memory.allocation import Allocation


class Owned:
    """What has been allocated on one device. It keeps none of it alive."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._table = PageTable()
        self._allocations: dict[int, ref[Allocation]] = {}  # by first address

    def enter(self, allocation: Allocation) -> None:
        """Add an allocation.

        Raises
        ------
        PinningError
            Some of it is entered already: someone has freed memory of ours behind our back.
        """
        start, size = allocation.ptr, allocation.size
        try:
            self._table.insert(start, size)
        except OverlapError:
            (taken, *_) = self._table.overlapping(start, size)
            raise PinningError(
                f"{self.device.name} has allocated [{start:#x}, {start + size:#x}), but [{taken.start:#x}, "
                f"{taken.end:#x}) is allocated already: someone has freed that through the vendor; use pinning.free"
            ) from None
        self._allocations[start] = ref(allocation)

    def take_out(self, allocation: Allocation) -> None:
        """Remove an allocation; do so before anyone can be given its address again."""
        del self._allocations[allocation.ptr]
        self._table.remove(allocation.ptr)

    def find(self, ptr: int) -> Allocation | None:
        """The allocation that holds the byte at `ptr`."""
        region = self._table.find(ptr)
        entry = self._allocations.get(region.start) if region else None
        return entry() if entry else None


_owned: dict[int, Owned] = {}  # by id of the device, which its table keeps alive


def owned(device: Device) -> Owned:
    """The table of a device, made on demand."""
    known = _owned.get(id(device))
    return known if known is not None else _owned.setdefault(id(device), Owned(device))


def owners() -> Iterator[Device]:
    """The devices on which something has been allocated, in the order of their first use."""
    return (each.device for each in list(_owned.values()))


def find(ptr: int, first: Iterable[Device] = ()) -> Allocation | None:
    """The allocation that holds the byte at `ptr`, on these devices or else on any.

    Addresses of different vendors' devices may be the same.
    """
    for table in (*map(owned, first), *_owned.values()):
        found = table.find(ptr)
        if found is not None:
            return found
    return None


# Memory belongs to the process that allocated it: a child finds none of its parent's.
process = os.getpid()


def _after_fork_in_child() -> None:
    global process
    process = os.getpid()
    _owned.clear()  # another thread may have been in the middle of a table


os.register_at_fork(after_in_child=_after_fork_in_child)

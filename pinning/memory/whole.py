# SPDX-License-Identifier: Apache-2.0
"""Allocations that a vendor has made for them alone."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from pinning.errors import InvalidRangeError
from pinning.memory import owned
from pinning.memory.allocation import Allocation, size_of
from pinning.memory.backing import device_address
from pinning.plugin import MemoryDevice, MemoryKind

if TYPE_CHECKING:
    from pinning.memory.context import Context

_ALIGNED = 16  # what every plugin promises


class Whole(Allocation):
    """All that is needed of what the vendor has allocated at `base`."""

    __slots__ = ("_base",)

    def __init__(
        self,
        context: Context,
        device: MemoryDevice,
        kind: MemoryKind,
        size: int,
        aligned: int = _ALIGNED,
        write_combined: bool = False,
    ) -> None:
        self._base = base = context.backing.allocate(device, size + aligned - _ALIGNED, kind, write_combined)
        try:
            ptr = base + -base % aligned
            there = device_address(device, ptr) if kind is MemoryKind.HOST else ptr
            super().__init__(ptr, there, size, kind, context, device)
            owned.owned(device).enter(self)
        except BaseException:
            self._ended = True
            context.backing.free(device, base)
            raise

    def give_back(self) -> None:
        table = owned.owned(self.device)
        table.take_out(self)
        try:
            self.context.backing.free(self.device, self._base)
        except BaseException:
            table.enter(self)
            raise


def allocate(
    context: Context,
    device: MemoryDevice,
    nbytes: int,
    kind: MemoryKind,
    alignment: int | None,
    write_combined: bool = False,
) -> Whole:
    """Allocate on a device of a context; see `pinning.alloc`."""
    size = size_of(nbytes)
    aligned = _ALIGNED if alignment is None else operator.index(alignment)
    if aligned < 1 or aligned & (aligned - 1):
        raise InvalidRangeError(f"alignment is {aligned}; it must be a power of two")
    size_of(size + aligned)
    kind = MemoryKind(kind)
    made = Whole(context, device, kind, size, write_combined=write_combined)
    if made.ptr % aligned == 0:
        return made
    made.free()
    return Whole(context, device, kind, size, aligned, write_combined)

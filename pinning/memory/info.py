# SPDX-License-Identifier: Apache-2.0
"""Which allocation holds an address."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import NamedTuple, SupportsIndex, TypeGuard

import numpy

from pinning.errors import InvalidRangeError
from pinning.interop.memory_of import host_buffer
from pinning.locking.devices import devices
from pinning.memory.allocation import Allocation, devices_used, find
from pinning.memory.context import Context
from pinning.memory.pool import Pool
from pinning.plugin import Device, MemoryDevice, MemoryInfo, MemoryKind
from pinning.runtime.buffers import Buffer


class AllocationInfo(NamedTuple):
    """The allocation around an address.

    Attributes
    ----------
    kind : MemoryKind
        HOST also for host memory that was locked.
    base : int
        Its first byte: the host's address of HOST memory, else the device's.
    size : int
        Bytes.
    device : Device or None
        Where it is; None for HOST memory that this package did not allocate.
    context : Context or None
        Its owner; None for memory that others allocated, or that was only locked.
    pool : Pool or None
        The pool that it came from, if any.
    """

    kind: MemoryKind
    base: int
    size: int
    device: Device | None
    context: Context | None
    pool: Pool | None


def memory_info(ptr: Buffer | Allocation) -> AllocationInfo | None:
    """The allocation that holds the byte at an address, of any owner, as vendors tell; `find` asks none.

    Parameters
    ----------
    ptr : int, buffer or Allocation
        Any address, also within an allocation; of a host buffer and of an allocation, that of the first byte.

    Returns
    -------
    AllocationInfo or None
        None for ordinary host memory and for unknown addresses.

    Raises
    ------
    InvalidRangeError
        An allocation that was freed, or memory that sleeps and was not allocated by `alloc`, where nothing is until it
        wakes.
    """
    if isinstance(ptr, Allocation):
        if ptr.freed:
            raise InvalidRangeError(f"{ptr!r}: its address may be another allocation's by now; give a number to ask")
        ptr = ptr.ptr
    address = operator.index(ptr) if _is_address(ptr) else host_buffer(ptr).ptr
    if not 0 <= address < 1 << 64:
        return None
    ours = find(address)
    if ours is not None:
        return AllocationInfo(ours.kind, ours.ptr, ours.size, ours.device, ours.context, ours.pool)
    for device in _one_of_each_plugin():
        info = device.memory_info(address)
        if info is not None:
            return AllocationInfo(info.kind, info.base, info.size, _located(info, device), None, None)
    return None


def _is_address(ptr: object) -> TypeGuard[SupportsIndex]:
    if isinstance(ptr, numpy.integer):
        return True
    return hasattr(type(ptr), "__index__") and not isinstance(ptr, bool) and not hasattr(ptr, "__array_interface__")


def _one_of_each_plugin() -> Iterator[MemoryDevice]:
    asked: set[str] = set()  # one device of a plugin answers for all
    for device in (*devices(), *devices_used()):
        if device.vendor not in asked and isinstance(device, MemoryDevice):
            asked.add(device.vendor)
            yield device


def _located(info: MemoryInfo, asked: Device) -> Device | None:
    if info.device is None:
        return None
    name = f"{asked.vendor}:{info.device}"
    return next((each for each in (asked, *devices(), *devices_used()) if each.name == name), None)

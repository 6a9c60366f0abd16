# SPDX-License-Identifier: Apache-2.0
"""Who owns memory: one device or several of one plugin; and plain allocation."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Self
from weakref import WeakSet

from pinning.devices import default_device, pinned_map
from pinning.devices import device as device_of_name
from pinning.errors import InvalidRangeError, PinningError, StillInUseError
from pinning.memory import owned
from pinning.memory.allocation import Allocation
from pinning.plugin import Device, MemoryDevice, MemoryKind

_ALIGNED = 16  # what every plugin promises
_contexts: WeakSet[Context] = WeakSet()


class Context:
    """Devices that own memory together. The host is implicit: HOST and SHARED memory can be used there too.

    A context manager, which closes it at the end.

    Parameters
    ----------
    devices : Device, str, or several
        Of one plugin, each once; such as ``"cuda:0"`` or ``["cuda:0", "cuda:1"]``.

    Raises
    ------
    PinningError
        They are of several plugins, one is named twice, there is none, or one has no memory to allocate.
    PluginUnavailableError
        There is no device of a name.

    Attributes
    ----------
    devices : tuple of MemoryDevice
    closed : bool
    """

    def __init__(self, devices: Device | str | Iterable[Device | str]) -> None:
        given = [devices] if isinstance(devices, (str, Device)) else list(devices)
        self.devices = tuple(_memory_device(each) for each in given)
        if not self.devices:
            raise PinningError("a context needs a device; pinning.devices() has those present")
        names = [each.name for each in self.devices]
        if len({name.partition(":")[0] for name in names}) > 1:
            raise PinningError(f"a context has devices of one plugin, not of several: {', '.join(names)}")
        if len(set(names)) < len(names):
            raise PinningError(f"a context has each device once: {', '.join(names)}")
        self.closed = False
        self._live: dict[tuple[int, int], str] = {}  # what the vendor has allocated, in words
        _contexts.add(self)

    def alloc(
        self,
        nbytes: int,
        kind: MemoryKind = MemoryKind.DEVICE,
        *,
        device: Device | str | None = None,
        alignment: int | None = None,
    ) -> Allocation:
        """Allocate memory; see `pinning.alloc`. `device` is the context's first by default."""
        on = self.devices[0] if device is None else self.member(device)
        size = size_of(nbytes)
        aligned = _ALIGNED if alignment is None else operator.index(alignment)
        if aligned < 1 or aligned & (aligned - 1):
            raise InvalidRangeError(f"alignment is {aligned}; it must be a power of two")
        made = Whole(self, on, kind, size)
        if made.ptr % aligned == 0:
            return made
        made.free()
        return Whole(self, on, kind, size, aligned)

    def free(self, memory: Allocation | int) -> None:
        """Free an allocation of this context; see `pinning.free`."""
        free(memory, self)

    def member(self, device: Device | str) -> MemoryDevice:
        """The device of this context that is given by itself or by name.

        Raises
        ------
        PinningError
            It is not in this context.
        """
        name = device if isinstance(device, str) else device.name
        wanted = name if ":" in name else f"{name}:0"
        for each in self.devices:
            if each is device or (isinstance(device, str) and each.name == wanted):
                return each
        raise PinningError(f"{name} is not in {self!r}")

    def vendor_allocate(self, device: MemoryDevice, length: int, kind: MemoryKind) -> int:
        """Have a device of this context allocate; on failure nothing is allocated.

        HOST memory enters the pinned maps of all devices of the context, so that every copy knows it as locked.
        """
        if self.closed:
            raise PinningError(f"{self!r} is closed")
        if kind not in device.memory_kinds:
            has = ", ".join(sorted(each.name for each in device.memory_kinds))
            raise PinningError(f"{device.name} has no memory of kind {kind.name}; it has {has}")
        base = device.allocate(length, kind)
        try:
            on = self.devices if kind is MemoryKind.HOST else ()
            _register(base, length, [(each, device_address(each, base)) for each in on])
        except BaseException:
            device.free(base, kind)
            raise
        self._live[id(device), base] = f"{length} bytes of {kind.name} at {base:#x}"
        return base

    def vendor_free(self, device: MemoryDevice, base: int, length: int, kind: MemoryKind) -> None:
        """Undo `vendor_allocate`; on failure nothing has changed.

        Raises
        ------
        StillLockedError
            Someone holds a lock in this HOST memory.
        VendorError
            The vendor refused.
        """
        # First, because afterwards the vendor can give the same address to another thread.
        registered = _unregister(base, length, self.devices if kind is MemoryKind.HOST else ())
        words = self._live.pop((id(device), base))
        try:
            device.free(base, kind)
        except BaseException:
            self._live[id(device), base] = words
            _register(base, length, registered)
            raise

    def close(self) -> None:
        """Take no more allocations. It frees nothing.

        Raises
        ------
        StillInUseError
            Something is still allocated.
        """
        if self._live:
            first, *others = self._live.values()
            more = f" and {len(others)} more" if others else ""
            raise StillInUseError(f"{self!r} still owns {first}{more}: free them, and close its pools, first")
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Context of {', '.join(each.name for each in self.devices)}{', closed' if self.closed else ''}>"


class Whole(Allocation):
    """An allocation that the vendor has made for it alone."""

    __slots__ = ("_base", "_length")

    def __init__(
        self, context: Context, device: MemoryDevice, kind: MemoryKind, size: int, aligned: int = _ALIGNED
    ) -> None:
        self._length = size + aligned - _ALIGNED
        self._base = base = context.vendor_allocate(device, self._length, kind)
        try:
            ptr = base + -base % aligned
            there = device_address(device, ptr) if kind is MemoryKind.HOST else ptr
            super().__init__(ptr, there, size, kind, context, device)
            owned.owned(device).enter(self)
        except BaseException:
            self._ended = True
            context.vendor_free(device, base, self._length, kind)
            raise

    def give_back(self) -> None:
        table = owned.owned(self.device)
        table.take_out(self)
        try:
            self.context.vendor_free(self.device, self._base, self._length, self.kind)
        except BaseException:
            table.enter(self)
            raise


def alloc(
    nbytes: int,
    kind: MemoryKind = MemoryKind.DEVICE,
    *,
    context: Context | None = None,
    device: Device | str | None = None,
    alignment: int | None = None,
) -> Allocation:
    """Allocate memory that a program frees itself. For much that comes and goes there is `Queue.alloc`.

    Parameters
    ----------
    nbytes : int
        At least 1; exactly so many are allocated.
    kind : MemoryKind
        HOST: pinned memory of the host, which all devices of the context reach. DEVICE: memory of one device. SHARED:
        moves between the host and the devices as it is used.
    context : Context, optional
        Who owns it; by default the context of `device` alone.
    device : Device or str, optional
        Where, such as ``"cuda:0"``; by default the first of `context`, or else the first that is not the host.
    alignment : int, optional
        A power of two, of which its address is to be a multiple; of 16 by default.

    Returns
    -------
    Allocation
        Keep it: dropping it frees the memory.

    Raises
    ------
    InvalidRangeError
        A size below 1, or an alignment that is no power of two.
    PinningError
        The device is not in the context, or has no memory of this kind; or the context is closed.
    PluginUnavailableError
        There is no such device.
    VendorError
        The vendor refused, perhaps for want of memory.
    """
    if context is None:
        context = default_context(device)
    return context.alloc(nbytes, kind, device=device, alignment=alignment)


def free(memory: Allocation | int, context: Context | None = None) -> None:
    """Give memory back; as `Allocation.free`.

    Parameters
    ----------
    memory : Allocation or int
        What `alloc` or a queue returned, or the address of its first byte.
    context : Context, optional
        Who must own it. Needed where an address means something else to each of several vendors.

    Raises
    ------
    InvalidRangeError
        It is freed already, of another context, unknown, or not the first byte of an allocation.
    """
    if isinstance(memory, Allocation):
        found = memory
    else:
        ptr = operator.index(memory)
        there = owned.find(ptr, context.devices if context else ())
        if there is None:
            raise InvalidRangeError(f"{ptr:#x} is no memory that is allocated here; was it freed already?")
        if there.ptr != ptr:
            raise InvalidRangeError(f"{ptr:#x} lies within {there!r}: free that by its first byte")
        found = there
    if context is not None and found.context is not context:
        raise InvalidRangeError(f"{found!r} is not owned by {context!r}, but by {found.context!r}")
    found.free()


def default_context(device: Device | str | None = None) -> Context:
    """The context of one device alone, the same each time; of the default device when None."""
    found = default_device() if device is None else device_of_name(device) if isinstance(device, str) else device
    known = _default_contexts.get(id(found))
    return known if known is not None else _default_contexts.setdefault(id(found), Context(found))


_default_contexts: dict[int, Context] = {}  # by id of the device, which its context keeps alive


def size_of(nbytes: int) -> int:
    """The number of bytes that somebody asks for.

    Raises
    ------
    InvalidRangeError
        It is below 1.
    """
    size = operator.index(nbytes)
    if size < 1:
        raise InvalidRangeError(f"size is {size}; an allocation has at least 1 byte")
    return size


def device_address(device: MemoryDevice, ptr: int) -> int:
    """The address that HOST memory at `ptr` has for a device."""
    info = device.is_pinned_ptr(ptr)
    if info is None:
        raise PinningError(f"{device.name} cannot reach the HOST memory at {ptr:#x}: use a context without it")
    return info.device_ptr + (ptr - info.base)


def _register(base: int, length: int, places: Iterable[tuple[MemoryDevice, int]]) -> None:
    with ExitStack() as undo:
        for device, address in places:
            pinned_map(device).register(base, length, address)
            undo.callback(pinned_map(device).unregister, base)
        undo.pop_all()


def _unregister(base: int, length: int, devices: Iterable[MemoryDevice]) -> list[tuple[MemoryDevice, int]]:
    """Returns where it was registered, and its address there."""
    places: list[tuple[MemoryDevice, int]] = []
    with ExitStack() as undo:
        for device in devices:
            region = pinned_map(device).find(base)
            if region is None:  # the map was closed
                continue
            pinned_map(device).unregister(base)
            undo.callback(pinned_map(device).register, base, length, region.device_ptr)
            places.append((device, region.device_ptr))
        undo.pop_all()
    return places


def _memory_device(device: Device | str) -> MemoryDevice:
    found = device_of_name(device) if isinstance(device, str) else device
    if not isinstance(found, MemoryDevice):
        raise PinningError(f"the plugin of {found.name} locks memory and allocates none")
    return found


def _after_fork_in_child() -> None:
    for context in list(_contexts):
        context._live.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)

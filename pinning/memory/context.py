# SPDX-License-Identifier: Apache-2.0
"""Owners of memory: one device or several of one plugin; and plain allocation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn, Self

from pinning.errors import ArgumentError, InvalidRangeError, PinningError
from pinning.locking.devices import default_device
from pinning.locking.devices import device as device_of_name
from pinning.memory.allocation import Allocation, find
from pinning.memory.backing import Backing
from pinning.plugin import Device, MemoryDevice, MemoryKind, MemoryKindLike
from pinning.runtime.arguments import describe, flag, integer
from pinning.runtime.handles import refuse_closed, refuse_copy
from pinning.runtime.per_device import PerDevice


class Context(Backing):
    """One or more devices of a plugin that own memory. HOST and SHARED memory can also be used on the host.

    A context manager, which closes it at the end.

    Parameters
    ----------
    devices : Device, str, or several
        Of one plugin, each once; such as ``"cuda:0"`` or ``["cuda:0", "cuda:1"]``.

    Raises
    ------
    ArgumentError
        They are of several plugins, one is named twice, or none is given.
    PinningError
        One has no memory to allocate.
    PluginUnavailableError
        There is no device with one of the names.

    Attributes
    ----------
    devices : tuple of MemoryDevice
    closed : bool
        Whether it takes no more allocations.
    """

    def __init__(self, devices: Device | str | Iterable[Device | str]) -> None:
        given = devices if isinstance(devices, Iterable) and not isinstance(devices, str) else [devices]
        members = tuple(_memory_device(each) for each in given)
        if not members:
            raise ArgumentError("a context needs a device; pinning.devices() has those present")
        names = [each.name for each in members]
        if len({device.vendor for device in members}) > 1:
            raise ArgumentError(f"a context has devices of one plugin, not of several: {', '.join(names)}")
        if len(set(names)) < len(names):
            raise ArgumentError(f"a context has each device once: {', '.join(names)}")
        super().__init__(members)

    def alloc(
        self,
        nbytes: int,
        kind: MemoryKindLike = MemoryKind.DEVICE,
        *,
        device: Device | str | None = None,
        alignment: int | None = None,
        write_combined: bool = False,
        sleepable: bool = False,
    ) -> Allocation:
        """Allocate memory; see `pinning.alloc`. `device` is the context's first by default.

        Parameters
        ----------
        nbytes, kind, alignment, write_combined, sleepable
            As for `pinning.alloc`.
        device : Device or str, optional
            A device of the context; its first by default.
        """
        chosen = self.devices[0] if device is None else self.member(device)
        return self.allocate(
            chosen, nbytes, kind, alignment, flag(write_combined, "write_combined"), flag(sleepable, "sleepable")
        )

    def free(self, memory: Allocation | int) -> None:
        """Free an allocation of this context; see `pinning.free`.

        Parameters
        ----------
        memory : Allocation or int
            What `alloc` has returned, or the address of its first byte.
        """
        free(memory, self)

    def member(self, device: Device | str) -> MemoryDevice:
        """Look up a device of this context.

        Parameters
        ----------
        device : Device or str
            The device, or its name.

        Raises
        ------
        PinningError
            It is not in this context.
        """
        name = device if isinstance(device, str) else device_of_name(device).name
        full_name = name if ":" in name else f"{name}:0"
        for each in self.devices:
            if each is device or (isinstance(device, str) and each.name == full_name):
                return each
        raise ArgumentError(f"{name} is not in {self!r}: name one of its devices, or none for the first")

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "make another, with pinning.Context")

    def __enter__(self) -> Self:
        refuse_closed(self)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Context of {', '.join(each.name for each in self.devices)}{', closed' if self.closed else ''}>"


def alloc(
    nbytes: int,
    kind: MemoryKindLike = MemoryKind.DEVICE,
    *,
    context: Context | Device | str | None = None,
    device: Device | str | None = None,
    alignment: int | None = None,
    write_combined: bool = False,
    sleepable: bool = False,
) -> Allocation:
    """Allocate memory, which the program frees. For frequent allocations use `Queue.alloc`.

    Parameters
    ----------
    nbytes : int
        The exact number of bytes, at least 1.
    kind : MemoryKind or str
        HOST: pinned memory of the host, which all devices of the context reach. DEVICE: memory of one device. SHARED:
        moves between the host and the devices as it is used.
    context : Context, or Device or str, optional
        The owner, or a device for its default context; by default that of `device`.
    device : Device or str, optional
        Such as ``"cuda:0"``; by default the first of `context`, or the default device.
    alignment : int, optional
        A power of two; the address is a multiple of it. 16 by default.
    write_combined : bool
        HOST memory that the host does not cache, for data that the host writes sequentially and only the device reads.
        The device may read it faster; the host reads it very slowly.
    sleepable : bool
        DEVICE memory of an NVIDIA GPU that `pinning.sleeping.sleep` can give back while its addresses stay reserved.

    Returns
    -------
    Allocation
        Keep it: dropping it frees the memory.

    Raises
    ------
    InvalidRangeError
        A size below 1 or beyond any memory, or an alignment that is not a power of two.
    PinningError
        The device is not in the context, or has no such memory; or the context is closed.
    PluginUnavailableError
        There is no such device.
    MemoryError
        Not enough memory: `OutOfMemoryError` of the vendor, or `LockLimitError` if HOST memory cannot be locked.
    VendorError
        The vendor refused for another reason.

    Examples
    --------
    >>> with pinning.alloc(8000, "host") as memory:
    ...     array = numpy.asarray(memory).view("f8")
    ...     array[:] = 1
    ...     print(array.sum(), pinning.is_locked(array))
    ...     del array
    1000.0 True
    """
    if not isinstance(context, Context):
        context = default_context(device if context is None else context)
    return context.alloc(
        nbytes, kind, device=device, alignment=alignment, write_combined=write_combined, sleepable=sleepable
    )


def free(memory: Allocation | int, context: Context | None = None) -> None:
    """Free memory, like `Allocation.free`.

    Parameters
    ----------
    memory : Allocation or int
        What `alloc` or a queue returned, or the address of its first byte.
    context : Context, optional
        The owner. Needed if several vendors use the same address for different memory.

    Raises
    ------
    InvalidRangeError
        It is freed already, of another context, unknown, or not the first byte of an allocation.
    """
    if context is not None and not isinstance(context, Context):
        raise TypeError(f"context is {describe(context)}; it must be a Context")
    if isinstance(memory, Allocation):
        found = memory
    else:
        ptr = integer(memory, "memory", "the address of an allocation, or else an Allocation")
        there = find(ptr, context.devices if context else ())
        if there is None:
            raise InvalidRangeError(f"{ptr:#x} is not memory allocated here; was it already freed?")
        if there.ptr != ptr:
            raise InvalidRangeError(f"{ptr:#x} lies within {there!r}: free it by its first byte")
        found = there
    if context is not None and found.context is not context:
        raise InvalidRangeError(f"{found!r} is not owned by {context!r}, but by another, {found.context!r}: name none")
    found.free()


def default_context(device: Device | str | None = None) -> Context:
    """The context of one device alone, the same until it is closed; of the default device when None."""
    found = default_device() if device is None else device_of_name(device)
    return _default_contexts.get_open(found)


_default_contexts = PerDevice(Context)


def _memory_device(device: Device | str) -> MemoryDevice:
    found = device_of_name(device)
    if not isinstance(found, MemoryDevice):
        raise PinningError(f"the plugin of {found.name} can lock memory but not allocate it")
    return found

# SPDX-License-Identifier: Apache-2.0
"""Storages of torch, locked in place."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, suppress
from threading import Timer
from typing import Any, NoReturn, Self
from weakref import finalize, ref

import torch

from pinning.errors import NotLockedError
from pinning.locking.lock import Lock
from pinning.locking.lock import lock as lock_buffer
from pinning.plugin import Device
from pinning.runtime.handles import refuse_copy
from pinning.runtime.process import defer
from pinning.torch.storages import Holder, in_host, tensors_of, whole

# Pins in effect, youngest last: for `unpin`, and because a pin lasts whether or not its handle is kept.
_pins: list[Pin] = []
_LONGEST_WAIT = 5.0  # seconds between two checks whether a view is left


class Pin:
    """The locks of one `pin`; a context manager, which unpins at the end.

    Attributes
    ----------
    held : bool
        Whether it is still in effect.
    nbytes : int
        Bytes of the storages that it holds.
    """

    def __init__(self, device: Device | str | None) -> None:
        self._device = device
        self._locks: dict[int, tuple[torch.Tensor, Lock]] = {}  # by the address of a storage, its bytes and their lock
        self.held: bool = True

    @property
    def nbytes(self) -> int:
        return sum(lock.size for _, lock in self._locks.values())

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """Lock the storages of more tensors: all or, on an error, none. Those on a device and empty ones are skipped.

        Raises
        ------
        TypeError
            A tensor has no storage of its own.
        InvalidRangeError, LockLimitError, VendorError
            As `pinning.lock`.
        """
        with ExitStack() as stack:
            found: dict[int, tuple[torch.Tensor, Lock]] = {}
            for tensor in tensors:
                if not in_host(tensor):
                    continue
                data = whole(tensor)
                at = data.data_ptr()
                if data.numel() == 0 or at in found or at in self._locks:
                    continue
                found[at] = data, stack.enter_context(lock_buffer(data, device=self._device))
            self._locks.update(found)
            stack.pop_all()

    def refresh(self, holder: Holder) -> None:
        """Check the tensors again: storages that have moved or are gone are unlocked, new ones are locked.

        Needed after operations that give a tensor another storage, or a storage other memory: ``resize_``, ``set_``,
        ``param.data = ...``, ``load_state_dict(assign=True)``. Not needed after copies into the storage, such as by
        plain ``load_state_dict``.
        """
        addresses = {whole(tensor).data_ptr() for tensor in tensors_of(holder) if in_host(tensor)}
        for at, (data, lock) in list(self._locks.items()):
            if at not in addresses or data.data_ptr() != at:
                lock.unlock()
                self._locks.pop(at, None)
        self.add(tensors_of(holder))

    def unpin(self) -> None:
        """Release the locks. A second call does nothing."""
        self.held = False
        for at, (_, lock) in list(self._locks.items()):
            lock.unlock()
            self._locks.pop(at, None)  # the thread that checks whether a view is left may have done so
        with suppress(ValueError):
            _pins.remove(self)

    def unpin_when_unused(self, seconds: float = 0.05) -> None:
        """`unpin` once nothing else, such as a view or ``detach()``, uses the storages; checks ever less often."""
        if not any(_is_used(data) for data, _ in self._locks.values()):
            self.unpin()
            return
        again = Timer(seconds, self.unpin_when_unused, (min(2 * seconds, _LONGEST_WAIT),))
        again.daemon = True
        again.start()

    def has_all(self, addresses: set[int]) -> bool:
        return addresses <= self._locks.keys()

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it stands for its locks; pin the tensors once more")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.unpin()

    def __repr__(self) -> str:
        return f"<Pin of {len(self._locks)} storages, {self.nbytes} bytes{'' if self.held else ', given up'}>"


def pin(holder: Holder, *, device: Device | str | None = None) -> Pin:
    """Lock the memory of tensors in place: nothing is copied, and no memory is doubled.

    Afterwards ``t.is_pinned()`` is true for every view of it, and torch's own ``t.to("cuda", non_blocking=True)`` runs
    at the rate of locked memory. Whole storages are locked, shared ones once: no copy crosses the border of a lock.

    Parameters
    ----------
    holder : tensor, module, optimizer, or mapping or sequence of these
        Tensors on a device need no lock. A state dict is a mapping.
    device : Device or str, optional
        The device for which it is locked, such as ``"cuda:0"``; by default the default device.

    Returns
    -------
    Pin
        May be dropped: the lock lasts until `unpin`, or until the tensor, module or optimizer is gone and nothing else
        has a view of its storages, which is noticed some time later; for a mapping or sequence, until `unpin`.

    Raises
    ------
    TypeError
        `holder` is none of these, or has a tensor without memory (``meta``) or without a storage of its own (sparse).
    InvalidRangeError, LockLimitError, VendorError
        As `pinning.lock`; then nothing is locked.
    """
    tensors = list(tensors_of(holder))
    if any(tensor.is_meta for tensor in tensors):
        raise TypeError("a tensor on the device 'meta' has no memory: materialise it first, as with to_empty()")
    if isinstance(holder, torch.Tensor) and not in_host(holder):
        raise TypeError(f"the tensor is on {holder.device}: only memory of the host is pinned")
    if torch.cuda.is_available():
        torch.cuda.init()  # before that, torch reports nothing as pinned
    pin = Pin(device)
    try:
        pin.add(tensors)
        _pins.append(pin)
        if isinstance(holder, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)):
            finalize(holder, _end, ref(pin)).atexit = False
    except BaseException:
        pin.unpin()
        raise
    return pin


def unpin(holder: Holder) -> None:
    """Undo the last `pin` that holds all storages of `holder`.

    Raises
    ------
    TypeError
        As `pin`.
    NotLockedError
        There is no such `pin`.
    """
    addresses = {whole(tensor).data_ptr() for tensor in tensors_of(holder) if in_host(tensor)} - {0}
    for each in reversed(_pins):
        if addresses and each.has_all(addresses):
            each.unpin()
            return
    raise NotLockedError("pinning.torch.pin has not pinned this, or it has been unpinned: there is nothing to unpin")


def _end(of: Any) -> None:
    there = of()
    if there is not None:
        defer(there.unpin_when_unused)  # the collector may run this at any point


def _is_used(data: torch.Tensor) -> bool:
    """Whether anything but `data` and the Python object of its storage uses the storage."""
    storage = data.untyped_storage()
    count = getattr(torch._C, "_storage_Use_Count", None)
    return count is not None and count(storage._cdata) > 2

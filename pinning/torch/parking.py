# SPDX-License-Identifier: Apache-2.0
"""Modules that leave the GPU for a while, wherever their memory came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch

from pinning.errors import PinningError
from pinning.queues.links import Links
from pinning.sleeping import Memory, Parked
from pinning.torch.storages import in_host, tensors_of

Holder: TypeAlias = "torch.nn.Module | torch.optim.Optimizer"  # a string: the documentation is built without torch

_parked: WeakKeyDictionary[Holder, Parked] = WeakKeyDictionary()


def park(*holders: Holder, links: Links = "idle") -> Parked:
    """Move modules, and optimizers' state, from the GPU to locked host memory, over all links that are idle.

    Parameters, buffers and gradients stay the same objects, tied, shared and strided as before, but have no memory
    until `wake`: torch refuses to use them. torch's cached memory is freed too. Waits for all work of the GPU, and for
    the copies.

    Parameters
    ----------
    *holders : torch.nn.Module or torch.optim.Optimizer
        Their tensors in the host stay as they are.
    links : {"own", "idle"} or devices
        As for `pinning.Queue`.

    Returns
    -------
    Parked
        May be dropped. Its memory in the host is kept for the next time, until all of the holders are gone.

    Raises
    ------
    TypeError
        A holder is neither of these, or none is given; or a tensor has no storage of its own (sparse).
    PinningError
        Something is already parked, or torch did not allocate its memory and cannot free it.
    MemoryError, VendorError
        The host's memory cannot be allocated or locked, or a copy failed. After any error nothing has changed.
    """
    if not holders or not all(isinstance(each, (torch.nn.Module, torch.optim.Optimizer)) for each in holders):
        raise TypeError("park takes modules and optimizers, at least one")
    memory = list(_storages_of(holders))
    parked = _parked.get(holders[0])
    if parked is None or parked.parked:  # by a call with others, which sleep still
        parked = Parked()
    parked.park(memory, links)
    torch.cuda.empty_cache()
    for each in [other for other, its in _parked.items() if its is parked]:
        _parked[each] = Parked()  # was parked with these before, and is awake
    for each in holders:
        _parked[each] = parked
    return parked


def _storages_of(holders: Iterable[Holder]) -> Iterator[Memory]:
    """Each storage on a device once."""
    seen = set()
    for tensor in _tensors_of(holders):
        device = _device_name(tensor)
        if device is None or tensor.numel() == 0:
            continue
        if tensor.layout is not torch.strided:
            raise TypeError(f"a tensor of layout {tensor.layout} has no storage of its own and cannot be parked")
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            raise PinningError(f"a tensor of shape {tuple(tensor.shape)} has no memory: it is parked; wake it first")
        if not storage.resizable():
            raise PinningError(
                f"the memory of a tensor of shape {tuple(tensor.shape)} was not allocated by torch, so "
                "it cannot be freed: park a clone of it"
            )
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            yield _memory_of(storage, device)


def _memory_of(storage: torch.UntypedStorage, device: str) -> Memory:
    size = storage.nbytes()
    return Memory(device, lambda awake: storage.resize_(size if awake else 0), lambda: [(storage.data_ptr(), size)])


def _tensors_of(holders: Iterable[Holder]) -> Iterator[torch.Tensor]:
    for holder in holders:
        yield from tensors_of(holder)
        if isinstance(holder, torch.nn.Module):
            yield from (each.grad for each in holder.parameters() if each.grad is not None)


def _device_name(tensor: torch.Tensor) -> str | None:
    return None if in_host(tensor) or tensor.is_meta else f"cuda:{tensor.device.index}"

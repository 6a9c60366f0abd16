# SPDX-License-Identifier: Apache-2.0
"""Modules that leave the GPU for a while: their data there is copied to locked host memory, and later back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import NamedTuple, NoReturn, TypeAlias
from weakref import WeakKeyDictionary

import numpy
import torch

from pinning.arena import Arena
from pinning.copies import copy_async, copy_batch_async
from pinning.errors import LockLimitError, PinningError, VendorError
from pinning.memory import alloc
from pinning.plugin import MemoryKind
from pinning.queues import Event, Queue
from pinning.queues.links import Links
from pinning.runtime.handles import refuse_copy
from pinning.runtime.process import defer
from pinning.torch.storages import in_host, tensors_of

Holder: TypeAlias = "torch.nn.Module | torch.optim.Optimizer"  # a string: the documentation is built without torch

_ALIGNMENT = 256  # bytes
_ALONE = 1 << 20  # bytes from which a storage is copied separately
_UNIT = 64 << 20  # bytes of host memory that are locked at a time, while the next are populated
_AHEAD = 8  # pending copies at a time, so that links are released soon
_parked: WeakKeyDictionary[Holder, Parked] = WeakKeyDictionary()


class _HostMemory(NamedTuple):
    ptr: int
    nbytes: int
    free: Callable[[], None]


class Parked:
    """The host memory of parked modules, as returned by `park`; kept for the next time until they are gone.

    Attributes
    ----------
    parked : bool
        Whether the tensors are in the host now.
    nbytes : int
        Bytes of the last `park`.
    """

    def __init__(self) -> None:
        self._host: _HostMemory | None = None
        self._storages: list[tuple[str, torch.UntypedStorage, int, int]] = []  # device, offset and bytes of each
        self.nbytes: int = 0

    @property
    def parked(self) -> bool:
        return bool(self._storages)

    def park(self, storages: list[tuple[str, torch.UntypedStorage]], links: Links) -> None:
        """Copy storages to the host, and free their memory; after an error nothing has changed."""
        placed, end = [], 0
        for device, storage in storages:
            placed.append((device, storage, end, storage.nbytes()))
            end += -(-storage.nbytes() // _ALIGNMENT) * _ALIGNMENT
        if not placed:
            return
        if self._host is None or self._host.nbytes < end:
            if self._host is not None:  # before another is allocated
                self._host.free()
                self._host = None
            self._host = _host_memory(end, placed[0][0])
        _synchronize(placed)
        self._copy(placed, links, back=False)
        self._storages, self.nbytes = placed, sum(size for *_, size in placed)
        try:
            for _, storage, _, _ in placed:
                storage.resize_(0)
        except BaseException:
            self.wake(links)
            raise
        _give_back(placed)

    def wake(self, links: Links = "idle") -> None:
        """Copy everything back; after an error all of it is still parked.

        Parameters
        ----------
        links : {"own", "idle"} or devices
            As for `pinning.Queue`.
        """
        placed = self._storages
        try:
            for _, storage, _, size in placed:
                storage.resize_(size)
            _synchronize(placed)  # memory from torch may be in use until then
            self._copy(placed, links, back=True)
        except BaseException:
            for _, storage, _, _ in placed:
                storage.resize_(0)
            raise
        self._storages = []

    def _copy(self, placed: list[tuple[str, torch.UntypedStorage, int, int]], links: Links, back: bool) -> None:
        assert self._host is not None
        with ExitStack() as stack:
            queues: dict[str, Queue] = {}
            small: dict[str, list[tuple[int, int, int]]] = {}
            pending: deque[Event] = deque()
            for device, storage, offset, size in placed:
                if device not in queues:
                    queues[device] = stack.enter_context(Queue(device, links=links))
                ends = storage.data_ptr(), self._host.ptr + offset
                dst, src = ends if back else ends[::-1]
                if size < _ALONE:
                    small.setdefault(device, []).append((dst, src, size))
                    continue
                pending.append(copy_async(dst, src, size, queue=queues[device]))
                if len(pending) > _AHEAD:
                    pending.popleft().wait()
            for device, items in small.items():
                dsts, srcs, sizes = (numpy.array(column, numpy.uint64) for column in zip(*items, strict=True))
                pending.append(copy_batch_async(dsts, srcs, sizes, queue=queues[device]))
            for event in pending:
                event.wait()

    def __del__(self) -> None:
        if self._host is not None:
            defer(self._host.free)  # not here: the garbage collector may run this at any point

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it holds the contents of parked tensors; wake them first")

    def __repr__(self) -> str:
        return f"<Parked: {self.nbytes} bytes, {'in the host' if self.parked else 'awake'}>"


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
    storages = list(_storages_of(holders))
    parked = _parked.get(holders[0]) or Parked()
    if parked.parked:
        raise PinningError(f"this {type(holders[0]).__name__} is already parked; wake it first")
    parked.park(storages, links)
    for each in holders:
        _parked[each] = parked
    return parked


def wake(*holders: Holder, links: Links = "idle") -> None:
    """Copy back to the GPU what `park` moved away, together with everything that was parked in the same call.

    The addresses may change: CUDA graphs that were captured with the old ones must be captured again. Everything is on
    the GPU when the call returns, for work of any stream.

    Parameters
    ----------
    *holders : torch.nn.Module or torch.optim.Optimizer
        Those that are awake stay so.
    links : {"own", "idle"} or devices
        As for `pinning.Queue`.

    Raises
    ------
    PinningError
        A holder was never parked.
    torch.OutOfMemoryError, VendorError
        There is no room on the GPU, or a copy failed. Everything of that call of `park` is then still parked.
    """
    for each in holders:
        parked = _parked.get(each)
        if parked is None:
            raise PinningError(f"this {type(each).__name__} was not parked: there is nothing to wake")
        if parked.parked:
            parked.wake(links)


def _host_memory(nbytes: int, device: str) -> _HostMemory:
    """Memory of an arena, whose pages many threads populate; for the vendor's own, one thread does."""
    try:
        with ExitStack() as undo:
            arena = Arena(nbytes, device, unit=_UNIT)
            undo.callback(arena.close)
            arena.wait()
            undo.pop_all()
            return _HostMemory(arena.ptr, nbytes, arena._close)
    except (LockLimitError, VendorError):  # the vendor's own memory has other limits
        memory = alloc(nbytes, MemoryKind.HOST, device=device)
        return _HostMemory(memory.ptr, nbytes, memory.free)


def _storages_of(holders: Iterable[Holder]) -> Iterator[tuple[str, torch.UntypedStorage]]:
    """Each storage on a device once, with the device's name."""
    seen = set()
    for tensor in _tensors_of(holders):
        device = _device_name(tensor)
        if device is None or tensor.numel() == 0:
            continue
        if tensor.layout is not torch.strided:
            raise TypeError(f"a tensor of layout {tensor.layout} has no storage of its own and cannot be parked")
        storage = tensor.untyped_storage()
        if storage._cdata in seen:
            continue
        seen.add(storage._cdata)
        if storage.nbytes() == 0:
            raise PinningError(
                f"a tensor of shape {tuple(tensor.shape)} has no memory: it is already parked; wake it first"
            )
        if not storage.resizable():
            raise PinningError(
                f"the memory of a tensor of shape {tuple(tensor.shape)} was not allocated by torch, so "
                "it cannot be freed: park a clone of it"
            )
        yield device, storage


def _tensors_of(holders: Iterable[Holder]) -> Iterator[torch.Tensor]:
    for holder in holders:
        yield from tensors_of(holder)
        if isinstance(holder, torch.nn.Module):
            yield from (each.grad for each in holder.parameters() if each.grad is not None)


def _device_name(tensor: torch.Tensor) -> str | None:
    return None if in_host(tensor) or tensor.is_meta else f"cuda:{tensor.device.index}"


def _synchronize(placed: list[tuple[str, torch.UntypedStorage, int, int]]) -> None:
    for name in {device for device, *_ in placed if device.startswith("cuda:")}:
        torch.cuda.synchronize(name)


def _give_back(placed: list[tuple[str, torch.UntypedStorage, int, int]]) -> None:
    if any(device.startswith("cuda:") for device, *_ in placed):
        torch.cuda.empty_cache()

# SPDX-License-Identifier: Apache-2.0
"""Batches that a DataLoader's workers write directly into locked memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, default_collate, default_collate_fn_map

from pinning.errors import PinningError
from pinning.plugin import Device
from pinning.runtime.arguments import byte_count, describe, integer
from pinning.torch.slots import Block, Slots, Ticket, slots_of
from pinning.torch.storages import in_host, replaced

_ALIGNMENT = 64  # bytes, as by torch's host allocator


class Collate:
    """A ``collate_fn`` for torch's DataLoader: workers write batches straight into locked memory that processes share.

    The tensors that the loader then yields are pinned, and were copied neither into shared memory nor into pinned
    memory. Their memory is reused for another batch once the last of them is gone and the GPUs have completed the work
    that was pending then::

        collate = pinning.torch.Collate(nbytes=64 << 20, batches=24)
        for batch in DataLoader(dataset, batch_size=256, num_workers=8, collate_fn=collate):
            batch = batch.to("cuda", non_blocking=True)

    Make it in the process that has the DataLoader. Workers may use any start method, or there may be none.
    ``pin_memory=True`` then costs a thread and copies only what did not fit.

    Parameters
    ----------
    nbytes : int
        Size of a batch; each tensor begins at a multiple of 64 bytes. Tensors that do not fit, and all of a batch for
        which no memory is left, are sent as torch sends them, and are not pinned.
    batches : int
        The number that may exist at a time: those that workers prefetch (``num_workers * prefetch_factor``), and those
        that the program uses. At most 256.
    collate_fn : callable, optional
        Makes a batch of a list of samples; its tensors, in dicts, lists and tuples, are then copied once. By default
        torch's, with tensors and arrays stacked directly in the memory.
    device : Device or str, optional
        The device for which the memory is locked; by default the default device.

    Raises
    ------
    InvalidRangeError
        A size or number out of bounds.
    LockLimitError, VendorError
        The memory is not available, or cannot be locked.

    Attributes
    ----------
    nbytes, batches : int
    missed : int
        The number of batches that arrived but were not, or not entirely, in this memory.
    """

    def __init__(
        self,
        nbytes: int,
        batches: int,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        device: Device | str | None = None,
    ) -> None:
        if collate_fn is not None and not callable(collate_fn):
            raise TypeError(f"collate_fn is {describe(collate_fn)}; it must be a function of a list of samples")
        self.nbytes: int = byte_count(nbytes)
        self.batches: int = integer(batches, "batches", "how many there may be at a time")
        self._make = collate_fn
        self._slots = Slots(self.nbytes, self.batches, device)

    @property
    def missed(self) -> int:
        return self._slots.missed

    def __call__(self, samples: list[Any]) -> Any:
        slots = self._slots
        if not slots.owned:
            return self._sent(samples) if get_worker_info() and slots.can_send else self._made(samples, None)
        if (ticket := slots.take()) is None:
            slots.miss()
            return self._made(samples, None)
        page = _Page(numpy.asarray(Block(slots, ticket)))
        batch = self._made(samples, page)
        if page.full:
            slots.miss()
        return batch

    def _sent(self, samples: list[Any]) -> _Sent:
        """In a worker: the message from which the owner makes the batch."""
        slots = self._slots
        if (ticket := slots.take()) is None:
            return _Sent(slots.key, None, self._made(samples, None), True)
        page = _Page(slots.bytes_of(ticket))
        try:
            batch = replaced(self._made(samples, page), page.place_of)
        except BaseException:
            slots.put_back(ticket)
            raise
        if page.used == 0:
            slots.put_back(ticket)
        return _Sent(slots.key, ticket if page.used else None, batch, page.full)

    def _made(self, samples: list[Any], page: _Page | None) -> Any:
        """A batch, as much of it on the page as fits."""
        if page is None:
            return (self._make or default_collate)(samples)
        if self._make is not None:
            return replaced(self._make(samples), page.keep)
        stacks = {torch.Tensor: page.stack, numpy.ndarray: page.stack_arrays}
        return replaced(collate(samples, collate_fn_map={**default_collate_fn_map, **stacks}), page.keep)

    def __repr__(self) -> str:
        return f"<Collate of {self.batches} batches of {self.nbytes} bytes>"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor is on a page."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def tensor(self, memory: NDArray[numpy.uint8]) -> torch.Tensor:
        """The tensor, with a storage of only its own bytes."""
        plan = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        data = torch.from_numpy(memory[self.offset : self.offset + plan.untyped_storage().nbytes()])
        return torch.empty(0, dtype=self.dtype).set_(data.untyped_storage(), 0, self.shape, self.stride)


class _Page:
    """The bytes for one batch, one tensor after another."""

    def __init__(self, memory: NDArray[numpy.uint8]) -> None:
        self._memory = memory
        self._places: dict[int, _Place] = {}  # by the address of a tensor
        self.used = 0
        self.full = False  # something did not fit

    def room(self, plan: torch.Tensor) -> torch.Tensor | None:
        """A tensor on the page like `plan`, which has no memory; None if it does not fit."""
        start = -(-self.used // _ALIGNMENT) * _ALIGNMENT
        end = start + plan.untyped_storage().nbytes()
        if end > self._memory.size:
            self.full = True
            return None
        self.used = end
        place = _Place(start, plan.dtype, tuple(plan.shape), plan.stride())
        tensor = place.tensor(self._memory)
        self._places[tensor.data_ptr()] = place
        return tensor

    def place_of(self, tensor: torch.Tensor) -> torch.Tensor | _Place:
        """The place of a tensor, or the tensor itself if it is not on the page."""
        return self._places.get(tensor.data_ptr(), tensor) if _is_plain(tensor) else tensor

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, copied to the page if it fits."""
        if not _is_plain(tensor) or tensor.data_ptr() in self._places:
            return tensor
        room = self.room(torch.empty_like(tensor, device="meta"))
        return tensor if room is None else room.copy_(tensor)

    def stack(self, samples: list[torch.Tensor], *, collate_fn_map: Any) -> torch.Tensor:
        """As torch's, but on the page."""
        first = samples[0]
        if all(_is_plain(each) and each.shape == first.shape and each.dtype == first.dtype for each in samples):
            room = self.room(torch.empty((len(samples), *first.shape), dtype=first.dtype, device="meta"))
            if room is not None:
                return torch.stack(samples, 0, out=room)
        return default_collate_fn_map[torch.Tensor](samples, collate_fn_map=collate_fn_map)

    def stack_arrays(self, samples: list[Any], *, collate_fn_map: Any) -> Any:
        if samples[0].dtype.kind in "SUO":
            return default_collate_fn_map[numpy.ndarray](samples, collate_fn_map=collate_fn_map)
        return self.stack([torch.as_tensor(each) for each in samples], collate_fn_map=collate_fn_map)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is an ordinary dense tensor in the host, not empty, that requires no gradient."""
    return (
        type(tensor) is torch.Tensor
        and in_host(tensor)
        and tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_quantized or tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
        and tensor.numel() > 0
    )


class _Sent:
    """The message of a worker; unpickling it gives the batch."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, self._arguments


def _received(key: tuple[int, int], ticket: Ticket | None, batch: Any, missed: bool) -> Any:
    slots = slots_of(key)
    if slots is not None and missed:
        slots.miss()
    if ticket is None:
        return batch
    if slots is None:
        raise PinningError(
            "the Collate of this batch is gone, or belongs to another process: keep it as long as its loader"
        )
    memory = numpy.asarray(slots.receive(ticket))
    return replaced(batch, lambda place: place.tensor(memory), _Place)

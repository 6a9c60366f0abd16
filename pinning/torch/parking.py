# SPDX-License-Identifier: Apache-2.0
"""Modules that leave the GPU for a while: their data there is copied to locked host memory, and later back."""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, NoReturn, TypeAlias
from weakref import WeakKeyDictionary

import numpy
import torch

from pinning.arena import Arena
from pinning.copies import copy_async, copy_batch_async
from pinning.errors import LockLimitError, PinningError, VendorError
from pinning.queues import Event, Queue
from pinning.queues.links import Links
from pinning.runtime.handles import refuse_copy
from pinning.runtime.process import defer
from pinning.torch.storages import in_host, tensors_of

Holder: TypeAlias = "torch.nn.Module | torch.optim.Optimizer"  # a string: the documentation is built without torch

_ALIGNMENT = 256  # bytes
_ALONE = 1 << 20  # bytes from which a part is copied separately
_UNIT = 64 << 20  # bytes of host memory that are locked at a time, while the next are populated
_AHEAD = 8  # pending copies at a time, so that links are released soon
_parked: WeakKeyDictionary[Holder, Parked] = WeakKeyDictionary()


class Memory(NamedTuple):
    """Memory of a GPU that can be freed, and allocated again."""

    device: str
    set_awake: Callable[[bool], object]
    parts: Callable[[], Sequence[tuple[int, int]]]  # addresses and sizes of what is kept: always as many, as large


class _Part(NamedTuple):
    ptr: int
    nbytes: int
    offset: int  # in the host memory
    device: str


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
        self._host: Arena | None = None
        self._away: Sequence[Memory] = ()
        self.nbytes: int = 0

    @property
    def parked(self) -> bool:
        return bool(self._away)

    def park(self, memory: Sequence[Memory], links: Links) -> None:
        """Copy what is kept of memory to the host, and free it; after an error nothing has changed."""
        parts, size = placed(memory)
        if parts:
            self.prepare(size, parts[0].device)
        _synchronize(memory)
        self._copy(parts, links, back=False)
        self._away, self.nbytes = memory, sum(part.nbytes for part in parts)
        try:
            for each in memory:
                each.set_awake(False)
        except BaseException:
            deque(self.waking(links), maxlen=0)
            raise
        torch.cuda.empty_cache()

    def waking(self, links: Links, order: Iterable[Any] = ()) -> Iterator[None]:
        """Copy all back, first what each of `order` has, with a step after each. After an error all is still parked."""
        try:
            for memory in self._away:
                memory.set_awake(True)
            _synchronize(self._away)  # memory from torch may be in use until then
            parts = sorted(placed(self._away)[0])
            starts, left = [part.ptr for part in parts], dict.fromkeys(parts)
            for holder in order:
                places = {bisect(starts, each.untyped_storage().data_ptr()) for each in tensors_of(holder)}
                held = [part for at in sorted(places) if at and (part := parts[at - 1]) in left]
                self._copy(held, links, back=True)
                for part in held:
                    del left[part]
                yield
            self._copy(list(left), links, back=True)
        except BaseException:
            for memory in self._away:
                memory.set_awake(False)
            raise
        self._away = ()

    def prepare(self, nbytes: int, device: str, limit: int = 0) -> None:
        """Have as many bytes in the host, which are locked in the background; they can grow to `limit`."""
        host = self._host
        try:
            if host is None or host.maximum < nbytes:
                self.release()  # before other memory is allocated
                self._host = Arena(nbytes, device, unit=_UNIT, grow=max(nbytes, limit))
            elif host.nbytes < nbytes:
                host.grow(nbytes - host.nbytes)
        except (LockLimitError, VendorError):  # copies are staged
            self.release()
            self._host = Arena(nbytes, ())

    def release(self) -> None:
        """Free the memory in the host."""
        host, self._host = self._host, None
        if host is not None:
            host._close()

    def _copy(self, parts: Sequence[_Part], links: Links, back: bool) -> None:
        host = self._host
        if not parts or host is None:
            return
        with ExitStack() as stack:
            queues: dict[str, Queue] = {}
            small: dict[str, list[tuple[int, int, int]]] = {}
            pending: deque[Event] = deque()
            for ptr, nbytes, offset, device in parts:
                if device not in queues:
                    queues[device] = stack.enter_context(Queue(device, links=links))
                ends = ptr, host.ptr + offset  # where it is not locked yet, the copy is staged
                dst, src = ends if back else ends[::-1]
                if nbytes < _ALONE:
                    small.setdefault(device, []).append((dst, src, nbytes))
                    continue
                pending.append(copy_async(dst, src, nbytes, queue=queues[device]))
                if len(pending) > _AHEAD:
                    pending.popleft().wait()
            for device, items in small.items():
                dsts, srcs, sizes = (numpy.array(column, numpy.uint64) for column in zip(*items, strict=True))
                pending.append(copy_batch_async(dsts, srcs, sizes, queue=queues[device]))
            for event in pending:
                event.wait()

    def __del__(self) -> None:
        if self._host is not None:
            defer(self._host._close)  # not here: the garbage collector may run this at any point

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


def placed(memory: Sequence[Memory]) -> tuple[list[_Part], int]:
    """What is kept, each part with its place in the host; and the bytes needed there."""
    parts, end = [], 0
    for each in memory:
        for ptr, nbytes in each.parts():
            parts.append(_Part(ptr, nbytes, end, each.device))
            end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return parts, end


def _synchronize(memory: Sequence[Memory]) -> None:
    for name in {each.device for each in memory if each.device.startswith("cuda:")}:
        torch.cuda.synchronize(name)

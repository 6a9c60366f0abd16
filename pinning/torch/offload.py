# SPDX-License-Identifier: Apache-2.0
"""A module larger than the GPU: its weights stay in the host, locked, and stream through the GPU as they are used."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.hooks import RemovableHandle

from pinning.copies import Copy, copy_async
from pinning.errors import ArgumentError
from pinning.machine.populate import ask_for_huge_pages
from pinning.queues import Queue
from pinning.runtime.arguments import byte_count
from pinning.torch.move import queue_of_current_stream, to
from pinning.torch.pins import Pin, pin

_ALIGNMENT = 256  # bytes, as torch's allocator gives
_STREAMING = 3  # units that have room besides those that stay: one in use, the next, and one in transit


class _Unit:
    """A part of a model that is loaded and dropped as one: its weights, gathered in the host and on the device."""

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        self.module = module
        self.parameters = [each for each in module.parameters() if each.device.type == "cpu"]
        offsets, end = [], 0
        for each in self.parameters:
            offsets.append(end)
            end += -(-each.numel() * each.element_size() // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = end
        self.host = torch.empty(end, dtype=torch.uint8)
        if end:
            ask_for_huge_pages(self.host.data_ptr(), end)  # these are locked in half the time
        self.device = torch.empty(end, dtype=torch.uint8, device=device)
        self.homes = []
        for parameter, offset in zip(self.parameters, offsets, strict=True):
            home = _placed(parameter, self.host, offset)
            with torch.no_grad():
                home.copy_(parameter)
            self.homes.append(home)
            parameter.data = _placed(parameter, self.device, offset)
        # Tensors that autograd saves of a weight share this storage, so it is emptied and filled, never replaced.
        self.storage = self.device.untyped_storage()
        self.storage.resize_(0)
        self.loading: Copy | None = None

    @property
    def resident(self) -> bool:
        return bool(self.storage.nbytes() > 0)


class Offload:
    """A module whose weights stream, as returned by `offload`; a context manager, which ends that.

    Attributes
    ----------
    module : torch.nn.Module
    nbytes : int
        Bytes of the weights that stay in the host.
    resident : int
        Bytes of them that may be on the device at a time.
    """

    def __init__(self, module: torch.nn.Module, device: torch.device, resident: int) -> None:
        self.module: torch.nn.Module = module
        self.resident: int = resident
        self._device = device
        parts = list(_parts(module, resident))
        shared = _shared(parts)
        self._queue = Queue(f"cuda:{device.index}")
        self._order = [_Unit(part, device) for part in parts if part not in shared]  # of use, as seen in the last pass
        self._staying = _staying(self._order, resident)
        self._seen: list[_Unit] = []  # of this pass
        self._pin: Pin = pin([unit.host for unit in self._order], device=f"cuda:{device.index}")
        to(module, device)  # the rest: tied weights, what is too large, and buffers
        self._hooks = [hook for unit in self._order for hook in self._hooks_of(unit)]

    @property
    def nbytes(self) -> int:
        return sum(unit.nbytes for unit in self._order)

    def end(self) -> None:
        """Give the module its weights in the host, pageable again. The rest of it stays on the device."""
        while self._hooks:
            self._hooks.pop().remove()
        torch.cuda.current_stream(self._device).synchronize()
        self._queue.synchronize()
        for unit in self._order:
            for parameter, home in zip(unit.parameters, unit.homes, strict=True):
                gradient, parameter.grad = parameter.grad, None
                parameter.data = home
                parameter.grad = None if gradient is None else gradient.cpu()
        self._pin.unpin()
        self._queue.close()

    def __enter__(self) -> torch.nn.Module:
        return self.module

    def __exit__(self, *error: object) -> None:
        self.end()

    def __repr__(self) -> str:
        return f"<Offload of {len(self._order)} layers, {self.nbytes} bytes, {self.resident} of them on {self._device}>"

    # ---- one pass ----

    def _hooks_of(self, unit: _Unit) -> list[RemovableHandle]:
        def forward(*_: object) -> None:
            self._note(unit)
            # After the last layer comes the first of the next pass or, if gradients are enabled, the last again.
            self._use(unit, self._after(unit, wrap=not torch.is_grad_enabled()))

        def backward(*_: object) -> None:
            self._use(unit, self._before(unit))

        def tell_weights(_: object, state: dict[str, torch.Tensor], prefix: str, *__: object) -> None:
            names = (name for name, each in unit.module.named_parameters() if any(each is p for p in unit.parameters))
            for name, home in zip(names, unit.homes, strict=True):
                state[prefix + name] = home

        module = unit.module
        return [
            module.register_forward_pre_hook(forward),
            module.register_full_backward_pre_hook(backward),
            module._register_state_dict_hook(tell_weights),
        ]

    def _note(self, unit: _Unit) -> None:
        """Learn the order of use from a pass in which every layer was used."""
        if unit not in self._seen:
            self._seen.append(unit)
        elif unit is self._seen[0]:
            if len(self._seen) == len(self._order) and self._seen != self._order:
                self._order = self._seen
                self._staying = _staying(self._order, self.resident)
            self._seen = [unit]

    def _after(self, unit: _Unit, wrap: bool) -> list[_Unit]:
        at = self._order.index(unit)
        return self._order[at + 1 :] + (self._order[:at] if wrap else [])

    def _before(self, unit: _Unit) -> list[_Unit]:
        return self._order[: self._order.index(unit)][::-1]

    def _use(self, unit: _Unit, next_units: list[_Unit]) -> None:
        """Make a unit resident for the next work in torch's stream, and start to load the units after it."""
        wanted = [unit, *next_units]
        for position, each in enumerate(wanted):
            if not each.resident and not self._make_room(each, wanted[: position + 1]):
                break
            if not each.resident:
                self._load(each)
        stream = queue_of_current_stream(self._device)
        if unit.loading is not None:
            stream.wait_for(unit.loading)
            unit.loading = None

    def _make_room(self, unit: _Unit, sooner: list[_Unit]) -> bool:
        """Drop units until there is room for one; False if units that are needed sooner take all of it."""
        resident = [each for each in self._order if each.resident]
        total = sum(each.nbytes for each in resident)
        victims = [each for each in resident if each not in sooner and each not in self._staying]
        if total + unit.nbytes - sum(each.nbytes for each in victims) > self.resident and len(sooner) > 1:
            return False
        while victims and total + unit.nbytes > self.resident:
            total -= victims[-1].nbytes
            self._drop(victims.pop())
        return True

    def _load(self, unit: _Unit) -> None:
        # torch's stream may still use the memory that torch allocates here.
        before = queue_of_current_stream(self._device).record()
        unit.storage.resize_(unit.nbytes)
        unit.loading = copy_async(unit.device, unit.host, queue=self._queue, wait_for=(before,))

    def _drop(self, unit: _Unit) -> None:
        # torch reuses the memory in the order of its stream, in which all uses of it have been submitted by now.
        if unit.loading is not None:
            queue_of_current_stream(self._device).wait_for(unit.loading)
            unit.loading = None
        unit.storage.resize_(0)


def offload(module: torch.nn.Module, device: torch.device | str | int = "cuda", *, resident: int) -> Offload:
    """Run a module on a GPU that is too small for it: its weights stay in locked host memory and are loaded before use.

    Layers are loaded in the order of the previous pass, while earlier ones compute, and dropped when others need the
    room. As many stay on the device, evenly spread, as leave room for three of the largest. Forward and backward passes
    work; the weights themselves must not be changed meanwhile, such as by an optimizer.

    Parameters
    ----------
    module : torch.nn.Module
        In the host. Its parameters become tensors on the device, whose memory is allocated and freed as needed.
    device : torch.device or str or int
        A CUDA device.
    resident : int
        Bytes of weights that may be on the device at a time. A unit of loading is at most a quarter of it, so that
        copies and computation overlap, or a layer that cannot be divided. Buffers, tied weights and a divided module's
        own parameters stay on the device in addition.

    Returns
    -------
    Offload

    Raises
    ------
    ArgumentError, InvalidRangeError
        `device` is no GPU, or `resident` is not positive.
    VendorError, LockLimitError, torch.OutOfMemoryError
        A copy, lock or allocation was refused.
    """
    where = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if where.type != "cuda":
        raise ArgumentError(f"device is {where}; it must be a GPU, such as 'cuda' or 'cuda:1'")
    resident = byte_count(resident, "resident", what="the bytes of weights that may be on the GPU at a time")
    if where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    return Offload(module, where, resident)


def _nbytes(module: torch.nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in module.parameters())


def _staying(order: list[_Unit], resident: int) -> set[_Unit]:
    """The units that stay on the device once loaded: as many as leave room for those that stream.

    They are spread over the order of use, so that while they compute, which needs no copies, the next ones are loaded.
    """
    total = sum(unit.nbytes for unit in order)
    if total <= resident:
        return set(order)
    room = resident - _STREAMING * max(unit.nbytes for unit in order)
    staying, due = set(), 0
    for unit in order:
        due += max(room, 0) * unit.nbytes  # of each unit's bytes, the share `room / total` is to stay
        if due >= total * unit.nbytes > 0:
            due -= total * unit.nbytes
            staying.add(unit)
    return staying


# These call their parts one by one; torch's other modules access the parameters of their parts directly.
_CONTAINERS = (torch.nn.Sequential, torch.nn.Transformer, torch.nn.TransformerEncoder, torch.nn.TransformerDecoder)
_NEVER_CALLED = (torch.nn.ModuleList, torch.nn.ModuleDict)


def _parts(module: torch.nn.Module, resident: int) -> Iterator[torch.nn.Module]:
    """Modules that are small enough to overlap, or that cannot be divided, in the order of registration."""
    size = _nbytes(module)
    never_called = isinstance(module, _NEVER_CALLED)
    whole = type(module).__module__.startswith("torch.nn.") and not isinstance(module, _CONTAINERS)
    if 0 < size <= (resident if whole else resident // 4) and not never_called:
        yield module
    elif size and (never_called or not whole):
        for child in module.children():
            yield from _parts(child, resident)


def _shared(parts: list[torch.nn.Module]) -> set[torch.nn.Module]:
    """The parts that have a parameter in common with another."""
    users: dict[int, list[torch.nn.Module]] = {}
    for part in parts:
        for parameter in part.parameters():
            users.setdefault(id(parameter), []).append(part)
    return {part for those in users.values() if len(those) > 1 for part in those}


def _placed(parameter: torch.Tensor, data: torch.Tensor, offset: int) -> torch.Tensor:
    """A tensor like the parameter, in `data` at an offset in bytes."""
    end = offset + parameter.numel() * parameter.element_size()
    return data[offset:end].view(parameter.dtype).view(parameter.shape)

# SPDX-License-Identifier: Apache-2.0
"""Moves of modules and collections of tensors to a device, everything in one batch."""

from __future__ import annotations

from typing import TypeVar

import torch

from pinning.copies import copy_batch_async
from pinning.errors import ArgumentError
from pinning.queues import Event, Queue, default_queue
from pinning.torch.storages import in_host, replaced

_T = TypeVar("_T")
_LEGACY_STREAM = 1  # CU_STREAM_LEGACY, which torch reports as 0


def to(holder: _T, device: torch.device | str | int = "cuda") -> _T:
    """Move host tensors to a GPU in one batch: pageable memory is staged by threads, locked memory copied directly.

    Later work in torch's current stream is ordered after the copies. The call itself does not wait for them, so the
    source tensors must not be modified meanwhile.

    Parameters
    ----------
    holder : module, tensor, or mapping, list or tuple of tensors and others
        Tied and shared tensors stay so.
    device : torch.device or str or int
        A CUDA device.

    Returns
    -------
    the module itself, with its parameters, gradients and buffers on the device, or the same structure with new tensors

    Raises
    ------
    ValueError
        `device` is no GPU.
    InvalidRangeError, VendorError, torch.OutOfMemoryError
        A copy or an allocation failed. Then nothing has changed.
    """
    move = _Move(device)
    if isinstance(holder, torch.nn.Module):
        return move.module(holder)  # type: ignore[no-any-return]
    made = replaced(holder, move.tensor)
    move.submit()
    return made  # type: ignore[no-any-return]


def queue_of_current_stream(device: torch.device) -> Queue:
    """torch's current stream as a queue, for events; made anew, because the stream may be gone the next time."""
    return Queue.adopt(torch.cuda.current_stream(device).cuda_stream or _LEGACY_STREAM, f"cuda:{device.index}")


class _Move:
    """Tensors that are moved to one device together."""

    def __init__(self, device: torch.device | str | int) -> None:
        self._device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if self._device.type != "cuda":
            raise ArgumentError(f"device is {self._device}; it must be a GPU, such as 'cuda' or 'cuda:1'")
        if self._device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._made: dict[object, torch.Tensor] = {}
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """The copy of a tensor on the device; the same one for tensors over the same memory."""
        if not in_host(tensor) or tensor.layout is not torch.strided:
            return tensor.to(self._device, non_blocking=True)
        key = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad, tensor.numel()
        if key in self._made and tensor.numel():
            return self._made[key]
        source = tensor.detach()
        if torch.empty_like(source, device="meta").stride() != source.stride():  # it has gaps, or overlaps itself
            source = source.contiguous()
        target = torch.empty_like(source, device=self._device)
        if source.numel():
            self._pairs.append((_bytes(target), _bytes(source)))
        self._made[key] = made = target.requires_grad_(tensor.requires_grad)
        return made

    def module(self, module: torch.nn.Module) -> torch.nn.Module:
        """As ``module.to``: the same parameters with other data, and new buffers."""
        buffers = [
            (each._buffers, name, self.tensor(buffer))
            for each in module.modules()
            for name, buffer in each._buffers.items()
            if buffer is not None and in_host(buffer)
        ]
        parameters = [(each, self.tensor(each.detach())) for each in module.parameters() if in_host(each)]
        gradients = [
            (each, self.tensor(each.grad))
            for each in module.parameters()
            if each.grad is not None and in_host(each.grad)
        ]
        self.submit()
        for of, name, made in buffers:
            of[name] = made
        for parameter, _ in gradients:
            parameter.grad = None
        for parameter, made in parameters:
            parameter.data = made
        for parameter, made in gradients:
            parameter.grad = made
        return module

    def submit(self) -> None:
        """Copy after pending work of torch's stream, which may still use the memory; later work there waits."""
        if not self._pairs:
            return
        stream = queue_of_current_stream(self._device)
        before: Event = stream.record()
        copy = copy_batch_async(
            [target for target, _ in self._pairs],
            [source for _, source in self._pairs],
            queue=default_queue(f"cuda:{self._device.index}"),
            wait_for=(before,),
        )
        stream.wait_for(copy)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor's bytes, in memory order."""
    return torch.as_strided(tensor.detach(), (tensor.numel(),), (1,), tensor.storage_offset()).view(torch.uint8)

# SPDX-License-Identifier: Apache-2.0
"""Locked host memory for new tensors, of exactly their size."""

from __future__ import annotations

from typing import TypeVar

import torch

from pinning.arrays import pinned_array
from pinning.locking.lock import find
from pinning.plugin import Device
from pinning.torch.storages import in_host, replaced

_T = TypeVar("_T")


def pin_memory(tensors: _T, *, device: Device | str | None = None) -> _T:
    """Copies of tensors in locked memory of exactly their size, from this package's pools.

    torch's ``pin_memory()`` rounds up to the next power of two and caches the memory. Like it, this function returns
    pinned tensors as they are.

    Parameters
    ----------
    tensors : tensor, or mapping, list or tuple of tensors and others
    device : Device or str, optional
        The device for which it is locked; by default the default device.

    Returns
    -------
    the same structure
        Anything but tensors of the host is returned as it is.

    Raises
    ------
    TypeError
        A tensor is sparse.
    VendorError
        The vendor is out of such memory.
    """
    return replaced(tensors, lambda tensor: _copy(tensor, device))  # type: ignore[no-any-return]


def _copy(tensor: torch.Tensor, device: Device | str | None) -> torch.Tensor:
    if not in_host(tensor) or tensor.numel() == 0 or _is_pinned(tensor, device):
        return tensor
    if tensor.layout is not torch.strided:
        raise TypeError(f"a tensor of layout {tensor.layout} cannot be pinned: pin the tensors in it")
    # Without memory, with the strides that a copy would have.
    plan = torch.empty_like(tensor, device="meta")
    data = torch.from_numpy(pinned_array(plan.untyped_storage().nbytes(), "u1", device=device))
    tensor_in_place = torch.empty(0, dtype=tensor.dtype).set_(data.untyped_storage(), 0, plan.size(), plan.stride())
    with torch.no_grad():
        tensor_in_place.copy_(tensor)
    return tensor_in_place.requires_grad_(tensor.requires_grad)


def _is_pinned(tensor: torch.Tensor, device: Device | str | None) -> bool:
    if torch.cuda.is_available() and tensor.is_pinned():
        return True
    return tensor.is_contiguous() and find(tensor.detach(), device=device) is not None

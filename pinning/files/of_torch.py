# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch over memory of its own allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinning.errors import ArgumentError, FileFormatError
from pinning.files.header import TensorInfo
from pinning.interop.dtypes import DTYPES
from pinning.plugin import Device

if TYPE_CHECKING:
    from torch import Tensor as Tensor

_NAMES = {"host": "cpu", "cuda": "cuda", "hip": "cuda"}  # of torch's devices, by plugin


class Torch:
    """`torch.Tensor`; those of one file share a storage."""

    def __init__(self, device: Device) -> None:
        try:
            import torch
        except ImportError as error:
            raise ImportError(
                f"framework='torch' needs PyTorch ({error}); give 'pinning' for arrays of this package, or 'dlpack'"
            ) from error
        if device.vendor not in _NAMES:
            raise ArgumentError(f"PyTorch has no tensors on {device.name}; give framework='pinning' or 'dlpack'")
        if device.vendor != "host" and not torch.cuda.is_available():
            raise ArgumentError(
                f"this PyTorch, {torch.__version__}, has no tensors on {device.name}: it sees no GPU; give "
                "framework='pinning' or 'dlpack', or device='host'"
            )
        self._torch: Any = torch
        self._device = torch.device(_NAMES[device.vendor], None if device.vendor == "host" else device.index)

    def check(self, tensor: TensorInfo) -> None:
        self._dtype(tensor)
        if tensor.dtype == "F4" and tensor.shape[-1] % 2:
            raise FileFormatError(
                f"the tensor {tensor.name!r} is of dtype F4 and shape {tensor.shape}; PyTorch has pairs of these: the "
                "last length must be even: give framework='dlpack'"
            )

    def allocate(self, nbytes: int) -> Any:
        memory = self._torch.empty(nbytes, dtype=self._torch.uint8, device=self._device)
        if self._device.type == "cuda":
            stream = self._torch.cuda.current_stream(self._device)
            if not stream.query():  # its allocator may have returned memory that work there still uses
                stream.synchronize()
        return memory

    def address(self, memory: Any) -> int:
        return int(memory.data_ptr())

    def view(self, memory: Any, at: int, tensor: TensorInfo) -> Any:
        return memory[at : at + tensor.nbytes].view(self._dtype(tensor)).view(_shape(tensor))

    def empty(self, tensor: TensorInfo) -> Any:
        return self._torch.empty(_shape(tensor), dtype=self._dtype(tensor), device=self._device)

    def _dtype(self, tensor: TensorInfo) -> Any:
        dtype = getattr(self._torch, DTYPES[tensor.dtype].torch or "", None)
        if dtype is None:
            raise FileFormatError(
                f"the tensor {tensor.name!r} is of dtype {tensor.dtype}, which PyTorch "
                f"{self._torch.__version__} has not: give framework='dlpack' for tensors of any dtype"
            )
        return dtype


def _shape(tensor: TensorInfo) -> tuple[int, ...]:
    return tensor.shape if tensor.dtype != "F4" else (*tensor.shape[:-1], tensor.shape[-1] // 2)

# SPDX-License-Identifier: Apache-2.0
"""Arrays of CuPy over memory of its own allocator."""

from __future__ import annotations

from typing import Any

from pinning.errors import ArgumentError
from pinning.files.header import TensorInfo, numpy_dtype_of
from pinning.plugin import Device


class Cupy:
    """`cupy.ndarray`, of NumPy's dtypes."""

    def __init__(self, device: Device) -> None:
        if device.vendor not in ("cuda", "hip"):
            raise ArgumentError(f"CuPy has no arrays on {device.name}; give device='cuda', or another framework")
        try:
            import cupy
        except ImportError as error:
            raise ImportError(
                f"framework='cupy' needs CuPy ({error}); give 'pinning' for arrays of this package, or 'dlpack'"
            ) from error
        self._cupy: Any = cupy
        self._device = cupy.cuda.Device(device.index)

    def check(self, tensor: TensorInfo) -> None:
        numpy_dtype_of(tensor, "CuPy")

    def allocate(self, nbytes: int) -> Any:
        with self._device:
            memory = self._cupy.empty(nbytes, self._cupy.uint8)
            self._cupy.cuda.get_current_stream().synchronize()  # its pool may have returned memory that is still in use
        return memory

    def address(self, memory: Any) -> int:
        return int(memory.data.ptr)

    def view(self, memory: Any, at: int, tensor: TensorInfo) -> Any:
        with self._device:
            return memory[at : at + tensor.nbytes].view(numpy_dtype_of(tensor)).reshape(tensor.shape)

    def empty(self, tensor: TensorInfo) -> Any:
        with self._device:
            return self._cupy.empty(tensor.shape, numpy_dtype_of(tensor))

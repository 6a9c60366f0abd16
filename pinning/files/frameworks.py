# SPDX-License-Identifier: Apache-2.0
"""The libraries whose arrays a file is loaded into: how each allocates memory and makes views of it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Protocol

import numpy

from pinning.arrays.array import DeviceArray
from pinning.arrays.create import device_array
from pinning.arrays.exchange import dlpack_device
from pinning.errors import ArgumentError
from pinning.files.header import TensorInfo, numpy_dtype_of
from pinning.files.of_cupy import Cupy
from pinning.files.of_torch import Torch
from pinning.interop.dlpack import make_capsule
from pinning.interop.dtypes import DTYPES
from pinning.plugin import MemoryDevice
from pinning.runtime.arguments import describe


class Framework(Protocol):
    """Makes arrays of one library on one device."""

    def check(self, tensor: TensorInfo) -> None:
        """Refuse a tensor of a dtype that the library does not have."""

    def allocate(self, nbytes: int) -> Any:
        """Memory of at least 1 byte that can be used at once, as an array of bytes, aligned to 16."""

    def address(self, memory: Any) -> int:
        """The address of its first byte: the host address of host memory, otherwise the device address."""

    def view(self, memory: Any, at: int, tensor: TensorInfo) -> Any:
        """A tensor that begins at byte `at` of the memory, which it keeps alive."""

    def empty(self, tensor: TensorInfo) -> Any:
        """A tensor without elements."""


class Pinning:
    """`DeviceArray`, of NumPy's dtypes."""

    def __init__(self, device: MemoryDevice) -> None:
        self._device = device

    def check(self, tensor: TensorInfo) -> None:
        numpy_dtype_of(tensor)

    def allocate(self, nbytes: int) -> DeviceArray:
        return device_array(nbytes, numpy.uint8, device=self._device)

    def address(self, memory: DeviceArray) -> int:
        return memory.device_ptr

    def view(self, memory: DeviceArray, at: int, tensor: TensorInfo) -> Any:
        part: DeviceArray = memory[at : at + tensor.nbytes]
        return part.view(numpy_dtype_of(tensor)).reshape(tensor.shape)

    def empty(self, tensor: TensorInfo) -> Any:
        return device_array(tensor.shape, numpy_dtype_of(tensor), device=self._device)


class DLPackTensor:
    """A tensor of any of the format's dtypes, for any library that takes DLPack.

    Attributes
    ----------
    dtype : str
        As the file names it, such as ``"BF16"``.
    shape : tuple of int
    nbytes : int
    """

    def __init__(self, bytes_of_it: DeviceArray, tensor: TensorInfo) -> None:
        self._bytes = bytes_of_it
        self.dtype: str = tensor.dtype
        self.shape: tuple[int, ...] = tensor.shape
        self.nbytes: int = tensor.nbytes

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack_device(self._bytes)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        # Its bytes were complete when it was made, so no stream need wait.
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("this tensor is exported where it is, without a copy")
        strides, step = [0] * len(self.shape), 1
        for i in reversed(range(len(self.shape))):
            strides[i], step = step, step * self.shape[i]
        dtype, ptr = DTYPES[self.dtype], self._bytes.device_ptr if self.nbytes else 0
        return make_capsule(
            self, ptr, self.__dlpack_device__(), dtype.dlpack, dtype.bits, self.shape, tuple(strides),
            max_version is not None and max_version[0] >= 1, False, False,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<DLPackTensor of {self.dtype}, shape {self.shape}, on {self._bytes.device.name}>"


class DLPack(Pinning):
    """`DLPackTensor`, of all dtypes."""

    def check(self, tensor: TensorInfo) -> None:
        pass

    def view(self, memory: DeviceArray, at: int, tensor: TensorInfo) -> Any:
        return DLPackTensor(memory[at : at + tensor.nbytes], tensor)

    def empty(self, tensor: TensorInfo) -> Any:
        return DLPackTensor(device_array(0, numpy.uint8, device=self._device), tensor)


class Numpy:
    """`numpy.ndarray`, in memory of the host."""

    def __init__(self, device: MemoryDevice) -> None:
        if device.vendor != "host":
            raise ArgumentError(f"NumPy has no arrays on {device.name}; give device='host', or another framework")

    def check(self, tensor: TensorInfo) -> None:
        numpy_dtype_of(tensor)

    def allocate(self, nbytes: int) -> Any:
        memory = numpy.empty(nbytes + 15, numpy.uint8)
        skip = -memory.ctypes.data % 16
        return memory[skip : skip + nbytes]

    def address(self, memory: Any) -> int:
        return int(memory.ctypes.data)

    def view(self, memory: Any, at: int, tensor: TensorInfo) -> Any:
        return memory[at : at + tensor.nbytes].view(numpy_dtype_of(tensor)).reshape(tensor.shape)

    def empty(self, tensor: TensorInfo) -> Any:
        return numpy.empty(tensor.shape, numpy_dtype_of(tensor))


_FRAMEWORKS: dict[str, Callable[[MemoryDevice], Framework]] = {
    "torch": Torch,
    "cupy": Cupy,
    "pinning": Pinning,
    "dlpack": DLPack,
    "numpy": Numpy,
}


def framework_of(name: str | None, device: MemoryDevice) -> Framework:
    """The framework of this name; None: torch if it is installed, otherwise pinning. Raises as `load_file`.

    ArgumentError: there is no framework of this name, or it has no arrays on this device.
    """
    if name is None:
        name = "torch" if find_spec("torch") is not None else "pinning"
    if name not in _FRAMEWORKS:
        raise ArgumentError(f"framework is {describe(name)}; it must be one of {', '.join(map(repr, _FRAMEWORKS))}")
    return _FRAMEWORKS[name](device)

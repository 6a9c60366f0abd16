# SPDX-License-Identifier: Apache-2.0
"""Tensors that describe themselves by DLPack: by its C exchange API, as torch's do, or in Python."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy

from pinning.interop.dlpack import make_capsule


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


GIVE = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))


class ExchangeAPI(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        ("from_object", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("dltensor_from_object", GIVE),
        ("current_stream", ctypes.c_void_p),
    )


def _give(tensor: Tensor, out: Any) -> int:
    answer = out.contents
    answer.data, answer.byte_offset = tensor.ptr - 8, 8
    answer.device_type, answer.device_id = tensor.device
    answer.ndim, answer.code, answer.bits, answer.lanes = tensor.array.ndim, 2, tensor.array.itemsize * 8, 1
    if tensor.odd:
        answer.bits = 4
    answer.shape, answer.strides = tensor.shape, tensor.strides
    return 0


API = ExchangeAPI(major=1, minor=3, dltensor_from_object=GIVE(_give))
NAME = b"dlpack_exchange_api"  # a capsule keeps only the address of its name
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class Tensor:
    """Like torch's: describes itself by the C API, and has no DLPack methods in Python."""

    __dlpack_c_exchange_api__ = _new(ctypes.addressof(API), NAME, None)

    def __init__(self, array: numpy.ndarray[Any, Any], device: tuple[int, int] = (1, 0), odd: bool = False) -> None:
        self.array, self.device, self.odd, self.ptr = array, device, odd, array.ctypes.data
        steps = [step // array.itemsize for step in array.strides]
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = None if array.flags.c_contiguous else (ctypes.c_int64 * array.ndim)(*steps)


class Older(Tensor):
    """Has a major version that is not known here, and also offers the known one."""

    _api = ExchangeAPI(major=2, minor=0, previous=ctypes.addressof(API))
    __dlpack_c_exchange_api__ = _new(ctypes.addressof(_api), NAME, None)


class ByCapsule:
    """An array in a device's memory that describes itself in Python only."""

    def __init__(self, array: numpy.ndarray[Any, Any], ptr: int, device: tuple[int, int] = (14, 0)) -> None:
        """Make an array like `array`, at `ptr`."""
        self._ptr, self._device, self._itemsize = ptr, device, array.itemsize
        self._shape, self._steps = array.shape, tuple(step // array.itemsize for step in array.strides)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> object:
        assert stream == (None if self._device[0] == 14 else -1)
        return make_capsule(
            self, self._ptr, self._device, 2, 8 * self._itemsize, self._shape, self._steps,
            max_version is not None, False, False,
        )  # fmt: skip


class ByMethods(ByCapsule):
    """A tensor like PyTorch's that needs a gradient, and so gives no capsule."""

    device = SimpleNamespace(type="xpu", index=0)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def data_ptr(self) -> int:
        return self._ptr

    def stride(self) -> tuple[int, ...]:
        return self._steps

    def element_size(self) -> int:
        return self._itemsize

    def __dlpack__(self, **options: Any) -> object:
        raise BufferError("it needs a gradient")

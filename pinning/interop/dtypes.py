# SPDX-License-Identifier: Apache-2.0
"""Names of element types and device types in DLPack, NumPy, safetensors and PyTorch."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, NamedTuple

import numpy
from numpy.typing import DTypeLike

from pinning.errors import PinningError
from pinning.plugin import MemoryKind
from pinning.runtime.arguments import describe


class Dtype(NamedTuple):
    """An element type; `numpy` and `torch` are None if that library lacks it."""

    bits: int
    numpy: str | None
    torch: str | None
    dlpack: int  # the type code of dlpack.h


#: By safetensors' names. A file holds the tensors of later entries first.
DTYPES = {
    "BOOL": Dtype(8, "?", "bool", 6),
    "F4": Dtype(4, None, "float4_e2m1fn_x2", 17),  # torch's element is a pair: the last length of a shape is halved
    "F6_E2M3": Dtype(6, None, None, 15),
    "F6_E3M2": Dtype(6, None, None, 16),
    "U8": Dtype(8, "u1", "uint8", 1),
    "I8": Dtype(8, "i1", "int8", 0),
    "F8_E5M2": Dtype(8, None, "float8_e5m2", 12),
    "F8_E4M3": Dtype(8, None, "float8_e4m3fn", 10),
    "F8_E8M0": Dtype(8, None, "float8_e8m0fnu", 14),
    "F8_E4M3FNUZ": Dtype(8, None, "float8_e4m3fnuz", 11),
    "F8_E5M2FNUZ": Dtype(8, None, "float8_e5m2fnuz", 13),
    "I16": Dtype(16, "<i2", "int16", 0),
    "U16": Dtype(16, "<u2", "uint16", 1),
    "F16": Dtype(16, "<f2", "float16", 2),
    "BF16": Dtype(16, None, "bfloat16", 4),
    "I32": Dtype(32, "<i4", "int32", 0),
    "U32": Dtype(32, "<u4", "uint32", 1),
    "F32": Dtype(32, "<f4", "float32", 2),
    "C64": Dtype(64, "<c8", "complex64", 5),
    "F64": Dtype(64, "<f8", "float64", 2),
    "I64": Dtype(64, "<i8", "int64", 0),
    "U64": Dtype(64, "<u8", "uint64", 1),
}
NAMES_OF_NUMPY = {numpy.dtype(dtype.numpy): name for name, dtype in DTYPES.items() if dtype.numpy}
NAMES_OF_TORCH = {f"torch.{dtype.torch}": name for name, dtype in DTYPES.items() if dtype.torch}
_CODES = {numpy.dtype(dtype.numpy).kind: dtype.dlpack for dtype in DTYPES.values() if dtype.numpy}
_KINDS = {code: kind for kind, code in _CODES.items()}

#: DLPack's device types of each vendor's memory.
DEVICE_TYPES = {
    "host": {MemoryKind.DEVICE: 1, MemoryKind.HOST: 1, MemoryKind.SHARED: 1},
    "cuda": {MemoryKind.DEVICE: 2, MemoryKind.HOST: 3, MemoryKind.SHARED: 13},
    "hsa": {MemoryKind.DEVICE: 10, MemoryKind.HOST: 11, MemoryKind.SHARED: 10},
    "hip": {MemoryKind.DEVICE: 10, MemoryKind.HOST: 11, MemoryKind.SHARED: 10},
    "ur": {MemoryKind.DEVICE: 14, MemoryKind.HOST: 14, MemoryKind.SHARED: 14},
}
#: The vendor of a device type; the later one if two have the same type.
VENDORS = {number: vendor for vendor, types in DEVICE_TYPES.items() for number in types.values()}
#: Host memory: pageable, or pinned by CUDA or ROCm.
HOST_TYPES = (1, 3, 11)
#: Memory for which a consumer of DLPack passes a stream: that of CUDA's and ROCm's devices.
STREAM_TYPES = (2, 10, 13)


def dlpack_type(dtype: numpy.dtype[Any]) -> tuple[int, int]:
    """DLPack's code and bits of a NumPy dtype. Raises BufferError if there are none."""
    code = _CODES.get(dtype.kind)
    foreign = dtype.byteorder == (">" if sys.byteorder == "little" else "<")
    padded = dtype.char in "gG"  # longdouble
    if code is None or foreign or padded:
        raise BufferError(f"DLPack has no type for dtype {dtype}; take a view of its bytes")
    return code, 8 * dtype.itemsize


def numpy_dtype(code: int, bits: int, lanes: int) -> numpy.dtype[Any]:
    """The NumPy dtype of a DLPack element type. Raises PinningError if there is none."""
    kind = _KINDS.get(code)
    if kind is not None and lanes == 1 and bits % 8 == 0:
        with suppress(TypeError):
            return numpy.dtype(f"{kind}{bits // 8}")
    raise PinningError(f"NumPy has no dtype of DLPack's code {code}, {bits} bits, {lanes} lanes")


def usable_dtype(dtype: DTypeLike) -> numpy.dtype[Any]:
    """A dtype whose elements can be copied as bytes. Raises TypeError for others."""
    try:
        checked = numpy.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(f"dtype is {describe(dtype)}; it must be a NumPy dtype, such as 'float32': {error}") from None
    if checked.hasobject:
        raise TypeError(f"dtype {checked} holds Python objects, which no device can use; convert the array first")
    if not checked.itemsize:
        raise TypeError(f"elements of dtype {checked} have no bytes; say how many, as in 'S8'")
    return checked

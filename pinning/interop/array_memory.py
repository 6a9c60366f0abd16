# SPDX-License-Identifier: Apache-2.0
"""The memory of other libraries' arrays, with shape and dtype; and DLPack's capsules."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import numpy

from pinning.errors import InvalidRangeError, PinningError
from pinning.interop.dlpack import Tensor, take_capsule
from pinning.interop.dtypes import HOST_TYPES, STREAM_TYPES, VENDORS, numpy_dtype

NO_ACCESS = (TypeError, ValueError, BufferError, RuntimeError)  # what exporters raise
MALFORMED = (AttributeError, LookupError, OverflowError, TypeError, ValueError)  # what a bad interface raises
_NO_STREAM = -1  # in DLPack: the consumer itself ensures the order


class ArrayMemory(NamedTuple):
    """An array in memory of the host or a device; the memory stays as long as `owner` is referenced."""

    ptr: int  # of the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in bytes; None in C order
    dtype: numpy.dtype[Any]
    read_only: bool
    owner: object
    device: tuple[int, int] | None  # DLPack's type and index; None if only the address can tell whose memory it is
    stream: int | None  # on which work may be in progress


def array_memory(array: Any) -> ArrayMemory:
    """The memory of another library's array, by ``__cuda_array_interface__`` or DLPack.

    Raises TypeError if it has neither, InvalidRangeError for address 0, PinningError for a mask, a dtype that NumPy
    lacks, or a device that belongs to no plugin.
    """
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        if not (hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__")):
            raise TypeError(
                f"{type(array).__name__} is not a device array: it has neither __cuda_array_interface__ nor "
                "__dlpack__; copy it with to_device"
            )
        device = dlpack_device(array)
        tensor = open_dlpack(array, device[0])
        dtype = numpy_dtype(tensor.code, tensor.bits, tensor.lanes)
        _refuse_null(array, tensor.ptr, tensor.shape)
        strides = None if tensor.strides is None else tuple(step * dtype.itemsize for step in tensor.strides)
        return ArrayMemory(tensor.ptr, tensor.shape, strides, dtype, bool(tensor.read_only), tensor.owner, device, None)
    try:
        return _by_interface(array, interface)
    except MALFORMED as error:
        raise malformed(array, error)  # noqa: B904  it has its cause


def _by_interface(array: Any, interface: Any) -> ArrayMemory:
    if interface.get("mask") is not None:
        raise PinningError(
            f"this {type(array).__name__} has a mask, which a DeviceArray does not support: apply it first"
        )
    ptr, read_only = interface["data"]
    dtype, shape = numpy.dtype(interface["typestr"]), _integers(interface["shape"])
    strides, stream = interface.get("strides"), interface.get("stream")
    if strides is not None:
        strides = _integers(strides)
    if min(shape, default=0) < 0 or (strides is not None and len(strides) != len(shape)):
        raise ValueError(f"shape {shape} and strides {strides}")
    if prod(shape) * dtype.itemsize > sys.maxsize:
        raise OverflowError(f"shape {shape} of {dtype}")
    if stream is not None and not 0 <= operator.index(stream) < 1 << 64:
        raise ValueError(f"stream {stream}")
    if dtype.kind == "V" and interface.get("descr"):
        dtype = numpy.dtype([tuple(field) for field in interface["descr"]])
    _refuse_null(array, ptr, shape)
    return ArrayMemory(ptr or 0, shape, strides, dtype, bool(read_only), array, None, stream)


def _refuse_null(array: Any, ptr: int | None, shape: tuple[int, ...]) -> None:
    if not ptr and 0 not in shape:
        raise InvalidRangeError(f"this {type(array).__name__} of shape {shape} reports that its memory is at address 0")


def malformed(array: object, error: Exception) -> Exception:
    """The error to raise for one in reading an array's ``__cuda_array_interface__``."""
    if isinstance(error, PinningError):
        return error
    refused = no_access(array, f"its __cuda_array_interface__ is malformed, {type(error).__name__}: {error}")
    refused.__cause__ = error
    return refused


def no_access(buffer: object, why: object) -> InvalidRangeError:
    return InvalidRangeError(f"this {type(buffer).__name__} gives no access to its memory: {why}")


def dlpack_device(array: Any) -> tuple[int, int]:
    try:
        kind, index = array.__dlpack_device__()
    except NO_ACCESS as error:
        raise no_access(array, error) from error
    return int(kind), int(index)


def open_dlpack(array: Any, kind: int) -> Tensor:
    if kind not in VENDORS:
        raise PinningError(f"DLPack's device type {kind} belongs to no plugin; those known are {sorted(VENDORS)}")
    options = {"stream": _NO_STREAM} if kind in STREAM_TYPES else {}
    try:
        capsule = array.__dlpack__(max_version=(1, 1), **options)
    except TypeError:  # older than the protocol's versions
        capsule = array.__dlpack__(**options)
    tensor = take_capsule(capsule)
    if kind in HOST_TYPES and tensor.device not in HOST_TYPES:
        raise InvalidRangeError(
            f"this {type(array).__name__} says that its DLPack device type is {kind}, and its capsule that it is "
            f"{tensor.device}"
        )
    return tensor


def _integers(numbers: Iterable[Any]) -> tuple[int, ...]:
    return tuple(operator.index(each) for each in numbers)

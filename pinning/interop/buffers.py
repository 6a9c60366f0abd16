# SPDX-License-Identifier: Apache-2.0
"""What counts as a buffer, and which bytes of host memory it is."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from numbers import Integral
from typing import Any, NamedTuple, NoReturn

from pinning.errors import InvalidRangeError
from pinning.interop.dtypes import HOST_TYPES
from pinning.interop.exports import exported
from pinning.runtime.arguments import integer

_ACCEPTED = (
    "an object with the buffer protocol (bytes, bytearray, memoryview, mmap, NumPy array, ...), a SharedMemory, an "
    "object with __array_interface__, data_ptr() or DLPack on the CPU, a pair (address, size), or an address and size="
)
_TOP = 1 << 64
_SIZE = "the number of bytes. A device is named by device=, and several buffers are for pinning.locked"
# These export the few bytes that hold the address, which nobody wants to lock.
_POINTERS = (ctypes._Pointer, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_wchar_p)


class HostBuffer(NamedTuple):
    """A range of host memory.

    Attributes
    ----------
    ptr : int
        Address of the lowest byte.
    size : int
        Bytes, at least 1.
    read_only : bool or None
        Whether the object forbids writing; None when it does not say.
    owner : object
        As long as this is referenced the object stays alive, and one with the buffer protocol can be neither resized
        nor closed. None for an ``(address, size)`` pair, whose memory the caller keeps.
    contiguous : bool
        Whether these are the object's bytes and no others, from the first to the last.
    """

    ptr: int
    size: int
    read_only: bool | None
    owner: object
    contiguous: bool = True


def resolve(buffer: object, size: int | None = None) -> HostBuffer:
    """Find the bytes that a buffer occupies.

    A view with gaps (sliced with a step, transposed, of negative strides) is the whole span from its lowest to its
    highest byte, with what lies between.

    Parameters
    ----------
    buffer : object
        Anything with the buffer protocol, read-only or not; a `multiprocessing.shared_memory.SharedMemory`; an object
        with ``__array_interface__``, ``data_ptr()`` (a CPU tensor) or DLPack on the CPU; a pair ``(address, size)`` of
        integers, or an address with `size`.
    size : int, optional
        Take the first `size` bytes, counted from the lowest one. Needed where the object does not know its size.

    Raises
    ------
    InvalidRangeError
        No range of host memory: empty, null, past the top of the address space, closed, released or on a device; or
        `size` is larger than the buffer.
    TypeError
        The object is no buffer.
    """
    if isinstance(buffer, Integral) and size is not None:  # NumPy's too, which otherwise are buffers of a few bytes
        buffer, size = (int(buffer), size), None
    whole = _whole(buffer, size)
    if size is None:
        return whole
    if not 0 < (wanted := integer(size, "size", _SIZE)) <= whole.size:
        raise InvalidRangeError(f"size is {wanted}; it must lie between 1 and the buffer's {whole.size} bytes")
    return whole._replace(size=wanted)


def _whole(buffer: object, size: int | None) -> HostBuffer:
    if isinstance(buffer, _POINTERS):
        raise TypeError(f"{type(buffer).__name__} does not say how much it points to; pass a pair (address, size)")
    try:
        return _exported(buffer)
    except TypeError:
        pass  # No buffer protocol: the others follow.
    if isinstance(buffer, tuple) and len(buffer) == 2:
        return _checked(_address(buffer[0]), integer(buffer[1], "size", _SIZE), None, None)
    if _is_shared_memory(buffer):
        return _of_shared_memory(buffer)
    if hasattr(buffer, "__array_interface__"):
        return _of_array_interface(buffer)
    if callable(getattr(buffer, "data_ptr", None)):
        return _of_data_ptr(buffer, size)
    if hasattr(buffer, "__dlpack_device__"):
        return _of_dlpack(buffer)
    if hasattr(buffer, "__cuda_array_interface__"):
        _refuse_device_memory(buffer, "it has __cuda_array_interface__")
    raise TypeError(f"{type(buffer).__name__} is no buffer; pass {_ACCEPTED}")


def _exported(buffer: object) -> HostBuffer:
    try:
        ptr, size, read_only, owner, contiguous = exported(buffer)
    except (ValueError, BufferError) as error:
        raise _no_access(buffer, error) from error
    return _checked(ptr, size, read_only, owner)._replace(contiguous=contiguous)


def _span(ptr: int, shape: Iterable[int], strides: Iterable[int], itemsize: int) -> tuple[int, int]:
    """Lowest address and size in bytes of what an array touches; no length is 0, strides are in bytes."""
    below, above = 0, itemsize
    for length, stride in zip(shape, strides, strict=True):
        if stride < 0:
            below += (length - 1) * stride
        else:
            above += (length - 1) * stride
    return ptr + below, above - below


def is_contiguous(shape: Iterable[int], strides: Iterable[int], itemsize: int) -> bool:
    """Whether elements follow one another without gaps, in whatever order of dimensions; strides are in bytes."""
    expected = itemsize
    for stride, length in sorted(zip(strides, shape, strict=True)):
        if length != 1:
            if stride != expected:
                return False
            expected *= length
    return True


def _is_shared_memory(buffer: object) -> bool:
    # Who has one has imported the module; nobody else should pay for that.
    module = sys.modules.get("multiprocessing.shared_memory")
    return module is not None and isinstance(buffer, module.SharedMemory)


def _of_shared_memory(memory: Any) -> HostBuffer:
    if memory.buf is None:
        raise InvalidRangeError(f"the SharedMemory {memory.name!r} is closed")
    return _exported(memory.buf)


def _of_array_interface(buffer: object) -> HostBuffer:
    import numpy

    try:
        array = numpy.asarray(buffer)
    except (TypeError, ValueError) as error:
        raise _no_access(buffer, error) from error
    return _exported(array)


def _of_data_ptr(tensor: Any, size: int | None) -> HostBuffer:
    device = getattr(tensor, "device", "cpu")
    kind = getattr(device, "type", device)
    if getattr(tensor, "is_cuda", False) is True or (isinstance(kind, str) and kind.partition(":")[0] != "cpu"):
        _refuse_device_memory(tensor, f"its device is {device}")
    try:
        ptr = _address(tensor.data_ptr())
    except RuntimeError as error:  # What torch raises for a sparse tensor.
        raise _no_access(tensor, error) from error
    if hasattr(tensor, "stride") and hasattr(tensor, "element_size"):
        shape, itemsize = tuple(tensor.shape), tensor.element_size()
        if 0 in shape:
            return _checked(ptr, 0, None, tensor)
        strides = [stride * itemsize for stride in tensor.stride()]
        found = _checked(*_span(ptr, shape, strides, itemsize), None, tensor)
        return found._replace(contiguous=is_contiguous(shape, strides, itemsize))
    bytes_held = getattr(tensor, "nbytes", size)
    if callable(bytes_held):
        bytes_held = bytes_held()
    if bytes_held is None:
        raise InvalidRangeError(f"this {type(tensor).__name__} has no nbytes; pass size=")
    return _checked(ptr, integer(bytes_held, "size"), None, tensor)


def _of_dlpack(buffer: Any) -> HostBuffer:
    import numpy

    device = buffer.__dlpack_device__()[0]
    if device not in HOST_TYPES:
        _refuse_device_memory(buffer, f"its DLPack device type is {int(device)}")
    try:
        array = numpy.from_dlpack(buffer)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise _no_access(buffer, error) from error
    whole = _exported(array)
    # DLPack before 1.0 has no read-only flag, and NumPy then takes the careful side.
    return whole._replace(read_only=None) if whole.read_only else whole


def _checked(ptr: int, size: int, read_only: bool | None, owner: object) -> HostBuffer:
    if size == 0:
        raise InvalidRangeError("the buffer is empty; a lock needs at least 1 byte")
    if ptr == 0:
        raise InvalidRangeError("the buffer's address is null; was its memory freed, or is it not the host's?")
    if size < 0 or ptr < 0 or ptr + size > _TOP:
        raise InvalidRangeError(
            f"address {ptr:#x} with size {size} is no range; both must be positive and end below 2**64"
        )
    return HostBuffer(ptr, size, read_only, owner)


def _address(ptr: Any) -> int:
    return integer(ptr, "address", "that of a first byte")


def _refuse_device_memory(buffer: object, why: str) -> NoReturn:
    raise InvalidRangeError(
        f"this {type(buffer).__name__} is device memory ({why}), which needs no lock; only host memory is locked"
    )


def _no_access(buffer: object, error: Exception) -> InvalidRangeError:
    return InvalidRangeError(f"this {type(buffer).__name__} gives no access to its memory: {error}")

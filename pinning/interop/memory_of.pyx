# SPDX-License-Identifier: Apache-2.0
"""The memory behind an object: by the buffer protocol, DLPack, the array interfaces, or the methods of a tensor."""

cimport cython
from cpython.buffer cimport PyBUF_STRIDED_RO, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.object cimport PyObject
from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.stdint cimport int64_t

from pinning.interop.dlpack cimport DLTensor, exchange_api_of

import ctypes
import sys
from numbers import Integral
from typing import TYPE_CHECKING, NamedTuple

import numpy

from pinning.errors import InvalidRangeError
from pinning.interop.array_memory import MALFORMED, NO_ACCESS, dlpack_device, malformed, no_access, open_dlpack
from pinning.interop.dtypes import HOST_TYPES
from pinning.runtime.arguments import byte_count, describe, integer

if TYPE_CHECKING:
    from typing import SupportsIndex

    from pinning.runtime.buffers import Buffer

cdef extern from "Python.h":
    PyObject* PyDict_GetItem(object dictionary, object key)

cdef enum:
    MOST_KINDS = 1024  # types that are cached, and so kept alive
    MOST_DIMENSIONS = 64
    CPU = 1  # in DLPack
    CUDA = 2

cdef object ACCEPTED = (
    "an object with the buffer protocol (bytes, bytearray, memoryview, mmap, NumPy array, ...), a SharedMemory, an "
    "object with __array_interface__, data_ptr() or DLPack on the CPU, a pair (address, size), or an address and size="
)
cdef object SIZE = "the number of bytes. A device is named by device=, and several buffers are for pinning.locked"
# These export the few bytes of the pointer itself, not the memory that it points to.
cdef tuple POINTERS = (ctypes._Pointer, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_wchar_p)
cdef uint64_t host_types = sum([1 << number for number in HOST_TYPES])
cdef dict kinds = {}  # by type
cdef dict itemsizes = {}  # by NumPy's string for a dtype


class HostBuffer(NamedTuple):
    """A range of host memory.

    As long as `owner` is referenced, the object stays alive and, if it has the buffer protocol, can be neither resized
    nor closed. `owner` is None for an ``(address, size)`` pair, whose memory the caller keeps.
    """

    ptr: int  # of the lowest byte
    size: int  # in bytes, at least 1
    read_only: bool | None  # whether the object forbids writing; None if it does not say
    owner: object
    contiguous: bool = True  # whether the range is exactly the object's bytes, without gaps


@cython.final
cdef class Kind:
    pass


cdef Kind kind_of(object buffer):
    cdef PyObject* known = PyDict_GetItem(kinds, type(buffer))
    if known is not NULL:
        return <Kind>known
    cdef Kind kind = find_kind(type(buffer), buffer)
    if len(kinds) >= MOST_KINDS:
        kinds.clear()
    kinds[type(buffer)] = kind
    return kind


cdef Kind find_kind(object cls, object buffer):
    if issubclass(cls, type):  # whose attributes describe its objects
        raise TypeError(f"{buffer.__name__} is a class; give an object of it")
    if cls is bool:
        raise TypeError(f"{buffer} is neither a buffer nor an address")
    cdef Kind kind = Kind.__new__(Kind)
    kind.address = issubclass(cls, Integral)  # including NumPy's, which are also buffers of their own few bytes
    kind.buffer = not kind.address and PyObject_CheckBuffer(buffer) and not issubclass(cls, POINTERS)
    kind.interface = hasattr(cls, "__cuda_array_interface__")
    if kind.interface and cls.__module__.partition(".")[0] == "cupy" and hasattr(cls, "data"):
        kind.cupy = not sys.modules["cupy"].cuda.runtime.is_hip
    kind.numba = kind.interface and hasattr(cls, "__cuda_ndarray__")
    if not kind.buffer:
        kind.dlpack = exchange_api_of(cls)
    return kind


# ---- which bytes ----


cdef object memory_of(object buffer, Kind kind, object size, bint any_device, Bytes* memory):
    """Find the bytes of an object in memory of the host, or of any device; return the object that keeps them alive.

    None if the caller keeps them: for a pair of an address and a size. `kind` is the object's `kind_of`; `size` is used
    if the object does not know its own. Raises as `host_buffer`.
    """
    cdef DLTensor tensor
    if kind.dlpack is not NULL and of_tensor(buffer, kind.dlpack, &tensor, memory):
        if any_device or on_host(memory.device_type):
            return buffer
    if any_device and (kind.interface or not kind.buffer) and of_interface(buffer, kind, memory):
        return buffer
    if kind.buffer:
        try:
            owner = export(buffer, memory)
        except (TypeError, ValueError, BufferError):
            pass  # another protocol has them, or raises an error that says what is wrong
        else:
            if is_range(memory.ptr, memory.size):
                return owner
    return by_other_protocols(buffer, size, any_device, memory)


cdef object host_memory_of(object buffer, object size, Bytes* memory):
    """As `memory_of`, for memory of the host: all bytes of a buffer, or the first `size`."""
    cdef Kind kind = kind_of(buffer)
    if size is None:
        return memory_of(buffer, kind, None, False, memory)
    if kind.address:
        set_range(memory, int(buffer), integer(size, "size", SIZE))
        return None
    owner = memory_of(buffer, kind, size, False, memory)
    memory.size = byte_count(size, "size", 1, SIZE, memory.size)
    return owner


def host_buffer(buffer: Buffer, size: SupportsIndex | None = None) -> HostBuffer:
    """The bytes of anything that `pinning.lock` takes, or its first `size`.

    A view with gaps is the whole span from its lowest to its highest byte. Raises InvalidRangeError if it is not host
    memory (empty, null, closed, on a device, shorter than `size`), TypeError if it is not a buffer.
    """
    cdef Bytes memory
    owner = host_memory_of(buffer, size, &memory)
    read_only = None if memory.read_only < 0 else bool(memory.read_only)
    return HostBuffer(memory.ptr, memory.size, read_only, owner, bool(memory.contiguous))


# ---- the protocols ----


@cython.final
@cython.freelist(64)
cdef class Export:
    def __dealloc__(self):
        if self.taken:
            PyBuffer_Release(&self.view)


cdef bint may_refer(Export export) noexcept:
    """Whether elements are large enough to be, or to contain, a reference to a Python object."""
    return export.view.itemsize >= <Py_ssize_t>sizeof(void*)


cdef Export export(object buffer, Bytes* memory):
    """Use the buffer protocol; the size may be 0. TypeError: unsupported. ValueError, BufferError: no access."""
    cdef Export export = Export.__new__(Export)
    # Without a format, which NumPy cannot give for every dtype.
    PyObject_GetBuffer(buffer, &export.view, PyBUF_STRIDED_RO)
    export.taken = True
    cdef Py_buffer* view = &export.view
    memory.ptr = <uint64_t>view.buf
    memory.size = view.len
    memory.read_only = view.readonly != 0
    memory.contiguous = True
    memory.may_refer = may_refer(export)
    memory.device_type, memory.device_id = CPU, 0
    if view.len and view.strides is not NULL and view.ndim > 0:
        if view.ndim > 1 or view.strides[0] != view.itemsize:
            span(<int64_t*>view.shape, <int64_t*>view.strides, 1, view.ndim, view.itemsize, memory)
    return export


cdef bint of_tensor(object array, const DLPackExchangeAPI* api, DLTensor* tensor, Bytes* memory) except -1:
    """Use DLPack's exchange API; False if that does not describe this tensor."""
    try:
        api.dltensor_from_py_object_no_sync(<void*>array, tensor)
    except Exception:  # DLPack cannot describe this tensor; other protocols may
        return False
    cdef uint64_t bits = <uint64_t>tensor.bits * tensor.lanes
    if bits % 8 or tensor.ndim > MOST_DIMENSIONS:
        return False
    cdef uint64_t size = bits // 8
    cdef int i
    for i in range(tensor.ndim):
        size *= tensor.shape[i]
    memory.ptr = <uint64_t>tensor.data + tensor.byte_offset
    memory.size = size
    memory.read_only = -1
    memory.contiguous = True
    memory.may_refer = False
    memory.device_type, memory.device_id = tensor.device_type, tensor.device_id
    if size and tensor.strides is not NULL and tensor.ndim > 0:
        span(tensor.shape, tensor.strides, bits // 8, tensor.ndim, bits // 8, memory)
    return is_range(memory.ptr, memory.size)


cdef bint of_interface(object array, Kind kind, Bytes* memory) except -1:
    """Use ``__cuda_array_interface__``; False if the array has none."""
    if kind.cupy:
        if array._c_contiguous or array._f_contiguous:  # what `flags`, which is an object, is made from
            data = array.data
            set_range(memory, data.ptr, array.nbytes)
            memory.contiguous = 1 if array._c_contiguous else 2
            memory.device_type, memory.device_id = CUDA, data.device_id
            return True
    if kind.numba:
        try:
            ptr = array.gpu_data.device_pointer.__int__()  # int() would parse a ctypes pointer's bytes as digits
        except AttributeError:  # another release of Numba
            pass
        else:
            set_array(memory, ptr, array.shape, array.strides, array.dtype.itemsize, None)
            memory.device_type = 0
            return True
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        return False
    try:
        set_interface(memory, array, interface)
    except MALFORMED as error:
        raise malformed(array, error)
    return True


cdef int set_interface(Bytes* memory, object array, object interface) except -1:
    typestr = interface["typestr"]
    itemsize = itemsizes.get(typestr)
    if itemsize is None:
        dtype = numpy.dtype(typestr)
        if dtype.hasobject:
            raise InvalidRangeError(f"this {type(array).__name__} says that its elements, {typestr}, are Python objects")
        if len(itemsizes) >= MOST_KINDS:
            itemsizes.clear()
        itemsizes[typestr] = itemsize = dtype.itemsize
    ptr, read_only = interface["data"]
    set_array(memory, ptr, interface["shape"], interface.get("strides"), itemsize, read_only)
    memory.device_type = 0
    return 0


cdef object by_other_protocols(object buffer, object size, bint any_device, Bytes* memory):
    """Use the slower protocols; if none fits, raise an error that says what is wrong."""
    name = type(buffer).__name__
    if isinstance(buffer, Integral):  # NumPy's have protocols for their own few bytes
        raise TypeError(f"{name} is not a buffer; pass {ACCEPTED}")
    if isinstance(buffer, POINTERS):
        raise TypeError(f"{name} does not tell the size of the memory it points to; pass a pair (address, size)")
    if PyObject_CheckBuffer(buffer):
        try:
            return checked_export(buffer, buffer, memory)
        except TypeError:
            pass  # not exported: try the other protocols
    if isinstance(buffer, tuple) and len(buffer) == 2:
        set_range(memory, address(buffer[0]), integer(buffer[1], "size", SIZE))
        return None
    if is_shared_memory(buffer):
        if buffer.buf is None:
            raise InvalidRangeError(f"the SharedMemory {buffer.name!r} is closed")
        return checked_export(buffer, buffer.buf, memory)
    if hasattr(buffer, "__array_interface__"):
        try:
            array = numpy.asarray(buffer)
        except (OverflowError, TypeError, ValueError) as error:
            raise no_access(buffer, error) from error
        return checked_export(buffer, array, memory)
    if callable(getattr(buffer, "data_ptr", None)):
        return of_data_ptr(buffer, size, any_device, memory)
    if hasattr(buffer, "__dlpack_device__"):
        return of_capsule(buffer, any_device, memory)
    if hasattr(buffer, "__cuda_array_interface__"):
        raise on_a_device(buffer, "it has __cuda_array_interface__")
    if hasattr(buffer, "__array__"):
        raise TypeError(f"{name} is not a buffer; pass its array, such as to_numpy() of a Series or numpy.asarray of it")
    raise TypeError(f"{name} is not a buffer; pass {ACCEPTED}")


cdef Export checked_export(object buffer, object exporter, Bytes* memory):
    try:
        owner = export(exporter, memory)
    except (ValueError, BufferError) as error:
        raise no_access(buffer, error) from error
    if not is_range(memory.ptr, memory.size):
        raise no_range(memory.ptr, memory.size)
    return owner


cdef bint is_shared_memory(object buffer):
    # An object of the class exists only if its module is loaded; importing that would cost all other callers time.
    module = sys.modules.get("multiprocessing.shared_memory")
    return module is not None and isinstance(buffer, module.SharedMemory)


cdef object of_data_ptr(object tensor, object size, bint any_device, Bytes* memory):
    device = getattr(tensor, "device", "cpu")
    kind = getattr(device, "type", device)
    cdef bint elsewhere = getattr(tensor, "is_cuda", False) is True or (
        isinstance(kind, str) and kind.partition(":")[0] != "cpu"
    )
    if elsewhere and not (any_device and hasattr(tensor, "__dlpack_device__")):
        raise on_a_device(tensor, f"its device is {device}")
    try:
        ptr = address(tensor.data_ptr())
    except RuntimeError as error:  # what torch raises for a sparse tensor
        raise no_access(tensor, error) from error
    if hasattr(tensor, "stride") and hasattr(tensor, "element_size"):
        itemsize = tensor.element_size()
        set_array(memory, ptr, tensor.shape, [step * itemsize for step in tensor.stride()], itemsize, None)
    else:
        nbytes = getattr(tensor, "nbytes", size)
        if callable(nbytes):
            nbytes = nbytes()
        if nbytes is None:
            raise InvalidRangeError(f"this {type(tensor).__name__} has no nbytes; pass size=")
        set_range(memory, ptr, integer(nbytes, "size"))
    if elsewhere:
        memory.device_type, memory.device_id = dlpack_device(tensor)
    return tensor


cdef object of_capsule(object array, bint any_device, Bytes* memory):
    device = dlpack_device(array)
    if not any_device and not on_host(device[0]):
        raise on_a_device(array, f"its DLPack device type is {device[0]}")
    try:
        tensor = open_dlpack(array, device[0])
    except NO_ACCESS as error:
        raise no_access(array, error) from error
    bits = tensor.bits * tensor.lanes
    if bits % 8:
        raise no_access(array, f"its elements have {bits} bits")
    itemsize = bits // 8
    strides = None if tensor.strides is None else [step * itemsize for step in tensor.strides]
    set_array(memory, tensor.ptr, tensor.shape, strides, itemsize, tensor.read_only)
    memory.device_type, memory.device_id = device
    return tensor.owner


# ---- ranges ----


cdef inline bint on_host(int32_t device_type) noexcept:
    return 0 <= device_type < 64 and host_types >> device_type & 1


cdef inline bint is_range(uint64_t ptr, uint64_t size) noexcept:
    """Whether this can be memory: not empty, not at null, not beyond the address space, and less than half of it."""
    return ptr != 0 and 0 < size <= <uint64_t>PY_SSIZE_T_MAX and ptr + (size - 1) >= ptr


cdef int set_range(Bytes* memory, object ptr, object size) except -1:
    """Set a range of host memory without references to Python objects."""
    try:
        memory.ptr, memory.size = ptr, size
    except (OverflowError, TypeError):  # TypeError: None, for null
        raise no_range(ptr or 0, size) from None
    if not is_range(memory.ptr, memory.size):
        raise no_range(ptr, size)
    memory.read_only = -1
    memory.contiguous, memory.may_refer = True, False
    memory.device_type, memory.device_id = CPU, 0
    return 0
cdef int set_array(Bytes* memory, object ptr, object shape, object strides, object itemsize, object read_only) except -1:
    """Set the span of an array; strides are in bytes, or None in C order."""
    cdef int64_t[MOST_DIMENSIONS] lengths, steps
    cdef int i, dimensions = len(shape)
    size = itemsize
    for length in shape:
        size *= length
    set_range(memory, ptr, size if strides is None or not size else itemsize)
    if read_only is not None:
        memory.read_only = bool(read_only)
    if strides is None:
        return 0
    if dimensions > MOST_DIMENSIONS or len(strides) != dimensions:
        raise InvalidRangeError(f"an array of shape {tuple(shape)} and strides {tuple(strides)} is not supported")
    for i in range(dimensions):
        lengths[i], steps[i] = shape[i], strides[i]
    span(lengths, steps, 1, dimensions, itemsize, memory)
    if not is_range(memory.ptr, memory.size):
        raise no_range(memory.ptr, memory.size)
    return 0


cdef inline void span(const int64_t* shape, const int64_t* strides, int64_t unit, int dimensions, int64_t itemsize,
               Bytes* memory) noexcept:
    """Set the span from an array's lowest to its highest byte; no length is 0, strides are in units of `unit` bytes."""
    cdef int64_t below = 0, above = itemsize, stride
    cdef int i
    for i in range(dimensions):
        stride = strides[i] * unit
        if stride < 0:
            below += (shape[i] - 1) * stride
        else:
            above += (shape[i] - 1) * stride
    memory.contiguous = contiguity(shape, strides, unit, dimensions, itemsize)
    memory.ptr += <uint64_t>below
    memory.size = <uint64_t>(above - below)


cdef inline signed char contiguity(const int64_t* shape, const int64_t* strides, int64_t unit, int dimensions,
                                   int64_t itemsize) noexcept:
    """Whether elements follow one another without gaps: 1 if in C order, 2 if in another order of dimensions."""
    cdef int64_t expected = itemsize
    cdef bint moved = True
    cdef int i, left = 0, passes = 0
    cdef bint[MOST_DIMENSIONS] done
    for i in range(dimensions):
        done[i] = shape[i] == 1
        left += not done[i]
    while left and moved:
        passes += 1
        moved = False
        for i in range(dimensions - 1, -1, -1):  # most arrays are in C order
            if not done[i] and strides[i] * unit == expected:
                expected *= shape[i]
                done[i] = moved = True
                left -= 1
    return 0 if left else 1 if passes <= 1 else 2


# ---- errors ----


cdef object address(object ptr):
    return integer(ptr, "address", "that of a first byte")


cdef object no_range(object ptr, object size):
    if size == 0:
        return InvalidRangeError("the buffer is empty; it must have at least 1 byte")
    if ptr == 0:
        return InvalidRangeError("the buffer's address is null; was it freed, or is it not host memory?")
    return InvalidRangeError(
        f"address {ptr:#x} with size {size} is not memory; both must be positive, the size below 2**63, the end below 2**64"
    )


cdef object on_a_device(object buffer, str why):
    return InvalidRangeError(
        f"this {type(buffer).__name__} is device memory ({why}), which needs no lock; only host memory is locked"
    )

# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""Where objects keep their bytes, as they tell C: by the buffer protocol, or by DLPack's exchange API."""

cimport cython
from cpython.buffer cimport PyBUF_STRIDED_RO, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport int64_t, uint64_t

import ctypes
from numbers import Integral

cdef extern from "Python.h":
    PyObject* PyDict_GetItem(object dictionary, object key)

cdef enum:
    MOST_KINDS = 1024  # types that are remembered, and so kept
    MOST_DIMENSIONS = 64
    DLPACK_MAJOR = 1

# These export the few bytes that hold the address, which nobody wants to lock.
cdef tuple POINTERS = (ctypes._Pointer, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_wchar_p)
cdef dict kinds = {}  # by type


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
    cdef Kind kind = Kind.__new__(Kind)
    kind.address = issubclass(cls, Integral)  # NumPy's too, which otherwise are buffers of their own few bytes
    kind.buffer = not kind.address and PyObject_CheckBuffer(buffer) and not issubclass(cls, POINTERS)
    kind.interface = hasattr(cls, "__cuda_array_interface__")
    kind.cupy = kind.interface and cls.__module__.partition(".")[0] == "cupy" and hasattr(cls, "data")
    capsule = getattr(cls, "__dlpack_c_exchange_api__", None)
    cdef const DLPackExchangeAPI* api = NULL
    if PyCapsule_IsValid(capsule, "dlpack_exchange_api"):
        api = <const DLPackExchangeAPI*>PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
        while api is not NULL and api.major != DLPACK_MAJOR:
            api = api.previous
        if api is not NULL and api.dltensor_from_py_object_no_sync is NULL:
            api = NULL
    kind.dlpack = api
    return kind


@cython.final
@cython.freelist(64)
cdef class Export:
    def __dealloc__(self):
        if self.taken:
            PyBuffer_Release(&self.view)


cdef Export export(object buffer, Bytes* found):
    cdef Export export = Export.__new__(Export)
    # Without a format, which NumPy cannot give for every dtype.
    PyObject_GetBuffer(buffer, &export.view, PyBUF_STRIDED_RO)
    export.taken = True
    cdef Py_buffer* view = &export.view
    found.ptr = <uint64_t>view.buf
    found.size = view.len
    found.read_only = view.readonly != 0
    found.contiguous = True
    found.may_refer = view.itemsize >= <Py_ssize_t>sizeof(void*)
    if view.len and view.strides is not NULL and view.ndim > 0:
        if view.ndim > 1 or view.strides[0] != view.itemsize:
            span(<int64_t*>view.shape, <int64_t*>view.strides, 1, view.ndim, view.itemsize, found)
    return export


def exported(buffer):
    """The bytes of an object with the buffer protocol: address of the lowest, size, read only, owner, contiguous.

    As long as the owner is referenced the object can be neither resized nor closed. The size may be 0.

    Raises
    ------
    TypeError
        It has no buffer protocol.
    ValueError, BufferError
        It gives no access.
    """
    cdef Bytes found
    cdef Export owner = export(buffer, &found)
    return found.ptr, found.size, bool(found.read_only), owner, found.contiguous


cdef bint dlpack_bytes(object tensor, const DLPackExchangeAPI* api, DLTensor* answer, Bytes* found) except -1:
    """False where the type does not say it of this tensor."""
    try:
        api.dltensor_from_py_object_no_sync(<void*>tensor, answer)
    except Exception:  # one that DLPack cannot describe; other protocols may
        return False
    cdef uint64_t bits = <uint64_t>answer.bits * answer.lanes
    if bits % 8 or answer.ndim > MOST_DIMENSIONS:
        return False
    cdef uint64_t size = bits // 8
    cdef int i
    for i in range(answer.ndim):
        size *= answer.shape[i]
    found.ptr = <uint64_t>answer.data + answer.byte_offset
    found.size = size
    found.read_only = -1
    found.contiguous = True
    found.may_refer = False
    if size and answer.strides is not NULL and answer.ndim > 0:
        span(answer.shape, answer.strides, bits // 8, answer.ndim, bits // 8, found)
    return True


cdef void span(const int64_t* shape, const int64_t* strides, int64_t unit, int dimensions, int64_t itemsize,
               Bytes* found) noexcept:
    """The bytes from the lowest to the highest that an array touches; no length is 0, strides are in `unit` bytes."""
    cdef int64_t below = 0, above = itemsize, stride
    cdef int i
    for i in range(dimensions):
        stride = strides[i] * unit
        if stride < 0:
            below += (shape[i] - 1) * stride
        else:
            above += (shape[i] - 1) * stride
    found.contiguous = is_contiguous(shape, strides, unit, dimensions, itemsize)
    found.ptr += <uint64_t>below
    found.size = <uint64_t>(above - below)


cdef bint is_contiguous(const int64_t* shape, const int64_t* strides, int64_t unit, int dimensions,
                        int64_t itemsize) noexcept:
    """Whether elements follow one another without gaps, in whatever order of dimensions."""
    cdef int64_t expected = itemsize
    cdef bint moved = True
    cdef int i, left = 0
    cdef bint[MOST_DIMENSIONS] done
    for i in range(dimensions):
        done[i] = shape[i] == 1
        left += not done[i]
    while left and moved:
        moved = False
        for i in range(dimensions - 1, -1, -1):  # most arrays are in C's order
            if not done[i] and strides[i] * unit == expected:
                expected *= shape[i]
                done[i] = moved = True
                left -= 1
    return not left


cdef bint is_range(uint64_t ptr, uint64_t size) noexcept:
    """Whether these are bytes of memory: some, not at null, and below the top of the address space."""
    return ptr != 0 and size != 0 and ptr + (size - 1) >= ptr

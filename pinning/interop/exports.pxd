# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef struct Bytes:
    uint64_t ptr  # of the lowest one
    uint64_t size
    signed char read_only  # -1 where nobody says
    bint contiguous
    bint may_refer  # to Python objects: elements are large enough


# As in dlpack.h, version 1.3.

cdef struct DLTensor:
    void* data
    int32_t device_type
    int32_t device_id
    int32_t ndim
    uint8_t code
    uint8_t bits
    uint16_t lanes
    int64_t* shape
    int64_t* strides  # in elements; null where C-contiguous
    uint64_t byte_offset

cdef struct DLPackExchangeAPI:
    uint32_t major
    uint32_t minor
    DLPackExchangeAPI* previous
    void* managed_tensor_allocator
    void* managed_tensor_from_py_object_no_sync
    void* managed_tensor_to_py_object_no_sync
    int (*dltensor_from_py_object_no_sync)(void* py_object, DLTensor* out) except -1
    void* current_work_stream


cdef class Kind:
    """How the objects of a type tell where their bytes are."""

    cdef bint address  # an integer
    cdef bint buffer  # by the buffer protocol
    cdef bint interface  # by __cuda_array_interface__, if at all
    cdef bint cupy  # an array of CuPy's, which takes far longer to make that interface than to say the same
    cdef const DLPackExchangeAPI* dlpack


cdef class Export:
    """What an object with the buffer protocol has exported: until this is gone it keeps the memory in place."""

    cdef Py_buffer view
    cdef bint taken


cdef Kind kind_of(object buffer)
cdef Export export(object buffer, Bytes* found)
cdef bint dlpack_bytes(object tensor, const DLPackExchangeAPI* api, DLTensor* tensor_found, Bytes* found) except -1
cdef bint is_range(uint64_t ptr, uint64_t size) noexcept

# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


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
    int64_t* strides  # in elements; null if C-contiguous
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


cdef const DLPackExchangeAPI* exchange_api_of(object cls)  # of a type; null if it has none of a known version

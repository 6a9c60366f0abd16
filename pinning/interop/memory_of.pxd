# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, uint64_t

from pinning.interop.dlpack cimport DLPackExchangeAPI


cdef struct Bytes:
    uint64_t ptr  # of the lowest one
    uint64_t size
    signed char read_only  # -1 if the object does not say
    signed char contiguous  # 2: but not in C order
    bint may_refer  # elements may be references to Python objects: they are large enough
    int32_t device_type  # DLPack's; 0 if only the address can tell whose memory it is
    int32_t device_id


cdef class Kind:
    """How the objects of a type expose their bytes."""

    cdef bint address  # an integer
    cdef bint buffer  # by the buffer protocol
    cdef bint interface  # by __cuda_array_interface__, which an instance may lack
    cdef bint cupy, numba  # their arrays for CUDA, whose attributes are read far faster than that interface is made
    cdef const DLPackExchangeAPI* dlpack  # null if it has none, or has the buffer protocol


cdef class Export:
    """An export of an object's buffer: as long as this exists, the object keeps its memory in place."""

    cdef Py_buffer view
    cdef bint taken


cdef Kind kind_of(object buffer)
cdef bint may_refer(Export export) noexcept
cdef Export export(object buffer, Bytes* memory)
cdef object memory_of(object buffer, Kind kind, object size, bint any_device, Bytes* memory)
cdef object host_memory_of(object buffer, object size, Bytes* memory)

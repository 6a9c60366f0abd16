# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int32_t, uint64_t

from pinning.interop.dlpack cimport DLPackExchangeAPI


cdef struct Bytes:
    uint64_t ptr  # of the lowest one
    uint64_t size
    signed char read_only  # -1 where the object does not say
    bint contiguous
    bint may_refer  # to Python objects: elements are large enough
    int32_t device_type  # DLPack's; 0 where only the address says whose memory it is
    int32_t device_id


cdef class Kind:
    """How the objects of a type tell where their bytes are."""

    cdef bint address  # an integer
    cdef bint buffer  # by the buffer protocol
    cdef bint interface  # by __cuda_array_interface__, if at all
    cdef bint cupy, numba  # arrays of these for CUDA, which take far longer to make that interface than to say the same
    cdef const DLPackExchangeAPI* dlpack  # null where it has none, or the buffer protocol


cdef class Export:
    """What an object with the buffer protocol has exported: until this is gone it keeps the memory in place."""

    cdef Py_buffer view
    cdef bint taken


cdef Kind kind_of(object buffer)
cdef Export export(object buffer, Bytes* memory)
cdef object memory_of(object buffer, Kind kind, object size, bint any_device, Bytes* memory)
cdef object host_memory_of(object buffer, object size, Bytes* memory)

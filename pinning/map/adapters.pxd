# SPDX-License-Identifier: Apache-2.0
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t
from libcpp.memory cimport shared_ptr

from pinning.map.native cimport CPinnedMap, PythonDevice, PythonRegistrar
from pinning.plugin.native cimport NativeQueue, VendorDevice, VendorEvent


cdef class DeviceAdapter:
    cdef object __weakref__
    cdef PythonDevice* vendor
    cdef object device


# The object that keeps the C++ interface of a device: the device itself if it is native.
cdef object adapter_of(object device)
# That interface, which lives as long as the device.
cdef VendorDevice* vendor_of(object device) except NULL
# The adapter of a vendor's queue: the queue itself if it is native.
cdef NativeQueue native_queue(object queue)
# A vendor's event for Python; None if there is none.
cdef object event_object(const shared_ptr[VendorEvent]& event)

cdef PythonRegistrar* add_registrar(CPinnedMap* map, object registrar, uint64_t piece) except NULL
cdef bint is_in_device_call() noexcept nogil

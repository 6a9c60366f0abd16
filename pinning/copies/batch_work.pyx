# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""The parts of a batch, sorted and submitted natively. The stub says more."""

from cpython.object cimport PyObject
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr
from libcpp.vector cimport vector

from pinning.map cimport PinnedMap
from pinning.native cimport CPinnedMap
from pinning.plugin.native cimport NativeDevice, NativeQueue, VendorDevice, VendorQueue, raise_in_python


cdef extern from "<pinning/batch.hpp>" namespace "pinning" nogil:
    cppclass Part:
        uint64_t dst
        uint64_t src
        uint64_t size

    cppclass Places:
        Places(CPinnedMap& map, VendorDevice& device)

    cppclass Parts:
        vector[Part] by_kernel
        vector[Part] by_engine
        vector[Part] to_device
        vector[Part] to_host
        vector[Part] on_host
        uint64_t bytes

    cppclass BatchLimits:
        cbool kernel
        uint64_t largest_by_kernel
        uint64_t part

    void sort_batch(Places& dst_places, Places& src_places, const uint64_t* dsts, const uint64_t* srcs,
                    const uint64_t* sizes, uint64_t size_step, uint64_t count, const BatchLimits& limits,
                    Parts& parts) except +raise_in_python


cdef extern from "<pinning/part_lists.hpp>" namespace "pinning" nogil:
    cppclass List "pinning::PartLists::List":
        uint64_t device_ptr

    cppclass PartLists:
        PartLists(VendorDevice& device)
        List take(const vector[Part]& parts) except +raise_in_python
        void give(const List& list) noexcept
        void forget() noexcept


cdef class DeviceLists:
    cdef PartLists* lists
    cdef NativeDevice device

    def __cinit__(self, NativeDevice device not None):
        self.device = device
        self.lists = new PartLists(device.vendor[0])  # lives as long as the device, which is as long as the process

    def forget(self):
        self.lists.forget()


cdef class BatchWork:
    cdef DeviceLists lists
    cdef PinnedMap on
    cdef unique_ptr[Places] dst_places
    cdef unique_ptr[Places] src_places
    cdef Parts parts
    cdef List list
    cdef cbool kernel

    def __cinit__(self, DeviceLists lists not None, PinnedMap on not None, const uint64_t[::1] dsts not None,
                  const uint64_t[::1] srcs not None, const uint64_t[::1] sizes not None, cbool kernel,
                  uint64_t largest_by_kernel, uint64_t part):
        self.lists = lists
        self.on = on
        self.dst_places.reset(new Places(on.map[0], lists.device.vendor[0]))
        self.src_places.reset(new Places(on.map[0], lists.device.vendor[0]))
        cdef BatchLimits limits
        limits.kernel, limits.largest_by_kernel, limits.part = kernel, largest_by_kernel, part
        cdef uint64_t count = dsts.shape[0]
        cdef uint64_t step = 1 if sizes.shape[0] == dsts.shape[0] else 0
        if count == 0:
            return
        with nogil:
            sort_batch(self.dst_places.get()[0], self.src_places.get()[0], &dsts[0], &srcs[0], &sizes[0], step, count,
                       limits, self.parts)

    def __dealloc__(self):
        if self.lists is not None:
            self.lists.lists.give(self.list)

    @property
    def nbytes(self):
        return self.parts.bytes

    @property
    def counts(self):
        return {
            "kernel": self.parts.by_kernel.size(),
            "engine": self.parts.by_engine.size(),
            "to_device": self.parts.to_device.size(),
            "to_host": self.parts.to_host.size(),
            "on_host": self.parts.on_host.size(),
        }

    def pageable(self, str group):
        cdef vector[Part]* parts = &self.parts.to_device
        if group == "to_host":
            parts = &self.parts.to_host
        elif group == "on_host":
            parts = &self.parts.on_host
        return [(parts[0][i].dst, parts[0][i].src, parts[0][i].size) for i in range(parts.size())]

    def __call__(self, NativeQueue queue not None):
        cdef VendorQueue* vendor = queue.vendor
        cdef uint64_t count = self.parts.by_kernel.size()
        if count:
            with nogil:
                self.list = self.lists.lists.take(self.parts.by_kernel)
                vendor.move_parts(self.list.device_ptr, count)
        count = self.parts.by_engine.size()
        if count:
            with nogil:
                vendor.copy_batch(self.parts.by_engine.data(), count)

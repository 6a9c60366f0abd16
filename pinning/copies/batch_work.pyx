# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""The parts of a batch, sorted and submitted natively. The stub says more."""

from cython.operator cimport dereference
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr
from libcpp.vector cimport vector

from pinning.map cimport PinnedMap
from pinning.native cimport CPinnedMap
from pinning.plugin.native cimport NativeDevice, NativeQueue, Part, VendorDevice, VendorQueue, raise_in_python
from pinning.staging cimport CStaged, PartList, PartLists, StagingLimits, Toward, limits_of, staging


cdef extern from "<pinning/batch.hpp>" namespace "pinning" nogil:
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

    void sort_batch(Places& dst_places, Places& src_places, const uint64_t* dsts, const uint64_t* srcs,
                    const uint64_t* sizes, uint64_t size_step, uint64_t count, const BatchLimits& limits,
                    Parts& parts) except +raise_in_python


cdef class DeviceLists:
    cdef PartLists* lists
    cdef NativeDevice device

    def __cinit__(self, NativeDevice device not None):
        self.device = device
        self.lists = new PartLists(device.vendor[0])  # lives as long as the device, which is as long as the process

    def trim(self):
        cdef uint64_t freed
        with nogil:
            freed = self.lists.trim() + staging(self.device.vendor[0]).trim()
        return freed

    def forget(self):
        self.lists.forget()


cdef class BatchWork:
    cdef DeviceLists lists
    cdef PinnedMap on
    cdef unique_ptr[Places] dst_places
    cdef unique_ptr[Places] src_places
    cdef Parts parts
    cdef PartList list
    cdef vector[CStaged*] staged
    cdef StagingLimits limits
    cdef uint64_t stage_from

    def __cinit__(self, DeviceLists lists not None, PinnedMap on not None, const uint64_t[::1] dsts not None,
                  const uint64_t[::1] srcs not None, const uint64_t[::1] sizes not None, cbool kernel,
                  costs):
        self.lists = lists
        self.limits = limits_of(costs)
        self.stage_from = costs.stage_to_device
        self.on = on
        self.dst_places.reset(new Places(on.map[0], lists.device.vendor[0]))
        self.src_places.reset(new Places(on.map[0], lists.device.vendor[0]))
        cdef BatchLimits limits
        limits.kernel, limits.largest_by_kernel = kernel, costs.kernel_to_bytes
        cdef uint64_t count = dsts.shape[0]
        cdef uint64_t step = 1 if sizes.shape[0] == dsts.shape[0] else 0
        if count == 0:
            return
        with nogil:
            sort_batch(self.dst_places.get()[0], self.src_places.get()[0], &dsts[0], &srcs[0], &sizes[0], step, count,
                       limits, self.parts)

    def __dealloc__(self):
        cdef CStaged* each
        with nogil:
            for each in self.staged:
                del each
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

    def __call__(self, NativeQueue queue not None):
        cdef VendorQueue* vendor = queue.vendor
        try:
            with nogil:
                self.submit(vendor)
        except BaseException:
            with nogil:
                vendor.synchronize()  # so that what was submitted before is over
            raise

    cdef int submit(self, VendorQueue* vendor) except -1 nogil:
        if self.parts.by_kernel.size():
            self.list = self.lists.lists.take(self.parts.by_kernel)
            vendor.move_parts(self.list.device_ptr, self.parts.by_kernel.size())
        if self.parts.by_engine.size():
            vendor.copy_batch(self.parts.by_engine.data(), self.parts.by_engine.size())
        self.stage(vendor, Toward.device, self.parts.to_device)
        self.stage(vendor, Toward.host, self.parts.to_host)
        self.stage(vendor, Toward.in_host, self.parts.on_host)
        return 0

    cdef int stage(self, VendorQueue* vendor, Toward toward, const vector[Part]& parts) except -1 nogil:
        """By threads through pinned blocks, or where there are none, or one small part, by the vendor's own copies."""
        cdef CStaged* staged = NULL
        if parts.empty():
            return 0
        if toward == Toward.in_host or parts.size() > 1 or parts[0].size >= self.stage_from:
            self.staged.reserve(self.staged.size() + 1)
            staged = staging(self.lists.device.vendor[0]).copy_batch(dereference(vendor), toward, parts, self.lists.lists,
                                                                     self.limits).release()
        if staged is not NULL:
            self.staged.push_back(staged)
        else:
            vendor.copy_batch(parts.data(), parts.size())
        return 0

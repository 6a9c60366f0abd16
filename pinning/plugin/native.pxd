# SPDX-License-Identifier: Apache-2.0
"""What a vendor implements natively, <pinning/vendor.hpp>, for Cython: declarations, and their Python wrappers."""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libcpp cimport bool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from "<pinning/python_errors.hpp>" namespace "pinning":
    void raise_in_python()


cdef extern from "<pinning/vendor.hpp>" namespace "pinning" nogil:
    enum class Access:
        unknown
        writable
        read_only

    enum class Coherence:
        unknown
        fine
        coarse

    cppclass CoherenceSupport:
        bool fine
        bool coarse

    cppclass Pinned:
        uint64_t base
        uint64_t size
        uint64_t device_ptr

    cppclass LockOptions:
        Access access
        Coherence coherence
        Locker* locker

    cppclass Locker:
        uint64_t lock(uint64_t ptr, uint64_t size, LockOptions options) except +raise_in_python
        void unlock(uint64_t ptr) except +raise_in_python
        optional[Pinned] is_pinned(uint64_t ptr) except +raise_in_python
        CoherenceSupport coherence() noexcept

    enum class CMemoryKind "pinning::MemoryKind":
        host
        device
        shared

    enum class CMemoryConnection "pinning::MemoryConnection":
        pass

    cppclass CMemoryInfo "pinning::MemoryInfo":
        CMemoryKind kind
        uint64_t base
        uint64_t size
        int device

    cppclass CopyItem:
        uint64_t dst
        uint64_t src
        uint64_t size

    cppclass VendorEvent:
        bool done() except +raise_in_python
        void wait() except +raise_in_python
        bool wait_a_while() except +raise_in_python
        double seconds_since(VendorEvent& earlier) except +raise_in_python

    cppclass VendorQueue:
        uintptr_t handle() noexcept
        uint64_t stream_number() except +raise_in_python
        void copy(uint64_t dst, uint64_t src, uint64_t size) except +raise_in_python
        void copy_2d(uint64_t dst, uint64_t dst_pitch, uint64_t src, uint64_t src_pitch, uint64_t width,
                     uint64_t height) except +raise_in_python
        void fill(uint64_t ptr, uint32_t value, unsigned bytes, uint64_t count) except +raise_in_python
        void call(void (*function)(void*), void* argument) except +raise_in_python
        bool reads_early() noexcept
        bool waits_for_values() noexcept
        bool moves_parts() noexcept
        uint64_t turn_bytes() noexcept
        void wait_value(uint64_t address, uint32_t value) except +raise_in_python
        void write_value(uint64_t address, uint32_t value) except +raise_in_python
        void write_then_wait(uint64_t written, uint32_t value, uint64_t awaited,
                             uint32_t reached) except +raise_in_python
        uint64_t capture() except +raise_in_python
        void keep_with_graph(void* object, void (*release)(void*) noexcept nogil) except +raise_in_python
        unique_ptr[VendorEvent] record() except +raise_in_python
        void wait(VendorEvent& event) except +raise_in_python
        bool done() except +raise_in_python
        void synchronize() except +raise_in_python
        bool synchronize_a_while(uint64_t& until) except +raise_in_python
        void close() except +raise_in_python

    cppclass VendorDevice(Locker):
        const string& name() noexcept
        bool is_permanent() noexcept
        uintptr_t native_handle() except +raise_in_python
        uintptr_t native_context() except +raise_in_python
        string description() except +raise_in_python
        string pci_address() except +raise_in_python
        vector[CMemoryKind] memory_kinds() except +raise_in_python
        bool can_lock() except +raise_in_python
        CMemoryConnection connection(VendorDevice& other) except +raise_in_python
        string link_to(VendorDevice& other) except +raise_in_python
        vector[string] problems() except +raise_in_python
        uint64_t largest_lock() noexcept
        uint64_t allocate(uint64_t size, CMemoryKind kind, bool write_combined) except +raise_in_python
        uint64_t allocate_sleepable(uint64_t size) except +raise_in_python
        void free(uint64_t ptr, CMemoryKind kind) except +raise_in_python
        void set_awake(uint64_t ptr, bool awake) except +raise_in_python
        optional[CMemoryInfo] memory_info(uint64_t ptr) except +raise_in_python
        void copy(uint64_t dst, uint64_t src, uint64_t size) except +raise_in_python
        void synchronize() except +raise_in_python
        void synchronize_beside_captures() except +raise_in_python
        unique_ptr[VendorQueue] make_queue() except +raise_in_python
        unique_ptr[VendorQueue] adopt_queue(uintptr_t handle) except +raise_in_python

    VendorDevice& vendor_device(const string& name) except +raise_in_python

    cppclass VendorLibrary:
        string name
        string version

    unsigned c_device_count "pinning::device_count"(const string& vendor) except +raise_in_python
    VendorLibrary vendor_library(const string& vendor) except +raise_in_python


cdef class NativeDevice:
    cdef object __weakref__
    cdef VendorDevice* native  # lives as long as the process
    cdef readonly str name, vendor
    cdef readonly int index
    cdef object _description, _memory_kinds, _can_lock  # None until first read


cdef class NativeQueue:
    cdef object __weakref__
    cdef shared_ptr[VendorQueue] owned
    cdef VendorQueue* vendor  # the same


cdef NativeQueue wrap_queue(VendorQueue* vendor)  # takes ownership


cdef class NativeEvent:
    cdef shared_ptr[VendorEvent] vendor


cdef NativeEvent wrap_event(const shared_ptr[VendorEvent]& vendor)

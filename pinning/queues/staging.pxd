# SPDX-License-Identifier: Apache-2.0
"""The staging engine of libpinning.so, <pinning/staging.hpp>, for Cython."""

from libc.stdint cimport uint64_t
from libcpp cimport bool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.vector cimport vector

from pinning.plugin.native cimport VendorDevice, VendorQueue, raise_in_python


cdef extern from "<pinning/file.hpp>" namespace "pinning" nogil:
    cppclass CFile "pinning::File":
        CFile(int descriptor)
        int descriptor() noexcept
        void read_past_cache(uint64_t offset, uint64_t size) noexcept
        int prepare_to_write(uint64_t size, bint past_cache) noexcept

    cppclass FileOutcome:
        FileOutcome()
        void fail(int why, uint64_t offset) noexcept
        bool has_failed() noexcept
        int reason() noexcept
        uint64_t failed_at() noexcept

    ctypedef struct FileRows:
        uint64_t begin
        uint64_t row
        uint64_t pitch

    cppclass FilePart:
        FilePart()
        uint64_t dst
        uint64_t src
        uint64_t size
        uint64_t row
        uint64_t pitch

    cppclass FileEnd:
        shared_ptr[CFile] file
        shared_ptr[FileOutcome] outcome
        bool writes
        void move(char* ptr, const FileRows& rows, uint64_t at, uint64_t size) noexcept


cdef extern from "<pinning/copy_plan.hpp>" namespace "pinning" nogil:
    ctypedef struct CopyLimits:  # names as in `pinning.copies.Costs`
        uint64_t ring_bytes
        uint64_t staging_bytes
        uint64_t chunk_bytes
        unsigned threads
        unsigned threads_to_device
        unsigned threads_to_host
        uint64_t huge_from
        uint64_t stage_to_device
        uint64_t stage_to_host
        uint64_t kernel_from_items
        uint64_t kernel_to_bytes


cdef extern from "<pinning/staging.hpp>" namespace "pinning" nogil:
    cppclass CStaged "pinning::Staged":
        pass

    cppclass CBlock "pinning::Staging::Block":
        uint64_t ptr
        uint64_t size

    enum class FileMemory "pinning::Staging::Memory":
        device
        host

    cppclass CStaging "pinning::Staging":
        unique_ptr[CStaged] copy_file(VendorQueue& queue, FileEnd file, FileMemory memory, const vector[FilePart]& parts,
                                      bool early, const CopyLimits& limits) except +raise_in_python
        unique_ptr[CBlock] borrow(uint64_t at_most, const CopyLimits& limits) except +raise_in_python
        uint64_t trim() except +raise_in_python
        bool empty() noexcept
        bool has_room(const CopyLimits& limits) noexcept

    CStaging& staging(VendorDevice& device) except +raise_in_python
    uint64_t trim_stagings() except +raise_in_python


cdef class Staging:
    cdef CStaging* staging
    cdef object device  # kept while it has rings


cdef CopyLimits limits_of(object costs) except *

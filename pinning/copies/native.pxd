# SPDX-License-Identifier: Apache-2.0
"""The C++ staging ring, for Cython."""

from libc.stdint cimport uint32_t
from libcpp cimport bool


cdef extern from "<pinning/staging.hpp>" namespace "pinning" nogil:
    cppclass StagingCounters:
        pass

    cppclass CopyThreads:
        CopyThreads(unsigned count) except +

    cppclass CStagedCopy "pinning::StagedCopy":
        CStagedCopy(CopyThreads& threads, bool to_device, char* host, size_t size, size_t chunk_bytes, char* blocks,
                    uint32_t block_count, StagingCounters& counters, uint32_t base) except +
        uint32_t chunks() noexcept
        size_t bytes(uint32_t chunk) noexcept
        char* block(uint32_t chunk) noexcept
        bool begun() noexcept
        bool over() noexcept
        bool abandon() noexcept
        @staticmethod
        void began(void* copy) noexcept

    size_t PIECE "pinning::StagedCopy::piece_bytes"
    StagingCounters* place_counters(void* memory) noexcept
    uint32_t taken(const StagingCounters& counters) noexcept
    uint32_t moved(const StagingCounters& counters) noexcept

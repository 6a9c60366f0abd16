# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr


cdef extern from "<pinning/order.hpp>" namespace "pinning" nogil:
    cppclass CTimeline "pinning::Timeline":
        CTimeline(cbool ordered)
        uint64_t reached() noexcept

    ctypedef shared_ptr[CTimeline] SharedTimeline

    cppclass CDependencies "pinning::Dependencies":
        CDependencies() noexcept
        void add(const SharedTimeline& timeline, uint64_t position) except +
        void add_upto(const SharedTimeline& timeline, uint64_t position) except +
        cbool covers(const CTimeline& timeline, uint64_t position) noexcept
        cbool reached() noexcept
        size_t size() noexcept

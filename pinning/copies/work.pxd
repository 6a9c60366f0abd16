# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from pinning.copies.ends cimport End
from pinning.map.native cimport CPinnedMap
from pinning.map.pinned_map cimport Hold, PinnedMap
from pinning.plugin.native cimport VendorDevice, raise_in_python
from pinning.queues.event cimport Event
from pinning.queues.lane cimport Operation, Work
from pinning.queues.staging cimport CopyLimits

cdef extern from "<pinning/copy_plan.hpp>" namespace "pinning" nogil:
    enum class CCopyPath "pinning::CopyPath":
        pass

    enum class CReason "pinning::Reason":
        pass

    enum class Direction:
        to_device
        to_host
        on_device
        between_devices
        through_host
        in_host

    cppclass CopyRequest:
        uint64_t dst
        uint64_t src
        uint64_t size
        Direction direction
        cbool early
        cbool in_turn
        uint64_t ask_from
        cbool to_device() noexcept

    cppclass CopyStep:
        uint64_t dst
        uint64_t src
        uint64_t size
        CCopyPath path

    cppclass CopyPlan:
        CCopyPath path
        CReason reason
        vector[CopyStep] steps

    cppclass CopyOperation(Operation):
        CCopyPath path() noexcept
        CReason reason() noexcept
        cbool is_direct() noexcept

    cppclass CopiedRange "pinning::PlannedCopy"(CopyOperation):
        CopiedRange(CPinnedMap& map, VendorDevice& device, const CopyRequest& request, cbool stages,
                    const CopyLimits& limits) except +raise_in_python
        const CopyPlan& plan() noexcept


cdef extern from "<pinning/rows.hpp>" namespace "pinning" nogil:
    cppclass Rows:
        uint64_t dst
        uint64_t dst_pitch
        uint64_t src
        uint64_t src_pitch
        uint64_t width
        uint64_t height

    cppclass CopiedRows "pinning::RowsCopy"(CopyOperation):
        CopiedRows(CPinnedMap& map, VendorDevice& device, const Rows& rows, Direction direction,
                   const CopyLimits& limits) except +raise_in_python
        const CopyPlan& plan() noexcept


cdef extern from "<pinning/simple_operations.hpp>" namespace "pinning" nogil:
    cppclass OneCopy(Operation):
        OneCopy() noexcept
        void set(uint64_t dst, uint64_t src, uint64_t size) noexcept

    cppclass OneFill(Operation):
        OneFill() noexcept
        void set(uint64_t ptr, uint32_t value, unsigned width, uint64_t count) noexcept


cdef class Copy(Event):
    cdef public object path  # type: CopyPath
    cdef public object reason  # type: str


cdef enum Way:  # in the order of `CopyPath`
    way_direct, way_staged, way_plain

cdef void count_bytes(Way way, uint64_t size) noexcept nogil


cdef class DirectCopy(Work):
    """A copy that is one vendor call."""

    cdef Hold hold  # an unlock during the copy takes effect after it
    cdef End to, origin
    cdef OneCopy call
    cdef uint64_t changes  # of the map, when its memory was found pageable
    cdef bint pageable


cdef class DirectFill(Work):
    cdef End to
    cdef OneFill call


cdef class NativeCopy(Work):
    """A copy by libpinning. Until it is destroyed, it holds the locks of all locked memory that it copies."""

    cdef CopyOperation* operation  # owned; the same as `native`
    cdef PinnedMap map
    cdef object staging  # keeps the device while it has rings

# SPDX-License-Identifier: Apache-2.0
"""The C++ pinned map, for Cython. Compile with the folders of ``pinning.build.include_dirs()``."""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t, uint64_t
from libcpp cimport bool
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector

from pinning.plugin.native cimport (
    Coherence,
    CoherenceSupport,
    Locker,
    LockOptions,
    VendorDevice,
    VendorEvent,
    VendorQueue,
    raise_in_python,
)


cdef extern from "<pinning/python_registrar.hpp>" namespace "pinning" nogil:
    int device_calls

    enum class LockMapped "pinning::LockMapped":
        off
        on
        mandatory

    cppclass CHold "pinning::Hold":
        uint64_t ptr
        uint64_t device_ptr
        uint64_t serial

    cppclass CRegion "pinning::Region":
        uint64_t start
        uint64_t size
        uint64_t whole
        uint64_t device_ptr
        uint64_t piece
        uint32_t references
        bool external
        bool registered
        bool watched
        bool idle
        Coherence coherence
        uint64_t serial

        bool in_one_piece(uint64_t ptr, uint64_t bytes) noexcept

    cppclass Watcher:
        string problem() except +
        bool hears_of_calls() noexcept

    Watcher& process_watcher() except +

    cppclass Budget "pinning::Budget":
        cppclass Figures:
            uint64_t limit
            uint64_t locked
            uint64_t idle
            uint64_t external
            uint64_t idle_limit

        cppclass Given:
            uint64_t bytes

        Figures figures() noexcept
        void set(optional[uint64_t] limit, optional[uint64_t] idle_limit) except +raise_in_python
        bool replace_limit(uint64_t before, uint64_t limit) except +raise_in_python
        void check(uint64_t size) except +raise_in_python
        bool keeps(uint64_t size) noexcept
        uint64_t trim(uint64_t bytes) except +raise_in_python
        Given give_back(uint64_t bytes) except +raise_in_python
        uint64_t ended() noexcept
        bool wait_for_an_end(uint64_t ended) noexcept

    Budget& process_budget() except +

    cppclass PythonTraits "pinning::PythonDevice::Traits":
        string name
        CoherenceSupport coherence
        bool has_memory_info

    cppclass PythonDevice(VendorDevice):
        PythonDevice(PyObject* device, PyObject* already_pinned_error, PyObject* kinds, PythonTraits traits) except +

    cppclass PythonQueue(VendorQueue):
        PythonQueue(PyObject* queue) except +raise_in_python

    PyObject* object_of_event(VendorEvent& event) noexcept

    cppclass Pieces "pinning::Pieces":
        pass

    cppclass PythonRegistrar:
        void let_go() noexcept

    cppclass CPinnedMap "pinning::PinnedMap":
        CPinnedMap(Locker& locker, Watcher* watcher, bool drained_by_watcher, Budget* budget) except +
        void abandon() noexcept
        CHold lock(uint64_t ptr, uint64_t size, LockOptions options, uint64_t piece) except +raise_in_python
        CHold lock(uint64_t ptr, uint64_t size, LockOptions options, Pieces& pieces) except +raise_in_python
        void unlock(uint64_t ptr) except +raise_in_python
        bool unlock(const CHold& hold, bool keep) except +raise_in_python
        bool give_back_idle(uint64_t start) except +raise_in_python
        bool holds(const CHold& hold) noexcept
        uint64_t serial_at(uint64_t ptr) noexcept
        uint64_t half_unlocked_at(uint64_t ptr) noexcept
        void register_pinned(uint64_t ptr, uint64_t size, uint64_t device_ptr) except +raise_in_python
        void unregister(uint64_t ptr) except +raise_in_python
        optional[CRegion] find(uint64_t ptr, uint64_t size) noexcept
        optional[CHold] try_lock(uint64_t ptr, uint64_t size, Coherence wanted) noexcept
        bool try_unlock(uint64_t ptr) noexcept
        bool try_unlock(const CHold& hold, bool keep) noexcept
        bool any_invalidated() noexcept
        void drain_invalidations() except +raise_in_python
        vector[CRegion] refresh() except +raise_in_python
        bool has_idle() noexcept
        bool has_any(uint64_t ptr, uint64_t size) except +raise_in_python
        uint64_t changes() noexcept
        bool changed_since(uint64_t changes, uint64_t ptr, uint64_t size) except +raise_in_python
        bool is_changing(uint64_t ptr, uint64_t size) except +raise_in_python
        void await_changes(uint64_t ptr, uint64_t size) except +raise_in_python
        size_t size() noexcept
        optional[CRegion] find_registered(uint64_t ptr, uint64_t size) noexcept
        vector[CRegion] regions(bool idle_too) except +raise_in_python
        vector[CRegion] overlapping(uint64_t ptr, uint64_t size, bool idle_too) except +raise_in_python
        void clear(bool wait) except +raise_in_python
        void remove_registrar(PythonRegistrar& registrar, bool wait) except +raise_in_python

    cppclass MappedLocks "pinning::MappedLocks":
        MappedLocks(CPinnedMap& map) except +
        optional[uint64_t] lock_mapped(
            uint64_t ptr, uint64_t size, LockMapped policy, LockOptions options, uint64_t piece
        ) except +raise_in_python
        void unlock_unmapped(uint64_t ptr) except +raise_in_python

    void destroy(MappedLocks* mapped, CPinnedMap* map) noexcept


cdef extern from "<pinning/python_registrar.hpp>" namespace "pinning" nogil:
    PythonRegistrar* add_registrar(CPinnedMap& map, PyObject* registrar, uint64_t piece) except +raise_in_python


cdef extern from "<pinning/paced_pieces.hpp>" namespace "pinning" nogil:
    cppclass Nanoseconds "std::chrono::nanoseconds":
        Nanoseconds(long long count)

    cppclass PacedPieces "pinning::PacedPieces"(Pieces):
        PacedPieces(uint64_t unit, uint64_t largest, Nanoseconds longest) except +
        void bring_in(uint64_t bytes) noexcept
        void end() noexcept
        void finish(uint64_t held) noexcept
        uint64_t held() noexcept
        void wait(uint64_t bytes, double seconds) except +


cdef extern from "<pinning/shared_map.hpp>" namespace "pinning" nogil:
    cppclass SharedMap "pinning_map":
        Locker locker
        CPinnedMap* map
        MappedLocks* mapped

    SharedMap& shared_map(VendorDevice& device) except +raise_in_python

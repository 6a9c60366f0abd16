# SPDX-License-Identifier: Apache-2.0
"""The C++ pinned map, for Cython. Compile with the folders of ``pinning.include_dirs()``."""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t, uint64_t
from libcpp cimport bool
from libcpp.optional cimport optional
from libcpp.vector cimport vector


cdef extern from "<pinning/python_locker.hpp>" namespace "pinning" nogil:
    void raise_in_python()

    int device_calls

    enum class Access "pinning::Access":
        unknown
        writable
        read_only

    cppclass CRegion "pinning::Region":
        uint64_t start
        uint64_t size
        uint64_t device_ptr
        uint64_t piece
        uint32_t references
        bool external

    cppclass CLocker "pinning::Locker":
        pass

    cppclass PythonLocker(CLocker):
        PythonLocker(PyObject* device, PyObject* already_pinned_error) except +

    cppclass CPinnedMap "pinning::PinnedMap":
        CPinnedMap(CLocker& locker) except +
        uint64_t lock(uint64_t ptr, uint64_t size, Access access, uint64_t piece) except +raise_in_python
        void unlock(uint64_t ptr) except +raise_in_python
        void register_pinned(uint64_t ptr, uint64_t size, uint64_t device_ptr) except +raise_in_python
        void unregister(uint64_t ptr) except +raise_in_python
        optional[CRegion] find(uint64_t ptr, uint64_t size) noexcept
        optional[uint64_t] try_lock(uint64_t ptr, uint64_t size) except +raise_in_python
        bool try_unlock(uint64_t ptr) except +raise_in_python
        size_t size() noexcept
        vector[CRegion] regions() except +raise_in_python
        void clear(bool wait) except +raise_in_python

    void destroy(CPinnedMap* map, PythonLocker* locker) noexcept

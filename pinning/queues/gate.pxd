# SPDX-License-Identifier: Apache-2.0
"""The C++ gate, for Cython. Compile with the folders of ``pinning.include_dirs()``."""

from libcpp cimport bool


cdef extern from "<pinning/gate.hpp>" namespace "pinning" nogil:
    cppclass CGate "pinning::Gate":
        CGate() except +
        void open() noexcept
        bool is_open() noexcept
        @staticmethod
        void pass_through "pass" (void* gate) noexcept


cdef class Gate:
    cdef CGate* gate


cdef class Turn:
    cdef object __weakref__
    cdef object python
    cdef object event  # weakly

# SPDX-License-Identifier: Apache-2.0

cdef extern from "<pinning/process.hpp>" namespace "pinning" nogil:
    unsigned generation() noexcept  # the number of this process
    bint is_parents(unsigned made_in) noexcept  # whether what has this number belongs to a parent


cpdef object keep_for_ever(object thing)

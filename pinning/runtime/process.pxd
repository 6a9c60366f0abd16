# SPDX-License-Identifier: Apache-2.0

cdef extern from "<pinning/generation.hpp>" namespace "pinning" nogil:
    # Number of forks between the process that loaded libpinning and this one: what another generation made belongs to a
    # parent.
    unsigned generation() noexcept


cpdef object keep_for_ever(object thing)

# SPDX-License-Identifier: Apache-2.0

cdef extern from "<pinning/generation.hpp>" namespace "pinning" nogil:
    # How many forks lie between the process that loaded libpinning and this one: what was made in another generation is a
    # parent's.
    unsigned generation() noexcept

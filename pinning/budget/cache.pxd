# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t

from pinning.map.pinned_map cimport PinnedMap


# Whether the region of a lock is to be cached by its last unlock, its memory being a buffer's: then it stays where it is
# from now on until the region is gone.
cdef bint keep_owner(PinnedMap pinned_map, uint64_t ptr, object buffer) except -1
cdef watch()  # by the service thread, as long as anything is cached

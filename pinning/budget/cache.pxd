# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t

from pinning.map.pinned_map cimport PinnedMap


# Whether the last unlock of the region at `ptr` is to cache it. If so, `buffer`'s memory is kept in place from now on,
# until the region is gone.
cdef bint keep_owner(PinnedMap pinned_map, uint64_t ptr, object buffer) except -1
cdef watch()  # has the service thread check the cache as long as it is not empty

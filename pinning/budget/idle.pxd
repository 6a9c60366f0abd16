# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint64_t

from pinning.map.pinned_map cimport PinnedMap


# Whether the region of a lock that an owner's memory has is to be kept idle by its last unlock: its memory stays where it
# is from now on until the region is gone.
cdef bint keeps(PinnedMap on, uint64_t ptr, object owner) except -1

# SPDX-License-Identifier: Apache-2.0
"""The common copies, recognised at once: between an allocation on a device and a buffer."""

from pinning.copies.costs import Costs
from pinning.map import PinnedMap
from pinning.memory import Allocation
from pinning.plugin import VendorQueue

class WholeCopy:
    """Submits one copy when it is called, and keeps both ends' memory while it lives.

    Attributes
    ----------
    locked : bool
        Whether the buffer is locked; if not, the vendor's own copy of pageable memory is the way.
    """

    allocation: Allocation
    locked: bool
    def __call__(self, queue: VendorQueue) -> None: ...

def whole_copy(dst: object, src: object, on: PinnedMap, costs: Costs) -> WholeCopy | None:
    """All of an allocation of kind DEVICE and all of a buffer that one lock holds whole, or no lock and no other path.

    None for all other copies. It decides nothing that `plan` would not: it is for the time that the general way takes.
    """

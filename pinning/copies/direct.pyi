# SPDX-License-Identifier: Apache-2.0
"""The common copy, recognised at once: between an allocation on a device and a locked buffer."""

from pinning.map import PinnedMap
from pinning.memory import Allocation
from pinning.plugin import VendorQueue

class DirectCopy:
    """Submits one copy when it is called, and keeps both ends' memory while it lives."""

    allocation: Allocation
    def __call__(self, queue: VendorQueue) -> None: ...

def direct(dst: object, src: object, on: PinnedMap) -> DirectCopy | None:
    """All of an allocation of kind DEVICE and all of a buffer that one lock in `on` holds whole; else None.

    It decides nothing that `plan` would not: it is for those few hundred nanoseconds that the general way takes.
    """

# SPDX-License-Identifier: Apache-2.0
"""The parts of a batch: sorted by the path that each takes, and submitted, natively."""

from typing import Any, NamedTuple

from pinning.copies.costs import Costs
from pinning.map import PinnedMap
from pinning.plugin import VendorQueue
from pinning.plugin.native import NativeDevice

class KernelLimits(NamedTuple):
    from_items: int
    to_bytes: int

def default_limits() -> KernelLimits:
    """From how many items on, and to how many bytes of one, a kernel moves them."""

class BatchWork:
    """Work for a queue. Until it is collected it holds the locks of all locked memory that it copies.

    Parameters
    ----------
    device : NativeDevice
    on : PinnedMap
        Of the same device.
    dsts, srcs : array of uint64
        Addresses, one of each for an item, and at least one.
    sizes : array of uint64
        Bytes of each item, or of all of them.
    engine : {"auto", "copy", "kernel"}
    has_kernel : bool
        Whether its queue moves parts.
    costs : Costs

    Raises
    ------
    InvalidRangeError
        An item is empty, no range, or runs out of the device's memory; the message names it.
    PinningError
        A kernel is asked for, and there is none.
    VendorError
        The vendor refused to say whose memory an address is.
    """

    def __init__(
        self,
        device: NativeDevice,
        on: PinnedMap,
        dsts: Any,
        srcs: Any,
        sizes: Any,
        engine: str,
        has_kernel: bool,
        costs: Costs,
    ) -> None: ...
    @property
    def written(self) -> tuple[int, int]:
        """The start and the size of a range in which all destinations lie."""

    @property
    def counts(self) -> dict[str, int]:
        """How many parts go by ``"kernel"``, by ``"engine"``, ``"to_device"`` and ``"to_host"`` from and into pageable
        memory, and ``"on_host"``."""

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each of these."""

    @property
    def plain(self) -> int:
        """How many parts of pageable memory the vendor has copied itself, because there was no ring for them, or one
        small part."""

    def __call__(self, queue: VendorQueue) -> None:
        """Submit all parts. After an error what was submitted before is over."""

# SPDX-License-Identifier: Apache-2.0
"""The parts of a batch: sorted by the path that each takes, and submitted, natively."""

from typing import Any

from pinning.copies.costs import Costs
from pinning.map import PinnedMap
from pinning.plugin import VendorQueue
from pinning.plugin.native import NativeDevice

class DeviceLists:
    """Where a device reads the lists of parts that its kernel moves."""

    def __init__(self, device: NativeDevice) -> None: ...
    def trim(self) -> int:
        """Give back the memory that no batch uses, rings too; returns how many bytes."""

    def forget(self) -> None:
        """In a child process after fork: all of it is the parent's."""

class BatchWork:
    """Work for `Queue.submit`. Until it is collected it holds the locks of all locked memory that it copies.

    Parameters
    ----------
    lists : DeviceLists
    on : PinnedMap
        Of the same device.
    dsts, srcs : array of uint64
        Addresses, one of each for an item.
    sizes : array of uint64
        Bytes of each item, or of all of them.
    kernel : bool
        Whether a kernel may move small items.
    costs : Costs

    Raises
    ------
    InvalidRangeError
        An item is empty, no range, or runs out of the device's memory; the message names it.
    VendorError
        The vendor refused to say whose memory an address is.
    """

    def __init__(
        self,
        lists: DeviceLists,
        on: PinnedMap,
        dsts: Any,
        srcs: Any,
        sizes: Any,
        kernel: bool,
        costs: Costs,
    ) -> None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def counts(self) -> dict[str, int]:
        """How many parts go by ``"kernel"``, by ``"engine"``, ``"to_device"`` and ``"to_host"`` from and into pageable
        memory, and ``"on_host"``."""

    def __call__(self, queue: VendorQueue) -> None:
        """Submit all parts. After an error what was submitted before is over."""

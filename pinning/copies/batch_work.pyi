# SPDX-License-Identifier: Apache-2.0
from typing import Any, NamedTuple

from pinning.copies.costs import Costs
from pinning.map.pinned_map import PinnedMap
from pinning.plugin import MemoryDevice, VendorQueue

class KernelLimits(NamedTuple):
    from_items: int
    to_bytes: int

def default_limits() -> KernelLimits: ...

class BatchWork:
    def __init__(
        self,
        device: MemoryDevice,
        on: PinnedMap,
        dsts: Any,
        srcs: Any,
        sizes: Any,
        engine: str,
        has_kernel: bool,
        costs: Costs,
    ) -> None: ...
    @property
    def written(self) -> tuple[int, int]: ...
    @property
    def counts(self) -> dict[str, int]: ...
    @property
    def sizes(self) -> dict[str, int]: ...
    @property
    def is_direct(self) -> bool: ...
    @property
    def plain(self) -> int: ...
    def __call__(self, queue: VendorQueue) -> None: ...

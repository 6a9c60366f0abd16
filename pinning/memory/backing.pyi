# SPDX-License-Identifier: Apache-2.0
from pinning.memory.allocation import Allocation
from pinning.plugin import Device, MemoryDevice, MemoryKind

class Backing:
    """Devices that own memory together, and what they have allocated: what a `Context` is made of."""

    def __init__(self, devices: tuple[MemoryDevice, ...]) -> None: ...
    @property
    def devices(self) -> tuple[MemoryDevice, ...]: ...
    @property
    def closed(self) -> bool: ...
    def allocate(
        self, device: Device, nbytes: int, kind: MemoryKind, alignment: int | None = None, write_combined: bool = False
    ) -> Allocation:
        """Allocate on one of these devices; see `pinning.alloc`."""

    def close(self) -> None:
        """Allocate nothing any more.

        Raises
        ------
        StillInUseError
            Something is still allocated, or being allocated.
        """

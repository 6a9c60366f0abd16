# SPDX-License-Identifier: Apache-2.0
from typing import Any

import numpy
from numpy.typing import DTypeLike, NDArray

from pinning.arena.arena import Arena
from pinning.arena.memory import Memory
from pinning.memory import Allocation
from pinning.plugin import Device

class Space:
    """The bytes of an arena, and who has been given which."""

    def _begin(self, memory: Memory, nbytes: int, unit: int) -> None: ...
    def _give(self, offset: int, nbytes: int) -> None:
        """Have bytes allocated from; nothing happens the second time."""

    def _take(self, size: int, alignment: int | None, device: Device) -> ArenaAllocation | None: ...
    def _claim(self) -> None:
        """Have nothing begin any more; raises StillInUseError."""

    def _unclaim(self) -> None: ...
    def _check(self) -> None: ...
    @property
    def _own(self) -> bool:
        """Whether this is the process that made it."""

    @property
    def nbytes(self) -> int:
        """Bytes, exactly as asked for."""

    @property
    def ptr(self) -> int:
        """The host's address of the first byte."""

    @property
    def allocated(self) -> int:
        """Bytes that allocations have."""

    @property
    def available(self) -> int:
        """Bytes that are left for allocations."""

    @property
    def largest_available(self) -> int:
        """Bytes of the largest stretch that is left."""

    def asarray(
        self, shape: int | tuple[int, ...] | None = None, dtype: DTypeLike = "u1", offset: int = 0
    ) -> NDArray[Any]:
        """Its bytes as an array, without a copy. As long as that lives the arena cannot be closed.

        Parameters
        ----------
        shape : int or tuple of int, optional
            In elements; all that there are by default.
        dtype : dtype, optional
            Of an element, bytes by default.
        offset : int, optional
            Of the first element, in bytes.

        Raises
        ------
        InvalidRangeError
            There is not so much, or it is closed.
        """

    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(self, **how: Any) -> Any: ...

class ArenaAllocation(Allocation):
    """Some of an arena's bytes, had by `Arena.allocate`. It is HOST memory, and freed by the rules of `pinning.alloc`.

    Attributes
    ----------
    arena : Arena
        Whose bytes they are; it cannot be closed before this is freed.
    """

    @property
    def arena(self) -> Arena: ...
    @property
    def device_ptr(self) -> int:
        """The first byte's address for `device`. Waits until it is locked; raises what `Arena.device_ptr_of` does."""

    def asarray(
        self, shape: int | tuple[int, ...] | None = None, dtype: DTypeLike = "u1", offset: int = 0
    ) -> NDArray[numpy.generic]:
        """Its bytes as an array, without a copy; see `Arena.asarray`. As long as that lives this cannot be freed."""

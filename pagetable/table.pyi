# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from typing import Any, SupportsIndex

import numpy
from numpy.typing import ArrayLike, NDArray

class Region:
    """The half-open byte range ``[start, end)`` of one region.

    Attributes
    ----------
    start : int
        The first byte's address.
    size : int
        Bytes.
    end : int
        One past the last byte's address, up to 2**64.
    id : int
        Small, unique among the regions in the table, used again after the region is removed.
    """

    def __init__(self, start: int, size: int, id: int) -> None: ...
    @property
    def start(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def id(self) -> int: ...
    def __hash__(self) -> int: ...

class PageTable:
    """Which region holds an address: disjoint half-open byte ranges of any alignment, anywhere below 2**64.

    Lookups take no lock and may run in any number of threads while others insert and remove; each is answered as of
    one instant. Insertions and removals take turns.

    Parameters
    ----------
    flat : bool
        False does without the table's large reservations of address space (128 GiB, none of it memory), as happens by
        itself where the system refuses them. Lookups are then slower.
    """

    def __init__(self, *, flat: bool = True) -> None: ...
    def insert(self, start: int, size: int) -> Region:
        """Add ``[start, start + size)`` (bytes).

        Raises
        ------
        OverlapError
            Any of its bytes is taken; nothing was changed.
        RangeError
            `size` is 0, or the range is not inside ``[0, 2**64)``.
        """

    def remove(self, region: Region | SupportsIndex) -> None:
        """Take out a region, given by itself or by its first address.

        Raises
        ------
        AbsentError
            It is not in the table (a KeyError).
        """

    def find(self, address: SupportsIndex) -> Region | None:
        """The region that holds the byte at `address`."""

    def find_range(self, start: SupportsIndex, size: SupportsIndex) -> Region | None:
        """The region that holds every byte of ``[start, start + size)``; None when `size` is 0."""

    def __contains__(self, address: SupportsIndex) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Region]:
        """All regions in ascending order, as of the call."""

    def overlapping(self, start: int, size: int) -> list[Region]:
        """Every region that shares a byte with ``[start, start + size)``, ascending."""

    def contains_many(self, addresses: ArrayLike, sizes: ArrayLike | None = None) -> NDArray[numpy.bool_]:
        """For each address, whether a region holds it: all of its `sizes` bytes where given. Runs without the GIL.

        Parameters
        ----------
        addresses : array_like of int, shape (n,)
            uint64 without a copy.
        sizes : array_like of int, shape (n,) or (), optional
            Bytes.
        """

    def find_many(self, addresses: ArrayLike) -> NDArray[numpy.int64]:
        """For each address the id of the region that holds it, or -1; shape (n,). Runs without the GIL."""

    def __reduce__(self) -> Any: ...

# SPDX-License-Identifier: Apache-2.0
"""The memory mappings of this process, from /proc/self/maps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Mapping(NamedTuple):
    """A line of /proc/self/maps. `file` is empty, and `inode` 0, for anonymous memory."""

    start: int
    end: int
    access: bytes  # such as b"rw-p"
    offset: int  # of the first byte in the file
    inode: int
    file: str


def mappings(start: int, end: int) -> Iterator[Mapping]:
    """The mappings that overlap a range, ascending. Raises OSError if there is no /proc or no free descriptor."""
    with Path("/proc/self/maps").open("rb") as maps:
        for line in maps:
            addresses, access, offset, _, inode, *file = line.split(maxsplit=5)
            low, high = (int(address, 16) for address in addresses.split(b"-"))
            if low >= end:
                return
            if high > start:
                name = os.fsdecode(file[0].strip()) if file else ""
                yield Mapping(low, high, access, int(offset, 16), int(inode), name)

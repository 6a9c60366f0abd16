# SPDX-License-Identifier: Apache-2.0
"""The exceptions of a page table."""

from __future__ import annotations


class RangeError(ValueError):
    """A range of size 0, or one that runs past 2**64."""


class OverlapError(ValueError):
    """A range that shares bytes with a region already in the table; nothing was changed."""


class AbsentError(KeyError):
    """The region is not in the table."""

    def __str__(self) -> str:  # KeyError would quote the message
        return str(self.args[0])

# SPDX-License-Identifier: Apache-2.0
"""What callers give, where it is not what it should be."""

from __future__ import annotations

import operator
from typing import SupportsIndex


def said(value: object) -> str:
    """A value as an error tells it: in full where that is short."""
    return repr(value) if isinstance(value, (str, bytes, int, float, type(None))) else f"a {type(value).__name__}"


def integer(value: SupportsIndex, name: str, what: str = "the number of bytes") -> int:
    """An integer of any type.

    Raises
    ------
    TypeError
        It is none; a float neither, even if it is whole.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {said(value)}; it must be an integer, {what}") from None

# SPDX-License-Identifier: Apache-2.0
"""Handles: objects that own something, of which there must be one owner."""

from __future__ import annotations

from typing import NoReturn


def refuse_copy(handle: object, instead: str) -> NoReturn:
    """Raise the TypeError of `copy` and `pickle` for a handle: call it in ``__reduce__``, which both of them use.

    Parameters
    ----------
    handle : object
        What is to be copied.
    instead : str
        What to do instead.
    """
    raise TypeError(f"{handle!r} can be neither copied nor pickled: {instead}")

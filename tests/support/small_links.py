# SPDX-License-Identifier: Apache-2.0
"""Copies over several links at an eighth of the usual sizes, which show the same in an eighth of the time."""

from __future__ import annotations

from collections.abc import Callable

from pinning.copies import costs, links
from pinning.files import copy, divided, load

PARTS = 8
MIB = (1 << 20) // PARTS
SIZES: list[tuple[object, str]] = [
    *((costs, name) for name in ("chunk_bytes", "ring_bytes", "stage_to_device", "stage_to_host")),
    *((links, name) for name in ("MIB", "LEAST_SHARE", "HEAD_START", "ROUND", "POOL_BYTES")),
    *((module, "DIVIDED_FROM") for module in (links, copy, load)),
    *((module, "LARGEST_BLOCK") for module in (links, divided, load)),
]
SMALL = [(owner, name, getattr(owner, name) // PARTS) for owner, name in SIZES]


def shrink(set_to: Callable[[object, str, int], None] = setattr) -> None:
    for size in SMALL:
        set_to(*size)

# SPDX-License-Identifier: Apache-2.0
"""Numbers of bytes as text."""

from __future__ import annotations


def size(count: int) -> str:
    """Bytes: ``1 GiB``, ``1.5 MiB``, ``100 B``."""
    if count < 1 << 10:
        return f"{count} B"
    unit = min((count.bit_length() - 1) // 10, 6)
    value = count / (1 << 10 * unit)
    return f"{value:.{0 if value == int(value) or value >= 100 else 1}f} {'KMGTPE'[unit - 1]}iB"


def exact_size(count: int) -> str:
    """The exact number of bytes, followed by `size` in parentheses from 1 KiB on."""
    return f"{count} bytes" if count < 1 << 10 else f"{count} bytes ({size(count)})"

# SPDX-License-Identifier: Apache-2.0
"""Figures in readable units."""

from __future__ import annotations

from pinning.runtime.units import size as size


def duration(seconds: float) -> str:
    """Seconds, with three digits: ``12.3 ms``."""
    for scale, unit in ((1e-9, "ns"), (1e-6, "us"), (1e-3, "ms")):
        if seconds < 999.5 * scale:
            return f"{_three_digits(seconds / scale)} {unit}"
    return f"{_three_digits(seconds)} s"


def rate(count: int, seconds: float) -> str:
    """A rate in GB/s, in powers of ten as vendors count: ``55.3 GB/s``."""
    return f"{_three_digits(count / seconds / 1e9)} GB/s"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"

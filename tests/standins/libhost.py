# SPDX-License-Identifier: Apache-2.0
"""The stand-in for mlock and munlock; host/mlock.c says what it does."""

from __future__ import annotations

from pathlib import Path

from standins.standin import Driver


def includes() -> list[Path]:
    """None but the C library's own."""
    return []


DRIVER = Driver(
    "libmlock.so", "host/mlock.c", "STANDIN_HOST", includes, variables={"LD_PRELOAD": "{folder}/libmlock.so"}
)

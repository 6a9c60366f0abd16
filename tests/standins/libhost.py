# SPDX-License-Identifier: Apache-2.0
"""The stand-in for mlock and munlock; host/mlock.c says what it does."""

from __future__ import annotations

import re
from pathlib import Path

from standins.faults import StandInFaults
from standins.standin import Driver


def includes() -> list[Path]:
    """None but the C library's own."""
    return []


def left() -> str:
    """How much the kernel has locked for this process."""
    (line,) = re.findall(r"VmLck:\s+(.*)", Path("/proc/self/status").read_text())
    return str(line)


DRIVER = Driver(
    "libmlock.so", "host/mlock.c", "STANDIN_HOST", includes, variables={"LD_PRELOAD": "{folder}/libmlock.so"}
)
FAULTS = StandInFaults(DRIVER, (11, "EAGAIN"), left)

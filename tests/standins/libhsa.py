# SPDX-License-Identifier: Apache-2.0
"""The stand-in for the HSA runtime, libhsa-runtime64.so.1; hsa/libhsa_runtime64.c says what it does."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from standins.faults import StandInFaults
from standins.standin import Driver, MissingError


def includes() -> list[Path]:
    """The folder above the installed hsa/hsa_ext_amd.h: Debian's, or ROCm's own."""
    for folder in (Path("/usr/include"), Path(os.environ.get("ROCM_PATH") or "/opt/rocm") / "include"):
        if (folder / "hsa" / "hsa_ext_amd.h").is_file():
            return [folder]
    raise MissingError("the stand-in libhsa-runtime64 needs hsa/hsa_ext_amd.h: apt-get install libhsa-runtime-dev")


DRIVER = Driver("libhsa-runtime64.so.1", "hsa/libhsa_runtime64.c", "STANDIN_HSA", includes)
live = partial(DRIVER.live, "signals", "allocations")
left = partial(DRIVER.live, "allocations")  # queues keep signals, to use them again

# A signal is destroyed after the work, a wait returns no code, and rows are copied one by one if a rectangle fails.
FORGIVEN = {"hsa_signal_destroy", "hsa_signal_wait_scacquire", "hsa_amd_memory_async_copy_rect"}
FAULTS = StandInFaults(DRIVER, (0x1008, "HSA_STATUS_ERROR_OUT_OF_RESOURCES"), left, FORGIVEN)

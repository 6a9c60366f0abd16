# SPDX-License-Identifier: Apache-2.0
"""The stand-in for the loader of Unified Runtime, libur_loader.so.0; ur/libur_loader.c says what it does."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from standins.faults import StandInFaults
from standins.standin import Driver, MissingError


def includes() -> list[Path]:
    """The folder above the unified-runtime/ur_api.h that intel-sycl-rt installs, if it can register host memory."""
    folder = Path(sys.prefix) / "include"
    header = folder / "unified-runtime" / "ur_api.h"
    if header.is_file() and "urUSMHostAllocRegisterExp" in header.read_text():
        return [folder]
    # Its dependencies would replace the last intel-cmplr-lib-ur that has an OpenCL adapter.
    raise MissingError("the stand-in libur_loader needs ur_api.h: pip install --no-deps 'intel-sycl-rt>=2026.2'")


DRIVER = Driver("libur_loader.so.0", "ur/libur_loader.c", "STANDIN_UR", includes)
live = partial(DRIVER.live, "streams", "events", "allocations")
left = partial(DRIVER.live, "streams", "allocations")  # events are released when they are collected
OLD_DRIVER = Driver("libur_loader.so.0", "ur/libur_loader.c", "STANDIN_UR", includes, options=["-DOLD"])
FAULTS = StandInFaults(DRIVER, (20, "UR_RESULT_ERROR_DEVICE_LOST"), left)

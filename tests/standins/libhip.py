# SPDX-License-Identifier: Apache-2.0
"""The stand-in for the HIP runtime, libamdhip64.so; hip/libamdhip64.c says what it does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from standins.faults import StandInFaults
from standins.standin import Driver, MissingError


def includes() -> list[Path]:
    """The folder above the installed hip/hip_runtime_api.h: Debian's, or ROCm's own."""
    for folder in (Path("/usr/include"), Path(os.environ.get("ROCM_PATH") or "/opt/rocm") / "include"):
        if (folder / "hip" / "hip_runtime_api.h").is_file():
            return [folder]
    raise MissingError("the stand-in libamdhip64 needs hip/hip_runtime_api.h: apt-get install libamdhip64-dev")


# hip-python from release 10 on looks in $ROCM_PATH/lib, or in /opt/rocm/lib if that is unset, before it uses the
# loader's search. The folder of the stand-in has no lib.
DRIVER = Driver(
    "libamdhip64.so",
    "hip/libamdhip64.c",
    "STANDIN_HIP",
    includes,
    options=["-D__HIP_PLATFORM_AMD__"],
    variables={"ROCM_PATH": "{folder}"},
)
live = partial(DRIVER.live, "streams", "events", "allocations")
left = partial(DRIVER.live, "streams", "allocations")  # events are kept, to be recorded again


@contextmanager
def current(index: int) -> Iterator[Callable[[], bool]]:
    """Make a device current, as another library does; yields whether it still is."""
    from hip import hip

    hip.hipSetDevice(index)
    yield lambda: bool(hip.hipGetDevice()[1] == index)
    hip.hipSetDevice(0)


def _restore(failed: str) -> None:
    """Make another device current, so that calls must set theirs and set it back; only a failure of that is excused."""
    from hip import hip

    assert failed in ("", "hipSetDevice 2") or hip.hipGetDevice()[1] == 2, f"{failed} failed: device was not set back"
    hip.hipSetDevice(2)


# Setting the thread's device back, and clearing an error that was handled.
FORGIVEN = {"hipSetDevice", "hipGetLastError"}
FAULTS = StandInFaults(DRIVER, (999, "hipErrorUnknown"), left, FORGIVEN, _restore)

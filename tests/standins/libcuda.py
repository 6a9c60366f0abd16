# SPDX-License-Identifier: Apache-2.0
"""The stand-in for the NVIDIA driver, libcuda.so.1; cuda/libcuda.c says what it does."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from standins.faults import StandInFaults
from standins.standin import Driver, MissingError


def includes() -> list[Path]:
    """The folder of cuda.h in the installed nvidia-cuda-runtime, under any name of that distribution."""
    for distribution in importlib.metadata.distributions():
        if distribution.name.startswith("nvidia-cuda-runtime"):
            for file in distribution.files or []:
                if file.name == "cuda.h":
                    return [Path(str(distribution.locate_file(file))).parent]
    raise MissingError("the stand-in libcuda needs cuda.h: pip install nvidia-cuda-runtime")


DRIVER = Driver("libcuda.so.1", "cuda/libcuda.c", "STANDIN_CUDA", includes)
live = partial(DRIVER.live, "streams", "events", "allocations")
left = partial(DRIVER.live, "streams", "allocations")  # events are kept, to be recorded again


@contextmanager
def current(index: int) -> Iterator[Callable[[], bool]]:
    """Make a device's context current, as another library does; yields whether it still is."""
    from cuda.bindings import driver as cuda

    (_, theirs) = cuda.cuDevicePrimaryCtxRetain(index)
    cuda.cuCtxPushCurrent(theirs)
    yield lambda: int(cuda.cuCtxGetCurrent()[1]) == int(theirs)
    cuda.cuCtxPopCurrent()
    cuda.cuDevicePrimaryCtxRelease(index)


def _restore(failed: str) -> None:
    """Check that no context is current, except after a pop that has failed, and pop it then."""
    from cuda.bindings import driver as cuda

    while int(cuda.cuCtxGetCurrent()[1]):
        assert failed.startswith("cuCtxPopCurrent"), f"a context was left current when {failed} failed"
        cuda.cuCtxPopCurrent()


# If it is unknown which context is current, one is pushed; and a pop may report an earlier failure of other work.
FORGIVEN = {"cuCtxGetCurrent", "cuCtxPopCurrent"}
FAULTS = StandInFaults(DRIVER, (999, "CUDA_ERROR_UNKNOWN"), left, FORGIVEN, _restore)

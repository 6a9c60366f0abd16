# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: all that this process receives lies in locked memory, however small it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import distributed.protocol.utils_test
import numpy

import pinning.dask


def get_host_array(array: Any) -> Any:
    """The owner of an array's memory; theirs knows only memory of NumPy and Python."""
    while True:
        base = array.obj if isinstance(array, memoryview) else array.base
        if not isinstance(base, memoryview | numpy.ndarray):
            return array if base is None or isinstance(base, pinning.dask._Frame) else base
        array = base


distributed.protocol.utils_test.get_host_array = get_host_array
worker = SimpleNamespace(metrics={})
pinning.dask.LockedFrames(64 << 20, "host:0", smallest=1).setup(worker)
assert "locked_bytes" in worker.metrics

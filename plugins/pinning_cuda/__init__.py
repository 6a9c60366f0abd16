# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs, by the CUDA driver: ``native/vendors/cuda``. Importing this module does not load the driver."""

from __future__ import annotations

from pathlib import Path

from pinning.plugin import AutomaticLocking
from pinning.plugin.native import NativeDevice
from pinning.plugin.native_plugin import NativePlugin

__all__ = ["CudaDevice", "plugin"]


class CudaDevice(NativeDevice, AutomaticLocking):
    """A GPU, by its index in the driver's order."""


def _hardware() -> str | None:
    return "an NVIDIA GPU" if any(Path("/dev").glob("nvidia[0-9]*")) else None


plugin = NativePlugin("cuda", CudaDevice, _hardware)

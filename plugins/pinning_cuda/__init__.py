# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs: memory locked through the CUDA driver. Importing this needs neither the driver nor cuda-bindings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pinning.errors import PluginUnavailableError
from pinning.plugin import Library
from pinning_cuda.device import CudaDevice
from pinning_cuda.driver import call, initialise
from pinning_cuda.installation import version_warnings

__all__ = ["CudaDevice", "plugin"]


class CudaPlugin:
    """The `pinning.plugin.Plugin` and `DescribedPlugin` of the CUDA driver."""

    name = "cuda"

    def __init__(self) -> None:
        self._devices: dict[int, CudaDevice] = {}

    def __repr__(self) -> str:
        return f"<plugin {self.name}>"

    def device_count(self) -> int:
        """Number of GPUs that this process may use, at least 1.

        Raises
        ------
        PluginUnavailableError
            cuda-bindings, the driver or a GPU is missing, or this process is a fork of one that uses CUDA.
        """
        initialise()
        (count,) = call("cuDeviceGetCount")
        return int(count)

    def device(self, index: int) -> CudaDevice:
        """The GPU `index`, in the driver's order; the same object each time.

        Raises
        ------
        PluginUnavailableError
            As `device_count`, or there is no such GPU.
        """
        count = self.device_count()
        if not 0 <= index < count:
            raise PluginUnavailableError(f"there is no cuda:{index}: this process sees {count}, from cuda:0 on")
        if index not in self._devices:
            self._devices.setdefault(index, CudaDevice(f"cuda:{index}", index))
        return self._devices[index]

    def hardware(self) -> str | None:
        """An NVIDIA GPU, where the kernel has given this process's machine or container the file of one."""
        return "an NVIDIA GPU" if any(Path("/dev").glob("nvidia[0-9]*")) else None

    def library(self) -> Library:
        """The driver, with the version of CUDA that it is for.

        Raises
        ------
        PluginUnavailableError
            As `device_count`.
        """
        initialise()
        (version,) = call("cuDriverGetVersion")
        return Library("libcuda.so.1", f"{version // 1000}.{version % 1000 // 10}")

    def warnings(self) -> Sequence[str]:
        """That the bindings are made for a newer driver, if so."""
        return version_warnings(self.library)


plugin = CudaPlugin()

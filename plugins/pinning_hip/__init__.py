# SPDX-License-Identifier: Apache-2.0
"""AMD GPUs: memory locked through the HIP runtime. Importing this needs neither the runtime nor hip-python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pinning.errors import PluginUnavailableError
from pinning.plugin import Library
from pinning_hip import installation
from pinning_hip.device import HipDevice
from pinning_hip.driver import LIBRARY, call, initialise, load

__all__ = ["HipDevice", "plugin"]


class HipPlugin:
    """The `pinning.plugin.Plugin` and `DescribedPlugin` of the HIP runtime."""

    name = "hip"

    def __init__(self) -> None:
        self._devices: dict[int, HipDevice] = {}

    def __repr__(self) -> str:
        return f"<plugin {self.name}>"

    def device_count(self) -> int:
        """Number of GPUs that this process may use, at least 1.

        Raises
        ------
        PluginUnavailableError
            hip-python, the runtime or a GPU is missing, or this process is a fork of one that uses HIP.
        """
        return initialise()

    def device(self, index: int) -> HipDevice:
        """The GPU `index`, in the runtime's order; the same object each time.

        Raises
        ------
        PluginUnavailableError
            As `device_count`, or there is no such GPU.
        """
        count = self.device_count()
        if not 0 <= index < count:
            raise PluginUnavailableError(f"there is no hip:{index}: this process sees {count}, from hip:0 on")
        if index not in self._devices:
            self._devices.setdefault(index, HipDevice(f"hip:{index}", index))
        return self._devices[index]

    def hardware(self) -> str | None:
        """An AMD GPU, where the kernel has given this machine or container the file that ROCm opens."""
        return "an AMD GPU" if Path("/dev/kfd").exists() else None

    def library(self) -> Library:
        """The runtime and its version, which is that of HIP and not of ROCm. It needs no GPU.

        Raises
        ------
        PluginUnavailableError
            hip-python or the runtime is missing, or this process is a fork of one that uses HIP.
        """
        load()
        (version,) = call("hipRuntimeGetVersion")
        return Library(LIBRARY, f"{version // 10_000_000}.{version // 100_000 % 100}.{version % 100_000}")

    def warnings(self) -> Sequence[str]:
        """That hip-python-interop is installed, if so."""
        return installation.warnings()


plugin = HipPlugin()

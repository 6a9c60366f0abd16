# SPDX-License-Identifier: Apache-2.0
"""AMD GPUs: memory locked through the HSA runtime. Importing this needs nothing of ROCm."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from pinning.errors import PluginUnavailableError
from pinning.plugin import Library
from pinning_hsa import abi
from pinning_hsa.device import HsaDevice
from pinning_hsa.driver import LIBRARY, call, loaded_copies

__all__ = ["HsaDevice", "plugin"]


class HsaPlugin:
    """The `pinning.plugin.Plugin` and `DescribedPlugin` of the HSA runtime."""

    name = "hsa"

    def __init__(self) -> None:
        self._devices: list[HsaDevice] = []
        self._mutex = threading.Lock()

    def __repr__(self) -> str:
        return f"<plugin {self.name}>"

    def device_count(self) -> int:
        """Number of GPUs that this process may use, at least 1.

        Raises
        ------
        PluginUnavailableError
            The runtime, the kernel driver or a GPU is missing, or this process is a fork of one that uses HSA.
        """
        return len(self._found())

    def device(self, index: int) -> HsaDevice:
        """The GPU `index`, in the runtime's order; the same object each time.

        Raises
        ------
        PluginUnavailableError
            As `device_count`, or there is no such GPU.
        """
        devices = self._found()
        if not 0 <= index < len(devices):
            raise PluginUnavailableError(f"there is no hsa:{index}: this process sees {len(devices)}, from hsa:0 on")
        return devices[index]

    def hardware(self) -> str | None:
        """An AMD GPU, where the kernel has given this machine or container the file that ROCm opens."""
        return "an AMD GPU" if Path("/dev/kfd").exists() else None

    def library(self) -> Library:
        """The runtime, with the version of HSA that it provides.

        Raises
        ------
        PluginUnavailableError
            It is missing, or does not start.
        """
        self._found()
        numbers = []
        for attribute in (abi.SYSTEM_INFO_VERSION_MAJOR, abi.SYSTEM_INFO_VERSION_MINOR):
            number = ctypes.c_uint16()
            call("hsa_system_get_info", attribute, ctypes.byref(number))
            numbers.append(str(number.value))
        return Library(LIBRARY, ".".join(numbers))

    def warnings(self) -> Sequence[str]:
        """That a package has brought a runtime of its own into this process, if so."""
        copies = loaded_copies()
        if len(copies) < 2:
            return []
        return [
            f"{len(copies)} HSA runtimes are in this process, and none knows what another has locked: "
            f"{', '.join(copies)}; put the folder of one before all others in LD_LIBRARY_PATH"
        ]

    def _found(self) -> list[HsaDevice]:
        if self._devices:
            _ = self._devices[0].handle  # which no fork is told
            return self._devices
        devices = _open_all()
        with self._mutex:
            self._devices = self._devices or devices  # another thread may have been quicker
        return self._devices


def _open_all() -> list[HsaDevice]:
    devices = [HsaDevice("hsa:0")]  # which says what is missing
    for index in count(1):
        try:
            devices.append(HsaDevice(f"hsa:{index}"))
        except PluginUnavailableError:
            break
    return devices


plugin = HsaPlugin()

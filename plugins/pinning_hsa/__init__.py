# SPDX-License-Identifier: Apache-2.0
"""AMD GPUs: memory locked through the HSA runtime, by ctypes. Importing this needs nothing of ROCm."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from pinning.errors import PluginUnavailableError
from pinning.plugin import Library
from pinning_hsa import abi
from pinning_hsa.agents import Machine, find_machine
from pinning_hsa.device import HsaDevice
from pinning_hsa.driver import LIBRARY, call, initialise, loaded_copies

__all__ = ["HsaDevice", "plugin"]


class HsaPlugin:
    """The `pinning.plugin.Plugin` and `DescribedPlugin` of the HSA runtime."""

    name = "hsa"

    def __init__(self) -> None:
        self._machine: Machine | None = None
        self._devices: dict[int, HsaDevice] = {}

    def device_count(self) -> int:
        """Number of GPUs that this process may use, at least 1.

        Raises
        ------
        PluginUnavailableError
            The runtime, the kernel driver or a GPU is missing, or this process is a fork of one that uses HSA.
        """
        return len(self._found().gpus)

    def device(self, index: int) -> HsaDevice:
        """The GPU `index`, in the runtime's order; the same object each time.

        Raises
        ------
        PluginUnavailableError
            As `device_count`, or there is no such GPU.
        """
        machine = self._found()
        count = len(machine.gpus)
        if not 0 <= index < count:
            raise PluginUnavailableError(f"there is no hsa:{index}: this process sees {count}, from hsa:0 on")
        if index not in self._devices:
            self._devices.setdefault(index, HsaDevice(index, machine))
        return self._devices[index]

    def library(self) -> Library:
        """The runtime, with the version of HSA that it provides.

        Raises
        ------
        PluginUnavailableError
            It is missing, or does not start.
        """
        initialise()
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

    def _found(self) -> Machine:
        initialise()
        if self._machine is None:
            self._machine = find_machine()
        return self._machine


plugin = HsaPlugin()

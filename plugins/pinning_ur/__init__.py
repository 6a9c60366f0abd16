# SPDX-License-Identifier: Apache-2.0
"""Intel's devices and others, through Unified Runtime. Importing this needs neither its loader nor an adapter.

Which devices there are, its adapters say: Level Zero and OpenCL for Intel's GPUs, OpenCL for CPUs. What can be locked
is up to them too, and a device whose adapter cannot lock host memory says so at every lock.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from pinning.errors import PluginUnavailableError, VendorError
from pinning.plugin import Library
from pinning_ur.device import UrDevice
from pinning_ur.loader import SONAME, exports, initialise
from pinning_ur.platforms import Found, find_platforms
from pinning_ur.release import IMPORT, REGISTER

__all__ = ["UrDevice", "plugin"]

_OPENCL_CPU = "libintelocl.so"


class UrPlugin:
    """The `pinning.plugin.Plugin` of Unified Runtime."""

    name = "ur"

    def __init__(self) -> None:
        self._found: Found | None = None
        self._devices: list[UrDevice] = []
        self._mutex = threading.Lock()

    def device_count(self) -> int:
        """Number of devices of all platforms, at least 1.

        Raises
        ------
        PluginUnavailableError
            The loader, an adapter or a device is missing, or this process is a fork of one that uses Unified Runtime.
        """
        return len(self._all_devices())

    def device(self, index: int) -> UrDevice:
        """The device `index`, in the order of adapters and platforms; the same object each time.

        Raises
        ------
        PluginUnavailableError
            As `device_count`, or there is no such device.
        """
        devices = self._all_devices()
        if not 0 <= index < len(devices):
            raise PluginUnavailableError(f"there is no ur:{index}: this process sees {len(devices)}, from ur:0 on")
        return devices[index]

    def library(self) -> Library:
        """The loader, the version of Unified Runtime that its adapters speak, and their names.

        Raises
        ------
        PluginUnavailableError
            As `device_count`.
        """
        self._all_devices()
        assert self._found is not None
        version = self._found.platforms[0].version()
        return Library(SONAME, f"{version} ({', '.join(self._found.adapters)})")

    def warnings(self) -> Sequence[str]:
        """What is wrong with this installation although it works. Raises as `device_count`."""
        self._all_devices()
        assert self._found is not None
        warnings = list(self._found.problems)
        if not exports(REGISTER) and any(platform.adapter == "Level Zero" for platform in self._found.platforms):
            warnings.append(
                f"this release of {SONAME} has no {REGISTER}, so memory is locked by {IMPORT}, which may do nothing "
                "and say that all went well: pip install 'intel-cmplr-lib-ur>=2026.2'"
            )
        return warnings

    def _all_devices(self) -> list[UrDevice]:
        initialise()
        if not self._devices:
            found = _find()
            places = [(platform, *device) for platform in found.platforms for device in platform.devices]
            devices = [UrDevice(f"ur:{index}", *place) for index, place in enumerate(places)]
            with self._mutex:
                if not self._devices:  # else another thread was quicker
                    self._found, self._devices = found, devices
        return self._devices


def _find() -> Found:
    try:
        found = find_platforms()
    except VendorError as error:
        raise PluginUnavailableError(f"{SONAME} cannot list its adapters: {error}") from None
    if found.platforms:
        return found
    if not found.adapters:
        what = f"{SONAME} has loaded no adapter"
        remedy = "UR_LOG_LOADER='level:info;output:stderr' shows which it looks for, and what each lacks"
    else:
        what = f"Unified Runtime finds no device through its adapters ({', '.join(found.adapters)})"
        remedy = _how_to_get_a_device()
    raise PluginUnavailableError("; ".join([what, *found.problems, remedy]))


def _how_to_get_a_device() -> str:
    library = Path(sys.prefix) / "lib" / _OPENCL_CPU
    if library.exists() and _OPENCL_CPU not in os.environ.get("OCL_ICD_FILENAMES", ""):
        cpu = f"the CPU needs OCL_ICD_FILENAMES={library} in the environment"
    else:
        # Releases from 2026.2 on have no OpenCL adapter.
        cpu = f"a CPU needs pip install intel-opencl-rt 'intel-cmplr-lib-ur<2026.2', and OCL_ICD_FILENAMES={library}"
    return f"an Intel GPU needs its driver (Debian: libze1, intel-opencl-icd) and access to /dev/dri; {cpu}"


plugin = UrPlugin()

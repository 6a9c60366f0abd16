# SPDX-License-Identifier: Apache-2.0
"""Intel's devices and others, through Unified Runtime. Importing this needs neither its loader nor an adapter.

Which devices there are, its adapters say: Level Zero and OpenCL for Intel's GPUs, OpenCL for CPUs. What can be locked
is up to them too, and a device whose adapter cannot lock host memory says so at every lock.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from pinning.errors import PluginUnavailableError
from pinning.plugin import Library
from pinning_ur import release
from pinning_ur.device import UrDevice, backend_name
from pinning_ur.loader import SONAME, asked, call, exports, listed, load

__all__ = ["UrDevice", "plugin"]

_NODES = Path("/dev/dri")  # what drivers open
_CARDS = Path("/sys/class/drm")  # the same names, with the maker of each
_INTEL = "0x8086"


class UrPlugin:
    """The `pinning.plugin.Plugin` and `DescribedPlugin` of Unified Runtime."""

    name = "ur"

    def __init__(self) -> None:
        self._devices: list[UrDevice] = []
        self._mutex = threading.Lock()

    def __repr__(self) -> str:
        return f"<plugin {self.name}>"

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

    def hardware(self) -> str | None:
        """An Intel GPU, where the kernel has given this machine or container the file that its drivers open."""
        makers = (_CARDS / node.name / "device" / "vendor" for node in _NODES.glob("renderD*"))
        found = any(maker.is_file() and maker.read_text().strip() == _INTEL for maker in makers)
        return "an Intel GPU" if found else None

    def library(self) -> Library:
        """The loader, the version of Unified Runtime that its adapters speak, and their names.

        Raises
        ------
        PluginUnavailableError
            As `device_count`.
        """
        first = self._all_devices()[0]
        version = ctypes.c_uint32()
        call("urPlatformGetApiVersion", first.platform, ctypes.byref(version))
        return Library(SONAME, f"{version.value >> 16}.{version.value & 0xFFFF} ({', '.join(_adapters())})")

    def warnings(self) -> Sequence[str]:
        """What is wrong with this installation although it works. Raises as `device_count`."""
        devices = self._all_devices()
        warnings = devices[0].problems
        if not exports(release.REGISTER) and any(device.adapter == "Level Zero" for device in devices):
            warnings.append(
                f"this release of {SONAME} has no {release.REGISTER}, so memory is locked by {release.IMPORT}, which "
                "may do nothing and say that all went well: pip install 'intel-cmplr-lib-ur>=2026.2'"
            )
        return warnings

    def _all_devices(self) -> list[UrDevice]:
        load()
        if not self._devices:
            devices = _open_all()
            with self._mutex:
                self._devices = self._devices or devices  # another thread may have been quicker
        return self._devices


def _open_all() -> list[UrDevice]:
    devices = [UrDevice("ur:0")]  # which says what is missing
    for index in count(1):
        try:
            devices.append(UrDevice(f"ur:{index}"))
        except PluginUnavailableError:
            break
    return devices


def _adapters() -> list[str]:
    backends = (
        asked(ctypes.c_int, "urAdapterGetInfo", adapter, release.ADAPTER_INFO_BACKEND).value
        for adapter in listed("urAdapterGet")
    )
    return [backend_name(backend) for backend in backends]


plugin = UrPlugin()

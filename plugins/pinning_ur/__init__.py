# SPDX-License-Identifier: Apache-2.0
"""Intel's devices and others, by Unified Runtime: ``native/vendors/ur``. Importing this module does not load it.

Its adapters provide the devices: Level Zero and OpenCL for Intel's GPUs, OpenCL for CPUs. They also determine what can
be locked; a device whose adapter cannot lock host memory refuses every lock and gives this reason.
"""

from __future__ import annotations

import ctypes
import site
import sys
from pathlib import Path

from pinning.errors import PluginUnavailableError
from pinning.plugin import AutomaticLocking, Library
from pinning.plugin.native import NativeDevice
from pinning.plugin.native_plugin import NativePlugin

__all__ = ["UrDevice", "UrPlugin", "plugin"]

SONAME = "libur_loader.so.0"
INSTALL = "pip install intel-cmplr-lib-ur intel-cmplr-lib-rt"

_NODES = Path("/dev/dri")  # the device nodes that drivers open
_CARDS = Path("/sys/class/drm")  # the same names, with the vendor of each
_INTEL = "0x8086"


class UrDevice(NativeDevice, AutomaticLocking):
    """A device, by its index in the order of adapters and platforms.

    All devices of its platform share its `context`, in which memory is locked and allocated.
    """


class UrPlugin(NativePlugin[UrDevice]):
    """The plugin, which also finds the loader where pip puts it."""

    def __init__(self) -> None:
        super().__init__("ur", UrDevice, _hardware)
        self._loader: ctypes.CDLL | None = None  # once it is loaded, native code finds it by name

    def device_count(self) -> int:
        """As `NativePlugin.device_count`, over all platforms."""
        self._loader = self._loader or _load()
        return super().device_count()

    def library(self) -> Library:
        """The loader, the version of Unified Runtime that its adapters speak, and their names."""
        self.device_count()  # finds the loader
        return super().library()


def _load() -> ctypes.CDLL:
    # First by name: that finds the one on the library path, or the one that another library has loaded already.
    installed = [Path(prefix) / "lib" / SONAME for prefix in (sys.prefix, site.getuserbase())]
    reason = ""
    for place in (SONAME, *(str(path) for path in installed if path.exists())):
        try:
            return ctypes.CDLL(place)
        except OSError as error:
            reason = str(error)  # the error itself would keep the callers' objects alive until a collection
    raise PluginUnavailableError(f"{SONAME}, the loader of Unified Runtime, cannot be loaded ({reason}): {INSTALL}")


def _hardware() -> str | None:
    makers = (_CARDS / node.name / "device" / "vendor" for node in _NODES.glob("renderD*"))
    found = any(maker.is_file() and maker.read_text("utf-8").strip() == _INTEL for maker in makers)
    return "an Intel GPU" if found else None


plugin = UrPlugin()

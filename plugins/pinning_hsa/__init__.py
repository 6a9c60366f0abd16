# SPDX-License-Identifier: Apache-2.0
"""AMD GPUs, by the HSA runtime: ``native/vendors/hsa``. Importing this module does not load the runtime."""

from __future__ import annotations

from pathlib import Path

from pinning.plugin import AutomaticLocking
from pinning.plugin.native import NativeDevice
from pinning.plugin.native_plugin import NativePlugin

__all__ = ["HsaDevice", "plugin"]


class HsaDevice(NativeDevice, AutomaticLocking):
    """A GPU, by its index in the runtime's order."""


def _hardware() -> str | None:
    return "an AMD GPU" if Path("/dev/kfd").exists() else None


plugin = NativePlugin("hsa", HsaDevice, _hardware)

# SPDX-License-Identifier: Apache-2.0
"""AMD GPUs, by the HIP runtime: ``native/vendors/hip``. Importing this module does not load the runtime."""

from __future__ import annotations

from pathlib import Path

from pinning.plugin import AutomaticLocking
from pinning.plugin.native import NativeDevice
from pinning.plugin.native_plugin import NativePlugin

__all__ = ["HipDevice", "plugin"]


class HipDevice(NativeDevice, AutomaticLocking):
    """A GPU, by its index in the runtime's order.

    Its `lock_limit` is None, although the kernel driver has a limit for all processes together: nearly all of the
    machine's memory. Processes cannot read it; the parameter ``no_system_mem_limit`` of the module amdgpu lifts it.
    """


def _hardware() -> str | None:
    return "an AMD GPU" if Path("/dev/kfd").exists() else None


plugin = NativePlugin("hip", HipDevice, _hardware)

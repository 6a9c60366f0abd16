# SPDX-License-Identifier: Apache-2.0
"""AMD GPUs, by the HIP runtime: ``native/vendors/hip``. Importing this module does not load the runtime."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pinning.errors import PluginUnavailableError
from pinning.plugin import AutomaticLocking
from pinning.plugin.native import NativeDevice
from pinning.plugin.native_plugin import NativePlugin

__all__ = ["HipDevice", "plugin"]

_PINS_FROM = "GPU_PINNED_MIN_XFER_SIZE"  # from how many MiB on HIP pins the memory of a copy, instead of staging it


class HipDevice(NativeDevice, AutomaticLocking):
    """A GPU, by its index in the runtime's order.

    Its `lock_limit` is None, although the kernel driver has a limit for all processes together: nearly all of the
    machine's memory. Processes cannot read it; the parameter ``no_system_mem_limit`` of the module amdgpu lifts it.
    """


def _hardware() -> str | None:
    return "an AMD GPU" if Path("/dev/kfd").exists() else None


class _HipPlugin(NativePlugin[HipDevice]):
    def warnings(self) -> Sequence[str]:
        """Problems that do not prevent its use: those of every plugin, and slow pageable copies of other libraries."""
        said = list(super().warnings())
        with suppress(PluginUnavailableError):  # `device_count` reports it
            slow = [each.name for each in map(self.device, range(self.device_count())) if "MI355X" in each.description]
            if slow and _PINS_FROM not in os.environ:
                said.append(
                    f"on {', '.join(slow)} HIP pins the memory of large pageable copies, slowly if a file is mapped: "
                    f"if a program copies these without pinning, set {_PINS_FROM}=4096 (MiB) for it"
                )
        return said


plugin = _HipPlugin("hip", HipDevice, _hardware)

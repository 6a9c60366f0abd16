# SPDX-License-Identifier: Apache-2.0
"""The host as a device: memory is locked by mlock, so that the kernel never pages it out.

``native/vendors/host`` locks, allocates and copies.
"""

from __future__ import annotations

from pinning.plugin.native_plugin import NativePlugin
from pinning_host.device import HostDevice

__all__ = ["HostDevice", "plugin"]

plugin = NativePlugin("host", HostDevice)

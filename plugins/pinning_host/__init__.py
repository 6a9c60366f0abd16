# SPDX-License-Identifier: Apache-2.0
"""The host as a device: memory is locked by mlock, so that the kernel never pages it out.

The smallest plugin of a vendor that is native: ``native/vendors/host/host.cpp`` locks, allocates and copies. What is
left here is who the vendor is and what people are told of it.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence

from pinning.errors import PluginUnavailableError
from pinning.plugin import Library
from pinning_host.device import HostDevice


class HostPlugin:
    """Every machine has one host, and the host is one device."""

    name = "host"

    def __init__(self) -> None:
        self._device = HostDevice("host:0")

    def __repr__(self) -> str:
        return f"<plugin {self.name}>"

    def device_count(self) -> int:
        """Always 1."""
        return 1

    def device(self, index: int) -> HostDevice:
        """The host device, `index` 0."""
        if index != 0:
            raise PluginUnavailableError(f"there is no device host:{index}; the only one is host:0")
        return self._device

    def library(self) -> Library:
        """The kernel, whose mlock it is."""
        return Library("Linux", platform.release())

    def warnings(self) -> Sequence[str]:
        """None: what bounds mlock is the device's limit."""
        return []


plugin = HostPlugin()

# SPDX-License-Identifier: Apache-2.0
"""A plugin of a native vendor: libpinning calls the vendor's library, and no Python package of the vendor is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from pinning.errors import PluginUnavailableError
from pinning.plugin import native
from pinning.plugin.vendor import Library

__all__ = ["NativePlugin"]

_Device = TypeVar("_Device", bound=native.NativeDevice)


class NativePlugin(Generic[_Device]):
    """The `Plugin` of a vendor in ``native/vendors``.

    Parameters
    ----------
    name : str
        The vendor's name, such as ``"cuda"``.
    kind : type
        The type of its devices.
    hardware : callable, optional
        The function behind the method `hardware`.
    """

    def __init__(self, name: str, kind: type[_Device], hardware: Callable[[], str | None] = lambda: None) -> None:
        self.name = name
        self._kind, self._hardware = kind, hardware
        self._devices: dict[int, _Device] = {}

    def __repr__(self) -> str:
        return f"<plugin {self.name}>"

    def device_count(self) -> int:
        """Number of devices that this process may use, at least 1.

        Raises
        ------
        PluginUnavailableError
            The vendor's library or a device is missing, or this process is a fork of one that uses them.
        """
        return native.device_count(self.name)

    def device(self, index: int) -> _Device:
        """The device `index`, in the order of the vendor's library; the same object each time.

        Raises
        ------
        PluginUnavailableError
            As `device_count`, or there is no such device.
        """
        count = self.device_count()
        if not 0 <= index < count:
            raise PluginUnavailableError(
                f"there is no {self.name}:{index}: this process sees {count}, from {self.name}:0 on"
            )
        device = self._devices.get(index)
        return device or self._devices.setdefault(index, self._kind(f"{self.name}:{index}"))

    def hardware(self) -> str | None:
        """The vendor's hardware in this machine or container, whether or not its library is there."""
        return self._hardware()

    def library(self) -> Library:
        """The vendor's library, with its version.

        Raises
        ------
        PluginUnavailableError
            It is missing, or does not start, or this process is a fork of one that uses it.
        """
        return native.library(self.name)

    def warnings(self) -> Sequence[str]:
        """Problems of the vendor's installation that do not prevent its use."""
        try:
            devices = [self.device(index) for index in range(self.device_count())]
        except PluginUnavailableError:  # `device_count` reports it
            return []
        return list(dict.fromkeys(problem for device in devices for problem in device.problems))

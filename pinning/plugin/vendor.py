# SPDX-License-Identifier: Apache-2.0
"""A vendor: a name, the library behind it, and the devices present."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from pinning.plugin.locking import Device

ENTRY_POINT_GROUP = "pinning.plugins"


class Plugin(Protocol):
    """A vendor. Importing its module must work without the vendor's driver."""

    @property
    def name(self) -> str:
        """The first part of its devices' names, such as ``"cuda"``."""

    def device_count(self) -> int:
        """Number of devices present. Raises `PluginUnavailableError` if the driver is missing."""

    def device(self, index: int) -> Device:
        """The device `index`, the same object each time."""


class Library(NamedTuple):
    """The vendor's library that a plugin calls.

    Attributes
    ----------
    name : str
        As it is loaded, such as ``"libcuda.so.1"``.
    version : str
        As the vendor writes it, such as ``"13.0"``.
    """

    name: str
    version: str


@runtime_checkable
class DetectingPlugin(Protocol):
    """A plugin that detects the vendor's hardware without the vendor's software."""

    def hardware(self) -> str | None:
        """The hardware present, such as ``"an NVIDIA GPU"``, for a message if it is not used; None if there is none."""


@runtime_checkable
class DescribedPlugin(Protocol):
    """A plugin with more information for ``pinning doctor``."""

    def library(self) -> Library:
        """The library. Raises `PluginUnavailableError` if it cannot be loaded; the message says what to install."""

    def warnings(self) -> Sequence[str]:
        """Problems of this installation that do not prevent its use, each with a remedy."""

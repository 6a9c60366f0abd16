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
        """Number of devices present. Raises `PluginUnavailableError` when the driver is missing."""

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
    """A plugin that sees, without the vendor's software, that the vendor's hardware is in the machine."""

    def hardware(self) -> str | None:
        """What there is, such as ``"an NVIDIA GPU"``, so that it is said where it is not used; None: nothing."""


@runtime_checkable
class DescribedPlugin(Protocol):
    """A plugin that tells ``pinning doctor`` more."""

    def library(self) -> Library:
        """What was loaded. Raises `PluginUnavailableError` when it cannot be; the message says what to install."""

    def warnings(self) -> Sequence[str]:
        """What is wrong with this installation although it works, each with the way out."""

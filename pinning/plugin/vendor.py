# SPDX-License-Identifier: Apache-2.0
"""A vendor: a name, the library behind it, and the devices present."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from pinning.plugin.locking import Device

ENTRY_POINT_GROUP = "pinning.plugins"


class Plugin(Protocol):
    """A vendor. Importing its module must work without the vendor's driver.

    It may also have, for ``pinning doctor`` and messages:

    - ``hardware() -> str | None``: the vendor's hardware in this machine, such as ``"an NVIDIA GPU"``, found without
      the vendor's software;
    - ``library() -> Library``: the library. Raises `PluginUnavailableError`, which says what to install, if it cannot
      be loaded;
    - ``warnings() -> Sequence[str]``: problems of this installation that do not prevent its use, each with a remedy.
    """

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

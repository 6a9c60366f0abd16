# SPDX-License-Identifier: Apache-2.0
"""The place of devices on the PCI bus: the link of each, and what lies between two. From sysfs."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PCI_DEVICES = Path("/sys/bus/pci/devices")

_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6, "128.0": 7}
_MOST_LANES = 32
_BRIDGE = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


class Link(NamedTuple):
    """A device's lanes and PCIe generation, current and maximal.

    An idle GPU lowers the generation, and raises it again for a copy. It keeps its lanes.
    """

    lanes: int
    most_lanes: int
    generation: int | None
    most_generation: int | None


def link_of(address: str | None) -> Link | None:
    """The link of the device at a PCI address; None if the system does not report it, as in some virtual machines."""
    if address is None:
        return None
    folder = PCI_DEVICES / address
    lanes, most = _lanes(folder / "current_link_width"), _lanes(folder / "max_link_width")
    if lanes is None or most is None:
        return None
    return Link(lanes, most, _generation(folder / "current_link_speed"), _generation(folder / "max_link_speed"))


def rate_of(address: str | None) -> int | None:
    """The speed of the link of the device at a PCI address, in arbitrary units for comparisons; None if unknown."""
    link = link_of(address)
    return None if link is None or link.most_generation is None else link.lanes << link.most_generation


def way_between(first: str | None, second: str | None) -> str | None:
    """The nearest part of the machine that two devices at PCI addresses share; None if unknown.

    A ``"switch"``, a ``"host bridge"``, a ``"node"`` (of memory) or the ``"machine"``.
    """
    if first is None or second is None:
        return None
    try:
        ways = [(PCI_DEVICES / address).resolve(strict=True).parts for address in (first, second)]
        nodes = [(PCI_DEVICES / address / "numa_node").read_text("utf-8").strip() for address in (first, second)]
    except OSError:
        return None
    shared = [ours for ours, theirs in zip(*(parts[:-1] for parts in ways), strict=False) if ours == theirs]
    if any(_BRIDGE.fullmatch(part) for part in shared):
        return "switch"
    if any(_ROOT.fullmatch(part) for part in shared):
        return "host bridge"
    return "node" if nodes[0] == nodes[1] else "machine"


def _lanes(file: Path) -> int | None:
    with suppress(OSError, ValueError):
        return lanes if 0 < (lanes := int(file.read_text("utf-8"))) <= _MOST_LANES else None
    return None


def _generation(file: Path) -> int | None:
    with suppress(OSError):
        return _GENERATIONS.get(file.read_text("utf-8").partition(" ")[0].strip())
    return None

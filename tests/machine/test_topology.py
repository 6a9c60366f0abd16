# SPDX-License-Identifier: Apache-2.0
"""The links of devices and the paths between them on the PCI bus, from a made-up tree of the kernel's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_up_pci import GPUS, make_gpu, make_machine
from pinning.machine import topology
from pinning.machine.topology import Link, link_of, way_between


@pytest.fixture
def pci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(topology, "PCI_DEVICES", make_machine(tmp_path))
    return tmp_path


def test_a_link_now_and_at_most(pci: Path) -> None:
    assert link_of(GPUS[0]) == Link(16, 16, 5, 5)
    assert link_of(GPUS[1]) == Link(8, 16, 1, 5)
    for address in (None, "0000:00:00.0"):
        assert link_of(address) is None


@pytest.mark.parametrize("lanes", ["0", "63", "255", "", "Unknown"])
def test_what_a_virtual_machine_makes_up_is_no_link(tmp_path: Path, pci: Path, lanes: str) -> None:
    make_gpu(tmp_path, "pci0000:70/0000:70:01.0/0000:71:00.0", 0, lanes, "Unknown")
    assert link_of("0000:71:00.0") is None
    make_gpu(tmp_path, "pci0000:72/0000:72:01.0/0000:73:00.0", 0, "4", "Unknown")
    assert link_of("0000:73:00.0") == Link(4, 16, None, 5)


def test_what_lies_between_two(pci: Path) -> None:
    first, switch, bridge, node, far = GPUS
    assert way_between(first, switch) == way_between(switch, first) == "switch"
    assert way_between(first, bridge) == "host bridge"
    assert way_between(first, node) == "node"
    assert way_between(first, far) == "machine"
    assert way_between(first, None) is way_between("0000:00:00.0", first) is None

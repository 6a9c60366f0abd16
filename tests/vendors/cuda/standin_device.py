# SPDX-License-Identifier: Apache-2.0
"""The plugin and its devices: names, limits, contexts, and copies through the device."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from cuda.bindings import driver as cuda
from rich.console import Console

from fake_device import Background
from made_up_pci import GPUS, make_machine
from mapped_memory import PAGE, Memory
from pinning.cli import doctor_view
from pinning.cli.doctor import run as examine
from pinning.machine import topology
from pinning_cuda import plugin
from standins.standin import StandIn

DEVICE = plugin.device(0)


def test_which_devices_are_joined(standin: StandIn) -> None:
    assert [DEVICE.link_to(plugin.device(i)) for i in range(4)] == [None, "NVLink", None, None]
    assert plugin.device(3).link_to(plugin.device(2)) == "NVLink"
    standin.configure("no_peers")
    assert DEVICE.link_to(plugin.device(1)) is None
    standin.configure("fail=cuDeviceGetP2PAttribute:1:1")
    assert DEVICE.link_to(plugin.device(1)) is None


def test_a_thread_without_a_context_locks_and_is_left_without(standin: StandIn) -> None:
    memory = Memory(1)

    def work() -> list[int]:
        DEVICE.data_lock(memory.ptr, PAGE, False)
        during = int(cuda.cuCtxGetCurrent()[1])
        DEVICE.data_unlock(memory.ptr)
        return [during, int(cuda.cuCtxGetCurrent()[1])]

    assert Background(work).result() == [0, 0]


def test_a_place_on_the_bus_that_is_not_told(standin: StandIn) -> None:
    for n in (1, 2, 3):
        standin.configure(f"fail=cuDeviceGetAttribute:{n}:999")
        assert DEVICE.pci_address is None


def test_doctor_says_how_gpus_are_joined(standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "PCI_DEVICES", make_machine(tmp_path))
    report = examine()
    links = {row.name: row.link for row in report.devices}
    assert links["cuda:1"] == (8, 16, 1, 5)
    assert links["host:0"] is None
    pairs = {(row.first, row.second): row for row in report.pairs}
    assert len(pairs) == 6
    near, far = pairs["cuda:0", "cuda:1"], pairs["cuda:0", "cuda:3"]
    assert (near.connection, near.link, near.way) == ("UNIFIED", "NVLink", "switch")
    assert (far.connection, far.link, far.way) == ("UNIFIED", None, "node")
    (advice,) = [each for each in report.advice if "lanes" in each.why]
    assert "cuda:1 has 8 of its 16 PCIe lanes, so copies run at 50% of the possible rate" in advice.why
    assert GPUS[1] in advice.command
    said = Console(width=80, record=True, file=io.StringIO())
    doctor_view.show(report, said)
    lines = said.export_text().splitlines()
    assert "x8 of 16 gen 1 of 5" in next(line for line in lines if line.split()[:1] == ["cuda:1"])
    (row,) = [line.split() for line in lines if line.split()[:2] == ["cuda:0", "NVLink"]]
    assert row == ["cuda:0", "NVLink", "host", "bridge", "node"]
    standin.configure("no_peers")
    assert {row.connection for row in examine().pairs} == {"MIGRATABLE"}

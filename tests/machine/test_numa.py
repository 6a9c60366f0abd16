# SPDX-License-Identifier: Apache-2.0
"""Which memory is near which processor: what the kernel's files say, and where pages are."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy
import pytest

from fake_device import FakeDevice
from pinning.machine import numa


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two nodes, of which one has no processors."""
    for node, cpus in ((0, "0-2,8\n"), (2, "\n")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cpus)
    (tmp_path / "node_list").touch()
    return tmp_path


def test_the_nodes_of_a_machine(machine: Path) -> None:
    assert numa.nodes(machine) == {0: {0, 1, 2, 8}, 2: set()}
    assert numa.nodes(machine / "nothing") == {}


def test_which_processors_are_used(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = numa.nodes(machine)
    monkeypatch.setattr(numa, "nodes", lambda: found)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 8, 9})
    assert numa.usable_cpus(0) == {1, 8}
    assert numa.usable_cpus(2) == numa.usable_cpus(5) == numa.usable_cpus(None) == {1, 8, 9}


def test_the_node_of_a_device(tmp_path: Path) -> None:
    device = FakeDevice()
    assert numa.node_of(device, tmp_path) is None
    device.pci_address = "0000:3b:00.0"  # type: ignore[attr-defined]
    assert numa.node_of(device, tmp_path) is None
    (tmp_path / "0000:3b:00.0").mkdir()
    for said, node in (("1\n", 1), ("-1\n", None), ("", None)):
        (tmp_path / "0000:3b:00.0" / "numa_node").write_text(said)
        assert numa.node_of(device, tmp_path) == node


def test_what_is_in_the_way(machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = numa.nodes(machine)
    monkeypatch.setattr(numa, "nodes", lambda: found)
    monkeypatch.setattr(numa, "usable_memory", lambda: frozenset([0, 2]))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 9})
    assert numa.obstacle(0) is None
    for node, why in ((2, "no processor of node 2"), (1, "no memory of node 1")):
        there = numa.obstacle(node)
        assert there is not None
        assert why in there.why
    status = tmp_path / "status"
    status.write_text("Name:\tx\nMems_allowed_list:\t0-1,4\n")
    monkeypatch.undo()
    assert numa.usable_memory(status) == {0, 1, 4}
    assert numa.usable_memory(tmp_path / "nothing") is None


def test_where_pages_are() -> None:
    memory = mmap.mmap(-1, 5000 * mmap.PAGESIZE, mmap.MAP_PRIVATE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    array = numpy.frombuffer(memory, "u1")
    assert numa.placement(array.ctypes.data, array.size) == {}
    array[:] = 1
    found = numa.placement(array.ctypes.data, array.size)
    if not found:
        pytest.skip("needs a kernel that says where pages are (move_pages)")
    assert set(found) <= set(numa.nodes())
    assert sum(found.values()) == pytest.approx(array.size, abs=len(found))
    one_page = numa.placement(array.ctypes.data + 10, 10)
    assert list(one_page.values()) == [10]

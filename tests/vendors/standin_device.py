# SPDX-License-Identifier: Apache-2.0
"""A plugin and its devices: tests for all vendors."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import pinning
from mapped_memory import PAGE, Memory
from pinning.errors import VendorError
from pinning.plugin import AutomaticLocking, CoarseDevice, DescribedPlugin, LimitedDevice, MemoryDevice
from standins.cases import only
from standins.standin import StandIn
from standins.vendors import Vendor


def test_devices_are_named_and_stay_the_same(standin: StandIn, vendor: Vendor) -> None:
    plugin = vendor.plugin
    assert plugin.name == vendor.name
    assert plugin.device_count() == vendor.count
    assert [plugin.device(i).name for i in range(3)] == [f"{vendor.name}:{i}" for i in range(3)]
    assert plugin.device(2) is plugin.device(2)
    assert plugin.device(2).description == vendor.description
    if vendor.pci_address:
        assert plugin.device(2).pci_address == vendor.pci_address


INTERFACES: dict[str, list[type]] = {
    "cuda": [LimitedDevice],
    "hip": [LimitedDevice, CoarseDevice],
    "hsa": [LimitedDevice, CoarseDevice, AutomaticLocking],
    "ur": [AutomaticLocking],
}


def test_a_device_is_all_that_the_interface_knows(standin: StandIn, vendor: Vendor, gpu: Any) -> None:
    assert isinstance(vendor.plugin, DescribedPlugin)
    for interface in (MemoryDevice, *INTERFACES[vendor.name]):
        assert isinstance(gpu, interface)
    if LimitedDevice in INTERFACES[vendor.name]:
        assert gpu.lock_limit() is None
    assert gpu.coherence == {"cuda": {True}, "ur": set()}.get(vendor.name, {True, False})


def test_its_queues_and_the_hosts_wait_for_one_another(other: pinning.Queue) -> None:
    ran: list[int] = []
    event = pinning.Event()
    with pinning.Queue("host:0") as host:
        for number in range(40):
            event = (host, other)[number % 2].call(lambda number=number: ran.append(number), [event])
        event.wait()
    assert ran == list(range(40))


PROGRAM = """
import contextlib, sys
import pinning
gpu, another = pinning.device(sys.argv[1] + ":0"), pinning.device(sys.argv[1] + ":1")
queue = gpu.make_queue()
source, there = gpu.allocate(4, pinning.MemoryKind.HOST), gpu.allocate(4)
queue.copy(there, source, 4)
events = [queue.record() for _ in range(3)]
cycle = [queue, queue.record()]
cycle.append(cycle)
queue.wait_value(source, 5)  # never
queue.copy(there, source, 4)
events.append(queue.record())
with contextlib.suppress(pinning.PinningError):
    another.adopt_queue(0).record()
"""


@only("cuda", "hsa")
@pytest.mark.parametrize("end", ["", "queue.close()", "import os; os.kill(os.getpid(), 9)"])
def test_a_process_ends_with_work_that_waits_for_ever(standin: StandIn, vendor: Vendor, end: str) -> None:
    command = [sys.executable, "-P", "-c", PROGRAM + end, vendor.name]
    child = subprocess.run(command, text=True, capture_output=True, timeout=300)
    assert child.stderr == ""
    assert child.returncode == (-9 if "kill" in end else 0)


@only("cuda", "hip")
def test_a_copy_across_the_border_of_a_lock_is_refused_as_the_driver_does(
    standin: StandIn, vendor: Vendor, gpu: Any
) -> None:
    memory = Memory(2)
    there = gpu.allocate(2 * PAGE)
    gpu.data_lock(memory.ptr, PAGE, False)
    with pytest.raises(VendorError) as raised:
        gpu.copy(there, memory.ptr, 2 * PAGE)
    assert (raised.value.call, raised.value.code, raised.value.name) == vendor.copy_border
    gpu.data_unlock(memory.ptr)
    gpu.free(there)

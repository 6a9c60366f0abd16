# SPDX-License-Identifier: Apache-2.0
"""A plugin and its devices: tests for all vendors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import pinning
from fake_device import Background
from mapped_memory import PAGE, Memory
from pinning.conformance.faults import each_failure
from pinning.errors import VendorError
from pinning.plugin import AutomaticLocking, MemoryDevice, MemoryKind
from standins.cases import only
from standins.standin import StandIn
from standins.vendors import Vendor


@only("cuda", "ur")
def test_the_context_is_made_once_however_many_threads_begin(standin: StandIn, vendor: Vendor, gpu: Any) -> None:
    # Must be the first test in this process: a context, once created, is kept.
    memory = Memory(2)
    standin.configure(f"delay={vendor.makes_context}:60000")
    threads = [Background(partial(gpu.data_lock, memory.ptr + i * PAGE, PAGE, False)) for i in (0, 1)]
    standin.wait_for(vendor.makes_context, 2)
    standin.configure()
    for thread in threads:
        thread.result()
    assert len(standin.calls(vendor.gives_context_back)) == 1
    assert {int(call.split()[1], 16) for call in standin.calls(vendor.in_context)} == {gpu.context}
    for i in (0, 1):
        gpu.data_unlock(memory.ptr + i * PAGE)
    assert standin.calls(vendor.makes_context) == []


def test_devices_are_named_and_stay_the_same(standin: StandIn, vendor: Vendor) -> None:
    plugin = vendor.plugin
    assert plugin.name == vendor.name
    assert plugin.device_count() == vendor.count
    assert [plugin.device(i).name for i in range(3)] == [f"{vendor.name}:{i}" for i in range(3)]
    assert plugin.device(2) is plugin.device(2)
    assert plugin.device(2).description == vendor.description
    assert plugin.library() == (vendor.library, vendor.version or plugin.library().version)
    assert list(plugin.warnings()) == []
    if vendor.pci_address:
        assert plugin.device(2).pci_address == vendor.pci_address


def test_a_device_is_all_that_the_interface_knows(standin: StandIn, vendor: Vendor, gpu: Any) -> None:
    assert isinstance(gpu, MemoryDevice) and isinstance(gpu, AutomaticLocking)
    assert (gpu.lock_limit(), gpu.largest_lock >= PAGE, gpu.can_lock) == (None, True, True)
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


# ---- what is current in a thread ----


@only("cuda", "hip")
@pytest.mark.parametrize("index", [0, 2])
def test_the_device_that_another_library_made_current_stays_so(standin: StandIn, vendor: Vendor, index: int) -> None:
    device, memory = vendor.plugin.device(index), Memory(1)
    there = device.allocate(PAGE)
    with vendor.current(3) as is_current:
        for act in (
            lambda: device.data_lock(memory.ptr, PAGE, False),
            lambda: device.copy(there, memory.ptr, PAGE),
            lambda: device.data_unlock(memory.ptr),
            lambda: device.free(there),
            *(lambda kind=kind: device.free(device.allocate(100, kind), kind) for kind in MemoryKind),
        ):
            standin.configure()
            act()
            assert vendor.makes_current(device) in standin.calls()
            assert is_current()
        assert device.is_pinned_ptr(memory.ptr) is None
        with pytest.raises(VendorError):
            device.data_unlock(memory.ptr)
        assert is_current()


# ---- failures specific to some drivers; the conformance suite tests those common to all ----


QUESTIONS: dict[str, tuple[str, ...]] = {  # calls that tell the name, an attribute, the version, and the count again
    "cuda": ("cuDeviceGetName", "cuDeviceGetAttribute", "cuDriverGetVersion", "cuDeviceGetCount"),
    "hip": ("hipDeviceGetName", "hipDeviceGetAttribute", "hipRuntimeGetVersion"),
}


@only("cuda", "hip")
def test_a_question_is_answered_or_not(standin: StandIn, vendor: Vendor, gpu: Any) -> None:
    questions: list[Callable[[], object]] = [
        lambda: type(gpu)(gpu.name).description,
        lambda: type(gpu)(gpu.name).memory_kinds,
        vendor.plugin.library,
        vendor.plugin.device_count,
    ]
    for call, question in zip(QUESTIONS[vendor.name], questions, strict=False):
        assert [failed for failed, _ in each_failure(vendor.faults, question)] == [call]

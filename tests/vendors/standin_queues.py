# SPDX-License-Identifier: Apache-2.0
"""Queues and events: tests for several vendors."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from mapped_memory import PAGE, Memory
from pinning.conformance.allocations import DATA, Allocations
from pinning.errors import VendorError
from pinning.plugin.native import NativeQueue
from standins.cases import only
from standins.standin import StandIn
from standins.vendors import DEVICE, HOST, Vendor, this_vendor


@only("cuda", "hip")
def test_a_copy_across_the_border_of_a_lock_is_refused_as_the_driver_does(
    queue: NativeQueue, memory: Allocations, vendor: Vendor, gpu: Any
) -> None:
    pages, there = Memory(2), memory(DEVICE, bytes(2 * PAGE))
    gpu.data_lock(pages.ptr, PAGE, False)
    with pytest.raises(VendorError) as raised:
        queue.copy(there, pages.ptr, 2 * PAGE)
    assert (raised.value.call, raised.value.code, raised.value.name) == vendor.border
    assert queue.done()
    gpu.data_unlock(pages.ptr)


@only("cuda", "hip")
def test_events_are_recorded_again(standin: StandIn, queue: NativeQueue, vendor: Vendor) -> None:
    kept = [queue.record() for _ in range(5)]
    standin.configure()
    del kept[1:]
    for _ in range(4):
        kept.append(queue.record())
    assert standin.calls(vendor.makes_event) == []
    assert len({call.split()[1] for call in standin.calls(vendor.records_event)}) == 4


@only("cuda", "hip", "ur")
@pytest.mark.parametrize("lost", this_vendor().lost)
def test_a_lost_gpu_ends_all_waits_and_leaves_nothing(
    standin: StandIn, memory: Allocations, vendor: Vendor, gpu: Any, lost: str
) -> None:
    source, there = memory(HOST, DATA), memory(DEVICE)
    before = vendor.live()["streams"]
    queue = gpu.make_queue()
    event: Any = queue.record()
    queue.synchronize()
    code = int(lost.split(":")[2])
    standin.configure(f"lost={lost}")

    def is_lost(act: Callable[[], object]) -> None:
        with pytest.raises(VendorError) as raised:
            act()
        assert raised.value.code == code

    def work() -> None:
        queue.copy(there, source, 10)
        queue.copy(there, source, 10)
        queue.record().wait()

    is_lost(work)
    for act in (
        queue.done,
        queue.synchronize,
        queue.record,
        event.done,
        event.wait,
        lambda: queue.copy(there, source, 10),
        lambda: queue.wait(event),
        gpu.make_queue,
        gpu.synchronize,
        lambda: gpu.free(there),
        queue.close,
    ):
        is_lost(act)
    standin.configure()  # as if the GPU came back, so that the cleanup can be checked
    queue.close()
    event = None
    gc.collect()
    assert vendor.live()["streams"] == before
    assert vendor.kept == "events" or vendor.live()["events"] == 0

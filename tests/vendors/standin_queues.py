# SPDX-License-Identifier: Apache-2.0
"""Queues and events: tests for several vendors."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from mapped_memory import PAGE, Memory
from pinning.conformance.allocations import DATA, Allocations
from pinning.conformance.holding import HeldQueue
from pinning.errors import VendorError
from pinning.plugin.native import NativeQueue
from standins.cases import only
from standins.standin import StandIn
from standins.vendors import DEVICE, HOST, Vendor, this_vendor
from standins.work import submit_all


@only("cuda", "hip")
@pytest.mark.parametrize("way", ["in a queue", "by the device"])
def test_a_copy_across_the_border_of_a_lock_is_refused_as_the_driver_does(
    queue: NativeQueue, memory: Allocations, vendor: Vendor, gpu: Any, way: str
) -> None:
    pages, there = Memory(2), memory(DEVICE, bytes(2 * PAGE))
    gpu.data_lock(pages.ptr, PAGE, False)
    copy, expected = (queue.copy, vendor.border) if way == "in a queue" else (gpu.copy, vendor.copy_border)
    with pytest.raises(VendorError) as raised:
        copy(there, pages.ptr, 2 * PAGE)
    assert (raised.value.call, raised.value.code, raised.value.name) == expected
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


# ---- what is current in a thread ----


@only("cuda", "hip")
@pytest.mark.parametrize("handle", [None, *this_vendor().default_streams])
@pytest.mark.parametrize("settings", ["", "streams_want_context"] if this_vendor().name == "cuda" else [""])
def test_the_device_that_another_library_made_current_stays_so(
    standin: StandIn, memory: Allocations, vendor: Vendor, gpu: Any, handle: int | None, settings: str
) -> None:
    ptr, there = memory(HOST), memory(DEVICE)
    with vendor.current(3) as is_current:
        queue = gpu.make_queue() if handle is None else gpu.adopt_queue(handle)
        standin.configure(settings)
        submit_all(queue, ptr, there)
        assert is_current()
        with pytest.raises(VendorError):
            queue.fill(there + 1, b"\1\1", 8)
        queue.close()
        assert is_current()


@only("cuda", "hip")
@pytest.mark.parametrize("handle", this_vendor().default_streams)
def test_a_default_stream_is_that_of_its_gpu_whichever_is_current(
    standin: StandIn, vendor: Vendor, gpu: Any, handle: int
) -> None:
    ours, theirs = gpu.adopt_queue(handle), vendor.plugin.device(1).adopt_queue(handle)
    assert ours.handle == handle
    with vendor.current(1), HeldQueue(ours) as held:
        assert held.begun.wait(60)
        theirs.synchronize()
        assert theirs.done()
        assert not ours.done()
    ours.synchronize()

# SPDX-License-Identifier: Apache-2.0
"""The repr of public objects: one line that says what the object is, not at which address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import numpy
import pytest

import pagetable
import pinning
from pinning import arrays, copies

OBJECT = re.compile(r"<[\w.]+ object at 0x")


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    array, other = numpy.ones(512), numpy.zeros(512)
    file = Path(tmp_path_factory.mktemp("repr")) / "file"
    file.write_bytes(bytes(4096))
    device, on = pinning.device("host"), pinning.pinned_map("host")
    with (
        pinning.lock(array, device=device) as lock,
        pinning.Queue(device) as queue,
        pinning.Pool(device) as pool,
        pinning.alloc(4096, "host", device=device) as allocation,
        pinning.Arena(4096, devices=device) as arena,
    ):
        pending = pinning.lock_async(other, device=device)
        pending.wait()
        block = arena.allocate(64)
        event = queue.record()
        registrar = on.add_registrar(lambda ptr, size: None, lambda handle: None)
        yield {
            "device": device,
            "event": event,
            "Event()": pinning.Event(),
            "vendor_event": event.vendor_event,
            "vendor_queue": device.make_queue(),  # type: ignore[attr-defined]
            "region": lock.region,
            "map": on,
            "lock": lock,
            "pending": pending,
            "queue": queue,
            "pool": pool,
            "context": pool.context,
            "allocation": allocation,
            "allocation's info": pinning.memory_info(allocation),
            "device's info": device.memory_info(allocation.ptr),  # type: ignore[attr-defined]
            "arena": arena,
            "block": block,
            "registrar": registrar,
            "budget": pinning.budget(),
            "report": pinning.plugins()[0],
            "copy": pinning.copy(other, array),
            "plan": pinning.explain(other, array),
            "batch": pinning.copy_batch([other, other], [array, array], 64),
            "plan of batch": pinning.explain_batch([other], [array]),
            "costs": copies.costs,
            "file copy": pinning.copy_file(other, file),
            "device array": arrays.to_device(array, device=device),
            "table": pagetable.PageTable(),
            "table's region": pagetable.Region(1, 2, 3),
        }
        registrar.remove()
        pending.cancel()
        block.free()


def test_each_says_what_it_is(things: dict[str, object]) -> None:
    assert len(things) > 25
    assert {what: repr(thing) for what, thing in things.items() if OBJECT.search(repr(thing))} == {}
    assert {what: repr(thing) for what, thing in things.items() if "\n" in repr(thing)} == {}


def test_plugins_and_closed_objects_too(things: dict[str, object]) -> None:
    for point in entry_points(group="pinning.plugins"):
        if point.module.startswith("pinning_"):
            assert repr(point.load()) == f"<plugin {point.name}>"
    queue = pinning.Queue("host")
    queue.close()
    assert repr(queue) == "<Queue of host:0, in_order, closed>"
    assert repr(pinning.Event._over(error=ValueError("x"))) == "<Event: failed: ValueError('x')>"

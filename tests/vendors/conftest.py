# SPDX-License-Identifier: Apache-2.0
"""The stand-in drivers: one vendor's for the tests in its folder, every vendor's for those beside this file.

A stand-in checks the ABI and the sequence of calls, not a real driver's semantics.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pinning
from pinning import MemoryKind, arrays
from pinning.conformance.allocations import Allocations
from pinning.conformance.faults import eventually
from pinning.copies import costs, trim_staging
from pinning.memory import default_pool
from pinning.plugin.native import NativeQueue
from standins.cases import on_standin
from standins.standin import Driver, StandIn
from standins.vendors import VENDORS, Vendor, this_vendor

CONFIGURATIONS = {"standin_lonely": "gpus=2;no_peers", "standin_links": "devices=8;nvswitch"}


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    name = module_path.parent.name
    if module_path.stem in CONFIGURATIONS:
        runs = {"": replace(VENDORS[name].run, configuration=CONFIGURATIONS[module_path.stem])}
    elif name in VENDORS:
        runs = {"": VENDORS[name].run}
    else:
        runs = {name: vendor.run for name, vendor in VENDORS.items()}
    return on_standin(module_path, parent, runs)


@pytest.fixture(scope="module")
def standin_folder(request: pytest.FixtureRequest, build: Callable[[Driver], Path]) -> Path:
    """The folder of the stand-in for this folder's vendor, for programs started with `DRIVER.environment`."""
    run = VENDORS[request.path.parent.name].run
    run.require()
    return build(run.driver)


@pytest.fixture
def vendor() -> Vendor:
    """The vendor whose driver is a stand-in in this process."""
    return this_vendor()


@pytest.fixture
def standin(vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The stand-in driver of this process. After a test nothing may be left registered, allocated or created."""
    standin = vendor.run.driver.standin(tmp_path / "calls")
    standin.configure()
    monkeypatch.setattr(costs, "ring_bytes", 8 << 20)  # which is made in a millisecond; by default they have 64 MiB
    yield standin
    standin.configure()
    gc.collect()
    trim_staging()
    assert standin.registrations() == set()

    def nothing_is_left() -> bool:  # the thread of a closed queue may still be ending
        gc.collect()
        return not any(count for what, count in vendor.live().items() if what != vendor.kept)

    assert eventually(nothing_is_left), vendor.live()


@pytest.fixture
def gpu(vendor: Vendor) -> Any:
    """The first device."""
    return vendor.plugin.device(0)


@pytest.fixture
def queue(standin: StandIn, gpu: Any) -> Iterator[NativeQueue]:
    queue = gpu.make_queue()
    yield queue
    queue.close()


@pytest.fixture
def memory(standin: StandIn, gpu: Any) -> Iterator[Allocations]:
    memory = Allocations(gpu)
    yield memory
    standin.configure()
    memory.free()


@pytest.fixture
def other(standin: StandIn, gpu: Any) -> Iterator[pinning.Queue]:
    """A queue for copies; what they keep is given back after the test."""
    with pinning.Queue(gpu) as other:
        yield other
    gc.collect()
    arrays.synchronize(gpu)
    arrays.default_stream(gpu).close()
    default_pool(gpu, MemoryKind.DEVICE).trim_to(0)

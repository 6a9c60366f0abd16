# SPDX-License-Identifier: Apache-2.0
"""The stand-in runtime for the tests of pinning_hsa."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from standins.cases import Run, on_standin
from standins.libhsa import DRIVER, live
from standins.standin import Driver, StandIn


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    without_peers = module_path.stem == "standin_lonely"
    return on_standin(module_path, parent, {"": Run(DRIVER, "gpus=2;no_peers" if without_peers else "gpus=4")})


@pytest.fixture(scope="session")
def standin_folder(build: Callable[[Driver], Path]) -> Path:
    """Where the stand-in libhsa-runtime64.so.1 is, for programs started with `DRIVER.environment`."""
    return build(DRIVER)


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[StandIn]:
    """The stand-in that is this process's runtime. A test leaves nothing locked, allocated or made."""
    standin = DRIVER.standin(tmp_path / "calls")
    standin.configure()
    yield standin
    standin.configure()
    assert standin.registrations() == set()
    end = time.monotonic() + 30
    gc.collect()
    while live()["signals"] and time.monotonic() < end:
        time.sleep(0.001)  # the thread of a closed queue is about to end
        gc.collect()
    assert live() == {"signals": 0, "allocations": 0}

# SPDX-License-Identifier: Apache-2.0
"""The stand-in loader for the tests of pinning_ur."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from standins.cases import Run, on_standin
from standins.libur import DRIVER, OLD_DRIVER, live
from standins.standin import Driver, StandIn


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return on_standin(module_path, parent, {"": Run(DRIVER, "devices=2;opencl")})


@pytest.fixture(scope="session")
def standin_folder(build: Callable[[Driver], Path]) -> Path:
    """Where the stand-in libur_loader.so.0 is, for programs started with `DRIVER.environment`."""
    return build(DRIVER)


@pytest.fixture(scope="session")
def old_standin_folder(build: Callable[[Driver], Path]) -> Path:
    """Where a stand-in for the loader of 2025.2 is."""
    return build(OLD_DRIVER)


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[StandIn]:
    """The stand-in that is this process's loader. A test leaves nothing registered, allocated or made.

    But for the queue that a device keeps for its copies.
    """
    standin = DRIVER.standin(tmp_path / "calls")
    standin.configure()
    yield standin
    standin.configure()
    gc.collect()
    assert standin.registrations() == set()
    left = live()
    assert (left["events"], left["allocations"]) == (0, 0)

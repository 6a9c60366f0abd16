# SPDX-License-Identifier: Apache-2.0
"""The stand-in runtime for the tests of pinning_hip."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from standins.cases import Run, on_standin
from standins.libhip import DRIVER, left
from standins.standin import Driver, StandIn

RUN = Run(DRIVER, "devices=8", bindings=("hip-python", "hip"))


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return on_standin(module_path, parent, {"": RUN})


@pytest.fixture(scope="session")
def standin_folder(build: Callable[[Driver], Path]) -> Path:
    """Where the stand-in libamdhip64.so is, for programs started with `DRIVER.environment`."""
    RUN.require()
    return build(DRIVER)


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[StandIn]:
    """The stand-in that is this process's runtime. A test leaves nothing registered or allocated, and no stream."""
    standin = DRIVER.standin(tmp_path / "calls")
    standin.configure()
    yield standin
    standin.configure()
    gc.collect()
    assert standin.registrations() == set()
    assert left() == {"streams": 0, "allocations": 0}

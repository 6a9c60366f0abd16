# SPDX-License-Identifier: Apache-2.0
"""The stand-in runtime for the tests of pinning_hip."""

from __future__ import annotations

import gc
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest

from standins.libhip import DRIVER, left
from standins.standin import MissingError, StandIn


@pytest.fixture(scope="session")
def standin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the stand-in libamdhip64.so is, for programs started with `DRIVER.environment`."""
    try:
        importlib.metadata.distribution("hip-python")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs hip-python: pip install 'pinning[hip]'")
    try:
        return DRIVER.build(tmp_path_factory.mktemp("libamdhip64"))
    except MissingError as missing:
        pytest.skip(str(missing))


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

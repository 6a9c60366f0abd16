# SPDX-License-Identifier: Apache-2.0
"""The stand-in runtime for the tests of pinning_hsa."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.extend([str(HERE.parent / "cuda"), str(HERE.parent)])  # mapped_memory, and standins

from standins.libhsa import DRIVER  # noqa: E402
from standins.standin import MissingError, StandIn  # noqa: E402


@pytest.fixture(scope="session")
def standin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the stand-in libhsa-runtime64.so.1 is, for programs started with `DRIVER.environment`."""
    try:
        return DRIVER.build(tmp_path_factory.mktemp("libhsa"))
    except MissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[StandIn]:
    """The stand-in that is this process's runtime. A test leaves nothing locked."""
    standin = DRIVER.standin(tmp_path / "calls")
    standin.configure()
    yield standin
    standin.configure()
    assert standin.registrations() == set()

# SPDX-License-Identifier: Apache-2.0
"""The stand-in driver of the vendor that the variable LOCKER names, and the process's map of one of its devices."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from locker_vendors import VENDORS, Vendor

import c_api
from standins.cases import Run, on_standin
from standins.standin import StandIn


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Run standin_locker.py for every vendor, and a file named after a vendor for that one alone."""
    of = module_path.stem.removeprefix("standin_")
    names = VENDORS if of == "locker" else [of]
    runs = {
        name: Run(vendor.driver, vendor.configuration, variables={"LOCKER": name})
        for name, vendor in VENDORS.items()
        if name in names
    }
    return on_standin(module_path, parent, runs)


@pytest.fixture(scope="session")
def vendor() -> Vendor:
    return VENDORS[os.environ["LOCKER"]]


@pytest.fixture
def standin(vendor: Vendor, tmp_path: Path) -> Iterator[StandIn]:
    """The stand-in that is this process's driver. A test must leave nothing registered."""
    standin = vendor.driver.standin(tmp_path / "calls")
    standin.configure()
    yield standin
    standin.configure()
    assert standin.registrations() == set()


@pytest.fixture
def native(vendor: Vendor, standin: StandIn) -> Iterator[c_api.Map]:
    """The map, empty before and after."""
    native = c_api.Map(vendor.device)
    assert native.regions() == []
    yield native
    assert native.regions() == []

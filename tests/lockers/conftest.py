# SPDX-License-Identifier: Apache-2.0
"""The stand-in driver of a vendor, in a process whose C interface opens that vendor's devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import c_api
from standins import libcuda, libhip, libhost, libhsa, libur
from standins.cases import Run, on_standin
from standins.standin import Driver, StandIn


@dataclass(frozen=True)
class Vendor:
    """`failure` is the error code that calls fail with, and `named` the vendor's name for it.

    Failures of the calls in `unheard` need not be reported.
    """

    device: str
    driver: Driver
    configuration: str
    failure: int
    named: str
    unheard: frozenset[str] = frozenset()


VENDORS = {
    vendor.device.partition(":")[0]: vendor
    for vendor in (
        Vendor(
            *("cuda:1", libcuda.DRIVER, "devices=2", 999, "CUDA_ERROR_UNKNOWN (999)"),
            frozenset({"cuCtxGetCurrent", "cuCtxPopCurrent"}),  # the context is pushed; codes of pops are ignored
        ),
        Vendor("hip:1", libhip.DRIVER, "devices=2", 999, "hipErrorUnknown (999)", frozenset({"hipGetLastError"})),
        Vendor(
            *("hsa:1", libhsa.DRIVER, "gpus=2", 0x1008, "HSA_STATUS_ERROR_OUT_OF_RESOURCES (4104)"),
            frozenset({"hsa_status_string"}),
        ),
        Vendor("ur:1", libur.DRIVER, "devices=2", 20, "UR_RESULT_ERROR_DEVICE_LOST (20)"),
        Vendor("host:0", libhost.DRIVER, "", 11, "EAGAIN (11)", frozenset({"mlock", "munlock"})),  # of the map itself
    )
}


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Run standin_locker.py for every vendor, and a file named after a vendor for that one alone."""
    of = module_path.stem.removeprefix("standin_")
    runs = {
        name: Run(vendor.driver, vendor.configuration, variables={"LOCKER": name})
        for name, vendor in VENDORS.items()
        if of in ("locker", name)
    }
    return on_standin(module_path, parent, runs)


@pytest.fixture
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

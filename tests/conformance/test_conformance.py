# SPDX-License-Identifier: Apache-2.0
"""The conformance suite on every plugin, with its stand-in driver, whose calls the suite makes fail."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pinning
from folders import PYTHONPATH
from standins.child import run_pytest
from standins.standin import HERE, Driver
from vendors import VENDORS

SUITE = ["-rs", "--pyargs", "pinning.conformance"]
VARIANTS = [(name, text) for name, vendor in VENDORS.items() for text in vendor.variants]
CPU = Path(sys.prefix) / "lib" / "libintelocl.so"


Build = Callable[[Driver], Path]


def run_suite(build: Build, vendor: str, configuration: str, *more: str) -> None:
    driver = VENDORS[vendor].driver
    environment = driver.environment(build(driver), configuration)
    environment["PYTHONPATH"] = PYTHONPATH
    print(run_pytest(*SUITE, "--device", f"{vendor}:0", *more, environment=environment))


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_suite(build: Build, vendor: str) -> None:
    run_suite(build, vendor, VENDORS[vendor].configuration, "--faults", f"standins.lib{vendor}:FAULTS")


@pytest.mark.parametrize(("vendor", "configuration"), VARIANTS)
def test_the_suite_on_other_releases(build: Build, vendor: str, configuration: str) -> None:
    run_suite(build, vendor, configuration)


@pytest.mark.parametrize("vendor", [name for name, vendor in VENDORS.items() if vendor.refusing])
def test_a_device_that_locks_no_memory_says_so(build: Build, vendor: str) -> None:
    run_suite(build, vendor, VENDORS[vendor].refusing, "--refuses")
    with pytest.raises(pytest.fail.Exception, match="cannot lock a page of ordinary memory"):
        run_suite(build, vendor, VENDORS[vendor].refusing)


def test_the_cpu_of_unified_runtime_says_that_it_locks_no_memory() -> None:
    """The one real driver that needs no GPU."""
    if not (CPU.exists() and (CPU.parent / "libur_adapter_opencl.so.0").exists()):
        pytest.skip("needs the CPU of Unified Runtime: pip install '.[ur-cpu]' in a clone")
    environment = {**os.environ, "OCL_ICD_FILENAMES": str(CPU), "ONEAPI_DEVICE_SELECTOR": "opencl:cpu"}
    print(run_pytest(*SUITE, "--device", "ur:0", "--refuses", environment=environment))


def test_the_suite_on_a_real_gpu() -> None:
    try:
        pinning.device("cuda:0")
    except pinning.PluginUnavailableError as error:
        pytest.skip(f"needs an NVIDIA GPU: {error}")
    print(run_pytest(*SUITE, "--device", "cuda:0", environment=os.environ))


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_wrong_prototype_does_not_compile(build: Build, vendor: str, tmp_path: Path) -> None:
    driver = VENDORS[vendor].driver
    build(driver)
    right, wrong = VENDORS[vendor].prototype
    source = (HERE / driver.source).read_text()
    assert source.count(right) == 1
    function = right.partition("(")[0].split()[-1]
    for changed, said in [(wrong, "conflicting types"), (right.replace(function, f"{function}X"), "no previous proto")]:
        (tmp_path / "changed.c").write_text(source.replace(right, changed))
        done = driver.compile(tmp_path / "changed.c", tmp_path / "changed.so")
        assert done.returncode != 0
        assert said in done.stderr


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(pytest.fail.Exception, match="there is no device 'nobody:0'"):
        run_pytest(*SUITE, "--device", "nobody:0", environment=os.environ)


def test_a_device_must_be_named() -> None:
    with pytest.raises(pytest.fail.Exception, match="say which device to test"):
        run_pytest(*SUITE, environment=os.environ)


def test_other_runs_of_pytest_have_no_such_option(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="unrecognized arguments"):
        run_pytest(tmp_path, "--device", "host:0", environment=os.environ)


def test_a_device_that_locks_does_not_refuse() -> None:
    with pytest.raises(pytest.fail.Exception, match="host:0 does lock memory: run it without --refuses"):
        run_pytest(*SUITE, "--device", "host:0", "--refuses", "-k", "refuse", environment=os.environ)


def test_the_count_of_the_kernel_tells_what_pins_nothing() -> None:
    run = [*SUITE, "-k", "kernel_counts", "--device", "host:0", "--counted-as"]
    run_pytest(*run, "VmLck", environment=os.environ)
    # mlock does not raise VmPin; a plugin that only keeps a list raises neither count.
    with pytest.raises(pytest.fail.Exception, match="has locked 32768 bytes, and VmPin has grown by 0"):
        run_pytest(*run, "VmPin", environment=os.environ)

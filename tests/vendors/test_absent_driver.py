# SPDX-License-Identifier: Apache-2.0
"""What every vendor's plugin reports when its library is absent, too old, or not ready yet; importing one loads none.

Each case runs in its own process, because a library is never unloaded.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from absent_driver import count_of, run
from standins.standin import Driver
from standins.vendors import VENDORS

TWO = {"cuda": "devices=2", "hip": "devices=2", "hsa": "gpus=2", "ur": "devices=2"}
LIBRARY = {"cuda": "libcuda.so", "hip": "libamdhip64", "hsa": "libhsa-runtime64", "ur": "libur_loader"}
NOT_READY = [
    ("cuda", "cuInit:1:999"),
    ("hip", "hipInit:1:999"),
    ("hsa", f"hsa_init:1:{0x1000}"),
    *(("ur", f"{name}:1:20") for name in ("urLoaderInit", "urAdapterGet", "urAdapterGetInfo", "urDeviceGetSelected")),
]
TOO_OLD = [
    ("hip", "libamdhip64.so", "int hipInit(unsigned flags) { return flags; }", "hipGetErrorName"),
    ("hsa", "libhsa-runtime64.so.1", "int hsa_init(void) { return 0; }", "hsa_status_string"),
    ("ur", "libur_loader.so.0", "", "urLoaderInit"),
]
Folder = Callable[[str], Path]


@pytest.fixture
def folder(build: Callable[[Driver], Path]) -> Folder:
    """Builds a vendor's stand-in, and returns its folder."""

    def folder(vendor: str) -> Path:
        VENDORS[vendor].run.require()
        return build(VENDORS[vendor].run.driver)

    return folder


@pytest.mark.parametrize(("vendor", "library"), LIBRARY.items(), ids=list(LIBRARY))
def test_importing_loads_no_library(vendor: str, library: str) -> None:
    program = f"import pinning_{vendor}; print({library!r} in open('/proc/self/maps').read())"
    assert run(program) == "False\n"


@pytest.mark.parametrize(("vendor", "two"), TWO.items(), ids=list(TWO))
def test_a_library_that_starts(folder: Folder, vendor: str, two: str) -> None:
    assert run(count_of(f"pinning_{vendor}"), VENDORS[vendor].run.driver.environment(folder(vendor), two)) == "2\n"


@pytest.mark.parametrize(("vendor", "failure"), NOT_READY)
def test_another_try_after_it_was_not_ready(folder: Folder, vendor: str, failure: str) -> None:
    program = count_of(f"pinning_{vendor}") + "print(plugin.device_count())"
    environment = VENDORS[vendor].run.driver.environment(folder(vendor), f"fail={failure}")
    said = run(program, environment).splitlines()
    assert said[0].startswith("unavailable:")
    assert int(said[1]) > 0


@pytest.mark.parametrize(("vendor", "library", "definition", "lacks"), TOO_OLD, ids=[each[0] for each in TOO_OLD])
def test_a_library_that_lacks_a_function(
    tmp_path: Path, vendor: str, library: str, definition: str, lacks: str
) -> None:
    source = tmp_path / "old.c"
    source.write_text(definition)
    if subprocess.run(["cc", "-shared", "-o", tmp_path / library, source], capture_output=True).returncode:
        pytest.skip("needs a C compiler: apt-get install gcc")
    said = run(count_of(f"pinning_{vendor}"), {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    assert said.startswith(f"unavailable: {library} has no {lacks}: it is too old")

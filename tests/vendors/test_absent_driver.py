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
DOES_NOT_START = [
    ("cuda", "devices=0", ["CUDA_ERROR_NO_DEVICE (100)", "no NVIDIA GPU", "CUDA_VISIBLE_DEVICES"]),
    ("cuda", "fail=cuInit:1:3", ["CUDA_ERROR_NOT_INITIALIZED (3)", "fork", "spawn"]),
    ("cuda", "fail=cuInit:1:34", ["CUDA_ERROR_STUB_LIBRARY (34)", "stub"]),
    ("cuda", "fail=cuInit:1:803", ["CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "reboot"]),
    ("cuda", "fail=cuInit:1:999", ["CUDA_ERROR_UNKNOWN (999)", "nvidia-smi"]),
    ("hsa", "gpus=0", ["no AMD GPU", "rocminfo", "ROCR_VISIBLE_DEVICES"]),
    ("hsa", f"fail=hsa_init:1:{0x1008}", ["HSA_STATUS_ERROR_OUT_OF_RESOURCES (4104)"]),
    ("hsa", f"fail=hsa_init:1:{0x1000}", ["HSA_STATUS_ERROR (4096)", "rocminfo", "dmesg"]),
    ("hsa", "fail=hsa_init:1:77", ["unknown (77)"]),
    ("ur", "fail=urLoaderInit:1:37", ["urLoaderInit failed: UR_RESULT_ERROR_UNINITIALIZED (37)", "UR_LOG_LOADER"]),
    ("ur", "fail=urAdapterGet:1:20", ["urAdapterGet failed: UR_RESULT_ERROR_DEVICE_LOST (20)"]),
    ("ur", "fail=urAdapterGetInfo:1:20", ["urAdapterGetInfo failed: UR_RESULT_ERROR_DEVICE_LOST (20)"]),
    ("ur", "adapters=0", ["no adapter", "UR_LOG_LOADER"]),
    ("ur", "devices=0", ["no device", "(Level Zero)", "OCL_ICD_FILENAMES", "/dev/dri"]),
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


@pytest.mark.parametrize(("vendor", "configuration", "words"), DOES_NOT_START)
def test_a_library_that_does_not_start_says_why(
    folder: Folder, vendor: str, configuration: str, words: list[str]
) -> None:
    environment = VENDORS[vendor].run.driver.environment(folder(vendor), configuration)
    said = run(count_of(f"pinning_{vendor}"), environment)
    assert said.startswith("unavailable:")
    assert [word for word in words if word not in said] == []


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

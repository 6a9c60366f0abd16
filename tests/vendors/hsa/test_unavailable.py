# SPDX-License-Identifier: Apache-2.0
"""What `device_count` reports when something is missing; importing pinning_hsa needs nothing.

Each case runs in its own process, because a runtime is never unloaded.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from absent_driver import count_of, run
from standins.libhsa import DRIVER

KFD = Path("/dev/kfd")


COUNT = count_of("pinning_hsa")


def installed() -> bool:
    """Whether a real runtime is installed; checked in another process, so that this one does not load it."""
    return run("import ctypes.util; print(ctypes.util.find_library('hsa-runtime64'))") != "None\n"


def without_runtime(tmp_path: Path, rocm: Path) -> dict[str, str]:
    """Environment in which the loader finds no runtime even if one is installed: an invalid file is found before it."""
    (tmp_path / "libhsa-runtime64.so.1").write_text("no library")
    return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "ROCM_PATH": str(rocm)}


def test_a_runtime_that_is_not_installed(tmp_path: Path) -> None:
    said = run(COUNT, without_runtime(tmp_path, rocm=tmp_path / "rocm"))
    assert said.startswith("unavailable: libhsa-runtime64.so.1 cannot be loaded (")
    assert [word for word in ("hsa-rocr", "libhsa-runtime64-1", "ROCM_PATH") if word not in said] == []


def test_a_runtime_in_rocms_own_folder(standin_folder: Path, tmp_path: Path) -> None:
    library = tmp_path / "rocm" / "lib" / "libhsa-runtime64.so.1"
    library.parent.mkdir(parents=True)
    library.symlink_to(standin_folder / library.name)
    assert run(COUNT, without_runtime(tmp_path, rocm=tmp_path / "rocm")) == "1\n"


def test_the_real_runtime_without_the_kernel_driver() -> None:
    if not installed():
        pytest.skip("needs the real HSA runtime: apt-get install libhsa-runtime64-1")
    if KFD.exists():
        pytest.skip("this machine has a /dev/kfd")
    said = run(COUNT)
    assert said.startswith("unavailable: the HSA runtime does not start: hsa_init failed: ")
    wanted = ("HSA_STATUS_ERROR_OUT_OF_RESOURCES (4104)", "no /dev/kfd", "modprobe amdgpu", "--device=/dev/kfd")
    assert [word for word in wanted if word not in said] == []


def test_the_library_is_unavailable_too(standin_folder: Path) -> None:
    program = COUNT.replace("device_count()", "library()")
    said = run(program, DRIVER.environment(standin_folder, f"fail=hsa_init:1:{0x1008}"))
    assert said.startswith("unavailable: the HSA runtime does not start")

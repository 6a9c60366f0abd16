# SPDX-License-Identifier: Apache-2.0
"""What `device_count` reports when something is missing, and older loaders; importing pinning_ur needs nothing.

Each case runs in its own process, because a loader is never unloaded.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from absent_driver import count_of, run
from standins.libur import OLD_DRIVER

COUNT = count_of("pinning_ur")
# Hides the folders in which pip installs the loader, so that only the library path can have one.
ELSEWHERE = "import sys, site; sys.prefix = '/nowhere'; site.getuserbase = lambda: '/nowhere'"
WITHOUT = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}


def test_a_loader_that_is_not_installed() -> None:
    said = run(f"{ELSEWHERE}\n{COUNT}", WITHOUT)
    if not said.startswith("unavailable:"):
        pytest.skip("this machine has libur_loader.so.0 on its library path")
    assert "libur_loader.so.0" in said
    assert "pip install intel-cmplr-lib-ur intel-cmplr-lib-rt" in said


def test_a_loader_that_lacks_a_library(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libur_loader.so.0").write_bytes(b"no library")
    said = run(f"{ELSEWHERE}\nsys.prefix = {str(tmp_path)!r}\n{COUNT}", WITHOUT)
    assert said.startswith("unavailable: libur_loader.so.0")
    assert f"{tmp_path}/lib/libur_loader.so.0: " in said, "the reason is that of the file that is there"


def test_the_loader_is_found_where_pip_puts_it(standin_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").symlink_to(standin_folder)
    program = f"{ELSEWHERE}\nsys.prefix = {str(tmp_path)!r}\n{COUNT}"
    assert run(program, {**WITHOUT, "STANDIN_UR": "devices=3"}) == "3\n"


def test_a_working_directory_that_no_longer_exists(standin_folder: Path, tmp_path: Path) -> None:
    """Intel's loader ends the process there."""
    program = f"import os, tempfile\nos.chdir(tempfile.mkdtemp(dir={str(tmp_path)!r}))\nos.rmdir(os.getcwd())\n{COUNT}"
    said = run(program, {**os.environ, "LD_LIBRARY_PATH": str(standin_folder), "STANDIN_UR": "devices=3"})
    assert said.startswith("unavailable: libur_loader.so.0 cannot start in a working directory that no longer exists")


def test_a_loader_of_2025_2(old_standin_folder: Path, tmp_path: Path) -> None:
    program = """
import ctypes, mmap
from pinning_ur import plugin
memory = mmap.mmap(-1, 4096)
ptr = ctypes.addressof(ctypes.c_char.from_buffer(memory))
device = plugin.device(1)
device.data_lock(ptr + 1, 7, None)
print(device.name, device.is_pinned_ptr(ptr + 1) == (ptr + 1, 7, ptr + 1))
device.data_unlock(ptr + 1)
print(*plugin.warnings())
"""
    said = run(program, OLD_DRIVER.environment(old_standin_folder, f"devices=2;log={tmp_path}/calls"))
    assert said.splitlines()[0] == "ur:1 True"
    assert "no urUSMHostAllocRegisterExp" in said
    calls = [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()]
    assert [call for call in calls if call in ("urUSMImportExp", "urUSMReleaseExp")] == [
        *("urUSMImportExp", "urUSMReleaseExp")
    ]

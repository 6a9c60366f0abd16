# SPDX-License-Identifier: Apache-2.0
"""What `device_count` reports when something is missing; importing pinning_cuda needs nothing.

Each case runs in its own process, because a driver is never unloaded.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from absent_driver import count_of, run
from standins.libcuda import DRIVER

COUNT = count_of("pinning_cuda")


ALL = """
import sys
sys.modules["cuda"] = sys.modules["cuda.bindings"] = None  # how Python marks a module that cannot be imported
from pinning_cuda import plugin
first, second = plugin.device(0), plugin.device(1)
print(first, first.pci_address, len(first.memory_kinds), first.connection(second).name, first.link_to(second))
print(plugin.library().name, *plugin.warnings())
"""


def test_a_gpu_needs_no_python_package_of_the_vendors(standin_folder: Path) -> None:
    said = run(ALL, DRIVER.environment(standin_folder, "devices=2"))
    assert said == "<cuda:0 Stand-in 0> 0001:3b:00.0 3 UNIFIED NVLink\nlibcuda.so.1\n"


TWICE = """
import os
import pinning
from pinning_cuda import plugin
def ask():
    try:
        plugin.device_count()
    except pinning.PluginUnavailableError as error:
        print(error, flush=True)
ask()
if os.fork() == 0:
    ask()
    os._exit(0)
os.wait()
"""


def test_a_driver_that_has_not_started_is_not_started_again_in_a_fork(standin_folder: Path, tmp_path: Path) -> None:
    """Starting NVIDIA's driver again may crash."""
    log = tmp_path / "log"
    said = run(TWICE, DRIVER.environment(standin_folder, f"devices=0;log={log}")).splitlines()
    assert "no NVIDIA GPU is visible" in said[0]
    assert "is a fork of process" in said[1]
    assert [line.split()[0] for line in log.read_text().splitlines()].count("cuInit") == 1


def test_a_fork_of_a_process_that_uses_the_driver(standin_folder: Path) -> None:
    program = f"import os\n{COUNT}if not os.fork():\n" + "".join(f"    {line}\n" for line in COUNT.splitlines())
    said = run(f"{program}else:\n    os.wait()", {**DRIVER.environment(standin_folder), "PYTHONUNBUFFERED": "1"})
    assert said.splitlines()[0] == "1"
    assert [word for word in ("unavailable: process", "is a fork of", "CUDA", "'spawn'") if word not in said] == []


def test_a_driver_that_is_not_installed() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has an NVIDIA driver")
    said = run(COUNT)
    assert said.startswith("unavailable: libcuda.so.1")
    assert "install the NVIDIA driver" in said

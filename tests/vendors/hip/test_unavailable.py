# SPDX-License-Identifier: Apache-2.0
"""What the plugin reports when something is missing; importing pinning_hip needs nothing.

Each case runs in its own process, because a runtime is never unloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from absent_driver import run
from folders import ROOT
from standins.libhip import DRIVER


def tells(question: str) -> str:
    """A program that prints the value of the expression `question`, or why the plugin is unavailable."""
    return f"""
from pinning.errors import PluginUnavailableError
from pinning_hip import plugin
try:
    print({question})
except PluginUnavailableError as error:
    print("unavailable:", error)
"""


COUNT = tells("plugin.device_count()")
LIBRARY = tells("plugin.library()")

ALL = """
import sys
sys.modules["hip"] = None  # how Python marks a module that cannot be imported
from pinning_hip import plugin
first, second = plugin.device(0), plugin.device(1)
print(first, first.pci_address, len(first.memory_kinds), first.connection(second).name, first.link_to(second))
print(plugin.library(), *plugin.warnings())
"""


def test_a_gpu_needs_no_python_package_of_the_vendors(standin_folder: Path) -> None:
    said = run(ALL, DRIVER.environment(standin_folder, "devices=2;version=60443484"))
    assert said.splitlines() == [
        "<hip:0 Stand-in 0> 0001:3b:00.0 3 UNIFIED None",
        "Library(name='libamdhip64.so', version='6.4.43484')",
    ]


@pytest.mark.parametrize("question", [COUNT, LIBRARY])
def test_a_runtime_that_cannot_be_loaded(standin_folder: Path, tmp_path: Path, question: str) -> None:
    for version in ("", ".5", ".6", ".7"):
        (tmp_path / f"libamdhip64.so{version}").touch()
    said = run(question, DRIVER.environment(tmp_path))
    assert said.startswith("unavailable: libamdhip64.so cannot be loaded")
    assert [word for word in ("install the HIP runtime", "LD_LIBRARY_PATH", "ROCM_PATH") if word not in said] == []


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ("devices=0", ["hipInit", "hipErrorInvalidDevice (101)"]),  # as on a machine without /dev/kfd
        ("fail=hipGetDeviceCount:1:100", ["hipGetDeviceCount", "hipErrorNoDevice (100)"]),
        ("fail=hipInit:1:3", ["hipInit", "hipErrorNotInitialized (3)"]),
    ],
)
def test_a_machine_without_a_gpu(standin_folder: Path, configuration: str, words: list[str]) -> None:
    said = run(COUNT, DRIVER.environment(standin_folder, configuration))
    assert said.startswith("unavailable: the HIP runtime finds no AMD GPU")
    kfd = Path("/dev/kfd")
    advice = ["/dev/kfd: "] if not os.access(kfd, os.R_OK | os.W_OK) else ["rocminfo", "HIP_VISIBLE_DEVICES", "ROCR_"]
    assert [word for word in [*words, *advice] if word not in said] == []


@pytest.mark.parametrize(
    ("kfd", "mode", "advice"),
    [
        ("kfd", None, ["there is no", "modprobe amdgpu", "--device=/dev/dri"]),
        ("kfd", 0o444, ["may not open", "usermod -a -G render,video"]),
        ("kfd", 0o666, []),
    ],
)
def test_why_the_kernel_driver_cannot_be_opened(tmp_path: Path, kfd: str, mode: int | None, advice: list[str]) -> None:
    program, source, device = tmp_path / "program", tmp_path / "kfd.cpp", tmp_path / kfd
    header = ROOT / "native" / "vendors" / "amd.hpp"
    source.write_text(f'#include "{header}"\n#include <cstdio>\n'
                      "int main(int, char** all) { puts(pinning::kfd_problem(all[1]).c_str()); }\n")
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler: apt-get install g++")
    include = f"-I{ROOT / 'native' / 'include'}"
    subprocess.run(["c++", "-std=c++20", include, "-o", str(program), str(source)], check=True)
    if mode is not None:
        device.touch(mode)
        device.chmod(mode)
    if mode == 0o444 and os.access(device, os.W_OK):
        pytest.skip("root may open everything")
    said = subprocess.run([program, device], text=True, capture_output=True, check=True).stdout.strip()
    assert [word for word in advice if word not in said] == []
    assert bool(said) == bool(advice)


def test_the_library_is_described_without_a_gpu(standin_folder: Path) -> None:
    environment = DRIVER.environment(standin_folder, "devices=0;version=60443484")
    assert run(LIBRARY, environment) == "Library(name='libamdhip64.so', version='6.4.43484')\n"

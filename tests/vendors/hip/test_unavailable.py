# SPDX-License-Identifier: Apache-2.0
"""What the plugin says when something is missing or does not fit, and that importing pinning_hip needs nothing.

Each case is a process of its own, because a runtime once loaded stays.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from standins.libhip import DRIVER


def run(program: str, environment: Mapping[str, str] = os.environ) -> str:
    """What `program` prints, in an interpreter of its own."""
    command = [sys.executable, "-P", "-c", program]
    child = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=300)
    assert child.returncode == 0, child.stderr
    return child.stdout


def tells(question: str) -> str:
    """A program that prints an answer of the plugin."""
    return f"""
from pinning.errors import PluginUnavailableError
from pinning_hip import driver, plugin
try:
    print({question})
except PluginUnavailableError as error:
    print("unavailable:", error)
"""


COUNT = tells("plugin.device_count()")
LIBRARY = tells("plugin.library()")
WARNINGS = tells("plugin.warnings()")

NOT_INSTALLED = "import sys\nsys.modules['hip'] = None\n"  # how Python marks a module that cannot be imported


def test_importing_loads_neither_the_bindings_nor_the_runtime() -> None:
    program = "import sys, pinning_hip; print({name.split('.')[0] for name in sys.modules} & {'hip', 'rocm'})"
    assert run(program) == "set()\n"


@pytest.mark.parametrize("question", [COUNT, LIBRARY])
@pytest.mark.parametrize("hip", [NOT_INSTALLED, "import sys, types\nsys.modules['hip'] = types.ModuleType('hip')\n"])
def test_bindings_that_are_not_installed(question: str, hip: str) -> None:
    said = run(hip + question)
    assert said.startswith("unavailable: the Python package hip-python")
    assert "pip install 'pinning[hip]'" in said


@pytest.mark.parametrize("question", [COUNT, LIBRARY])
def test_a_runtime_that_cannot_be_loaded(standin_folder: Path, tmp_path: Path, question: str) -> None:
    (tmp_path / "libamdhip64.so").touch()
    environment = DRIVER.environment(tmp_path)
    said = run(question, environment)
    assert said.startswith("unavailable: libamdhip64.so cannot be loaded")
    assert [word for word in ("install the HIP runtime", "LD_LIBRARY_PATH", "$ROCM_PATH") if word not in said] == []


def test_a_runtime_without_a_function(standin_folder: Path) -> None:
    said = run(tells("driver.load() or driver.call('hipDeviceReset')"), DRIVER.environment(standin_folder))
    assert said.startswith("unavailable: libamdhip64.so cannot be loaded, or has no hipDeviceReset")


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ("devices=0", ["hipInit", "hipErrorInvalidDevice (101)"]),  # what a machine without /dev/kfd says
        ("fail=hipGetDeviceCount:1:100", ["hipGetDeviceCount", "hipErrorNoDevice (100)"]),
        ("fail=hipInit:1:3", ["hipInit", "hipErrorNotInitialized (3)"]),
    ],
)
@pytest.mark.parametrize(
    ("kfd", "allowed", "advice"),
    [
        ("/nowhere/kfd", True, ["there is no /nowhere/kfd", "amdgpu"]),
        ("/dev/null", False, ["may not open /dev/null", "groups render and video"]),
        ("/dev/null", True, ["rocminfo", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"]),
    ],
)
def test_a_machine_without_a_gpu(
    standin_folder: Path, configuration: str, words: list[str], kfd: str, allowed: bool, advice: list[str]
) -> None:
    machine = (
        "import os, pathlib, pinning_hip.driver as driver\n"
        f"driver._KFD = pathlib.Path({kfd!r})\n"
        f"os.access = lambda path, mode: {allowed} if path == driver._KFD else 1 / 0\n"
    )
    said = run(machine + COUNT, DRIVER.environment(standin_folder, configuration))
    assert said.startswith("unavailable: the HIP runtime finds no AMD GPU")
    assert [word for word in [*words, *advice] if word not in said] == []


def test_a_machine_with_gpus(standin_folder: Path) -> None:
    assert run(COUNT, DRIVER.environment(standin_folder, "devices=2")) == "2\n"


def test_another_try_after_the_runtime_was_not_ready(standin_folder: Path) -> None:
    said = run(COUNT + "print(plugin.device_count())", DRIVER.environment(standin_folder, "fail=hipInit:1:999"))
    assert said.splitlines()[0].startswith("unavailable:")
    assert said.splitlines()[1:] == ["1"]


def test_the_library_is_described_without_a_gpu(standin_folder: Path) -> None:
    environment = DRIVER.environment(standin_folder, "devices=0;version=60443484")
    assert run(LIBRARY, environment) == "Library(name='libamdhip64.so', version='6.4.43484')\n"


@pytest.fixture
def packages(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Pretends that distributions are installed, given as name and version: the environment of a process."""

    def install(**versions: str) -> dict[str, str]:
        for name, version in versions.items():
            metadata = tmp_path / f"{name}-{version}.dist-info" / "METADATA"
            metadata.parent.mkdir()
            metadata.write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
        return {**os.environ, "PYTHONPATH": str(tmp_path)}

    return install


def test_nothing_is_wrong(packages: Callable[..., dict[str, str]]) -> None:
    assert run(WARNINGS, packages(hip_python="10.0.0.0.1.2")) == "[]\n"


def test_interop_is_warned_of(packages: Callable[..., dict[str, str]]) -> None:
    said = run(WARNINGS, packages(hip_python="10.0.0.0.1.2", hip_python_interop="10.0.0.0.1.2"))
    assert [word for word in ("cuda", "pip uninstall hip-python-interop") if word not in said] == []

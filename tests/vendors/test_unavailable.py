# SPDX-License-Identifier: Apache-2.0
"""What every vendor's plugin reports when its library is absent, too old, or not ready yet; importing one loads none.

Each case runs in its own process, because a library is never unloaded.
"""

from __future__ import annotations

import ctypes.util
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from folders import ROOT
from installed import tool
from own_process import run
from standins.libur import OLD_DRIVER
from standins.standin import Driver
from standins.vendors import VENDORS

KFD = Path("/dev/kfd")
MAY_OPEN_KFD = os.access(KFD, os.R_OK | os.W_OK)
KFD_ADVICE = ["rocminfo", "HIP_VISIBLE_DEVICES", "ROCR_"] if MAY_OPEN_KFD else ["/dev/kfd: "]
NO_AMD_GPU = ["the HIP runtime finds no AMD GPU", *KFD_ADVICE]
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
    ("hip", "devices=0", ["hipInit", "hipErrorInvalidDevice (101)", *NO_AMD_GPU]),  # as on a machine without /dev/kfd
    ("hip", "fail=hipGetDeviceCount:1:100", ["hipGetDeviceCount", "hipErrorNoDevice (100)", *NO_AMD_GPU]),
    ("hip", "fail=hipInit:1:3", ["hipInit", "hipErrorNotInitialized (3)", *NO_AMD_GPU]),
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
UNLOADABLE = [
    ("cuda", ["libcuda.so.1"], ["install the NVIDIA driver"]),
    (
        "hip",
        [f"libamdhip64.so{version}" for version in ("", ".5", ".6", ".7")],
        ["install the HIP runtime", "LD_LIBRARY_PATH", "ROCM_PATH"],
    ),
    ("hsa", ["libhsa-runtime64.so.1"], ["hsa-rocr", "libhsa-runtime64-1", "ROCM_PATH"]),
]
Folder = Callable[[str], Path]
Environment = Callable[..., dict[str, str]]


@pytest.fixture
def folder(build: Callable[[Driver], Path]) -> Folder:
    """Builds a vendor's stand-in, and returns its folder."""

    def folder(vendor: str) -> Path:
        VENDORS[vendor].run.require()
        return build(VENDORS[vendor].run.driver)

    return folder


@pytest.fixture
def environment(folder: Folder) -> Environment:
    """Builds a vendor's stand-in, and returns the environment of a process that has it, in a configuration."""
    return lambda vendor, text="": VENDORS[vendor].run.driver.environment(folder(vendor), text)


def asking(vendor: str, question: str = "plugin.device_count()") -> str:
    """A program that prints the answer of the vendor's plugin, or why it is unavailable."""
    return f"""
from pinning.errors import PluginUnavailableError
from pinning_{vendor} import plugin
try:
    print({question})
except PluginUnavailableError as error:
    print("unavailable:", error)
"""


@pytest.mark.parametrize(("vendor", "library"), LIBRARY.items(), ids=list(LIBRARY))
def test_importing_loads_no_library(vendor: str, library: str) -> None:
    program = f"import pinning_{vendor}; print({library!r} in open('/proc/self/maps').read())"
    assert run(program) == "False\n"


@pytest.mark.parametrize(("vendor", "two"), TWO.items(), ids=list(TWO))
def test_a_library_that_starts(environment: Environment, vendor: str, two: str) -> None:
    assert run(asking(vendor), environment(vendor, two)) == "2\n"


@pytest.mark.parametrize(("vendor", "configuration", "words"), DOES_NOT_START)
def test_a_library_that_does_not_start_says_why(
    environment: Environment, vendor: str, configuration: str, words: list[str]
) -> None:
    said = run(asking(vendor), environment(vendor, configuration))
    assert said.startswith("unavailable:")
    assert [word for word in words if word not in said] == []


@pytest.mark.parametrize(("vendor", "failure"), NOT_READY)
def test_another_try_after_it_was_not_ready(environment: Environment, vendor: str, failure: str) -> None:
    program = asking(vendor) + "print(plugin.device_count())"
    said = run(program, environment(vendor, f"fail={failure}")).splitlines()
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
    said = run(asking(vendor), {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    assert said.startswith(f"unavailable: {library} has no {lacks}: it is too old")


@pytest.mark.parametrize("question", ["plugin.device_count()", "plugin.library()"])
@pytest.mark.parametrize(("vendor", "files", "words"), UNLOADABLE, ids=[each[0] for each in UNLOADABLE])
def test_a_library_that_cannot_be_loaded(
    tmp_path: Path, vendor: str, files: list[str], words: list[str], question: str
) -> None:
    """Invalid files are found before what may be installed."""
    for file in files:
        (tmp_path / file).touch()
    environment = VENDORS[vendor].run.driver.environment(tmp_path) | {"ROCM_PATH": str(tmp_path / "rocm")}
    said = run(asking(vendor, question), environment)
    assert said.startswith(f"unavailable: {files[0]} cannot be loaded (")
    assert [word for word in words if word not in said] == []


ALL = """
import sys
for name in {modules}:
    sys.modules[name] = None  # how Python marks a module that cannot be imported
from pinning_{vendor} import plugin
first, second = plugin.device(0), plugin.device(1)
print(first, first.pci_address, len(first.memory_kinds), first.connection(second).name, first.link_to(second))
print(plugin.library().name, *plugin.warnings())
"""


@pytest.mark.parametrize(
    ("vendor", "modules", "link", "library"),
    [("cuda", ["cuda", "cuda.bindings"], "NVLink", "libcuda.so.1"), ("hip", ["hip"], None, "libamdhip64.so")],
)
def test_a_gpu_needs_no_python_package_of_the_vendors(
    environment: Environment, vendor: str, modules: list[str], link: str | None, library: str
) -> None:
    said = run(ALL.format(vendor=vendor, modules=modules), environment(vendor, "devices=2"))
    assert said == f"<{vendor}:0 Stand-in 0> 0001:3b:00.0 3 UNIFIED {link}\n{library}\n"


# ---- CUDA ----


@pytest.mark.parametrize(("configuration", "first"), [("devices=0", "no NVIDIA GPU is visible"), ("", "1")])
def test_a_fork_does_not_start_the_driver_again(
    environment: Environment, tmp_path: Path, configuration: str, first: str
) -> None:
    """Starting NVIDIA's driver again may crash, whether or not it had started."""
    log = tmp_path / "log"
    fork = "if os.fork():\n    os.wait()\n    sys.exit()\n"
    program = f"import os, sys\n{asking('cuda')}sys.stdout.flush()\n{fork}{asking('cuda')}"
    said = run(program, environment("cuda", f"{configuration};log={log}")).splitlines()
    assert first in said[0]
    wanted = ("unavailable: process", "is a fork of process", "CUDA", "'spawn'")
    assert [word for word in wanted if word not in said[1]] == []
    assert [line.split()[0] for line in log.read_text().splitlines()].count("cuInit") == 1


# ---- AMD ----


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
    source.write_text(
        f'#include "{header}"\n#include <cstdio>\n'
        "int main(int, char** all) { puts(pinning::kfd_problem(all[1]).c_str()); }\n"
    )
    include = f"-I{ROOT / 'native' / 'include'}"
    subprocess.run([tool("c++", "apt-get install g++"), "-std=c++20", include, "-o", program, source], check=True)
    if mode is not None:
        device.touch(mode)
        device.chmod(mode)
    if mode == 0o444 and os.access(device, os.W_OK):
        pytest.skip("root may open everything")
    said = subprocess.run([program, device], text=True, capture_output=True, check=True).stdout.strip()
    assert [word for word in advice if word not in said] == []
    assert bool(said) == bool(advice)


def test_hips_library_is_described_without_a_gpu(environment: Environment) -> None:
    said = run(asking("hip", "plugin.library()"), environment("hip", "devices=0;version=60443484"))
    assert said == "Library(name='libamdhip64.so', version='6.4.43484')\n"


def test_hsas_library_is_unavailable_if_it_does_not_start(environment: Environment) -> None:
    said = run(asking("hsa", "plugin.library()"), environment("hsa", f"fail=hsa_init:1:{0x1008}"))
    assert said.startswith("unavailable: the HSA runtime does not start")


def test_a_runtime_in_rocms_own_folder(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "libhsa-runtime64.so.1").touch()  # invalid, and found before one that may be installed
    library = tmp_path / "rocm" / "lib" / "libhsa-runtime64.so.1"
    library.parent.mkdir(parents=True)
    library.symlink_to(folder("hsa") / library.name)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "ROCM_PATH": str(tmp_path / "rocm")}
    assert run(asking("hsa"), environment) == "1\n"


def test_the_real_hsa_runtime_without_the_kernel_driver() -> None:
    if not ctypes.util.find_library("hsa-runtime64"):
        pytest.skip("needs the real HSA runtime: apt-get install libhsa-runtime64-1")
    if KFD.exists():
        pytest.skip("this machine has a /dev/kfd")
    said = run(asking("hsa"))
    assert said.startswith("unavailable: the HSA runtime does not start: hsa_init failed: ")
    wanted = ("HSA_STATUS_ERROR_OUT_OF_RESOURCES (4104)", "no /dev/kfd", "modprobe amdgpu", "--device=/dev/kfd")
    assert [word for word in wanted if word not in said] == []


# ---- Unified Runtime ----

# Hides the folders in which pip installs the loader, so that only the library path can have one.
ELSEWHERE = "import sys, site; sys.prefix = '/nowhere'; site.getuserbase = lambda: '/nowhere'"
WITHOUT = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}


def test_a_loader_that_is_not_installed() -> None:
    said = run(f"{ELSEWHERE}\n{asking('ur')}", WITHOUT)
    if not said.startswith("unavailable:"):
        pytest.skip("this machine has libur_loader.so.0 on its library path")
    assert "libur_loader.so.0" in said
    assert "pip install intel-cmplr-lib-ur intel-cmplr-lib-rt" in said


def test_a_loader_that_lacks_a_library(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libur_loader.so.0").write_bytes(b"no library")
    said = run(f"{ELSEWHERE}\nsys.prefix = {str(tmp_path)!r}\n{asking('ur')}", WITHOUT)
    assert said.startswith("unavailable: libur_loader.so.0")
    assert f"{tmp_path}/lib/libur_loader.so.0: " in said, "the reason is that of the file that is there"


def test_the_loader_is_found_where_pip_puts_it(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "lib").symlink_to(folder("ur"))
    program = f"{ELSEWHERE}\nsys.prefix = {str(tmp_path)!r}\n{asking('ur')}"
    assert run(program, {**WITHOUT, "STANDIN_UR": "devices=3"}) == "3\n"


def test_a_working_directory_that_no_longer_exists(environment: Environment, tmp_path: Path) -> None:
    """Intel's loader ends the process there."""
    leave = f"import os, tempfile\nos.chdir(tempfile.mkdtemp(dir={str(tmp_path)!r}))\nos.rmdir(os.getcwd())\n"
    said = run(leave + asking("ur"), environment("ur", "devices=3"))
    assert said.startswith("unavailable: libur_loader.so.0 cannot start in a working directory that no longer exists")


def test_a_loader_of_2025_2(build: Callable[[Driver], Path], tmp_path: Path) -> None:
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
    said = run(program, OLD_DRIVER.environment(build(OLD_DRIVER), f"devices=2;log={tmp_path}/calls"))
    assert said.splitlines()[0] == "ur:1 True"
    assert "no urUSMHostAllocRegisterExp" in said
    calls = [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()]
    assert [call for call in calls if call in ("urUSMImportExp", "urUSMReleaseExp")] == [
        *("urUSMImportExp", "urUSMReleaseExp")
    ]

# SPDX-License-Identifier: Apache-2.0
"""The content of the wheel, and whether its metadata is true."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from configparser import ConfigParser
from email import message_from_string
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest

from installed import ROOT, installed, wheel

VENDORS = {"cuda", "hip", "host", "hsa", "ur"}
PACKAGES = {"pagetable", "pinning", "pinning_command", "pytest_pinning", *(f"pinning_{vendor}" for vendor in VENDORS)}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def content() -> dict[str, str]:
    """The text of each file in the wheel; empty for native code."""
    with zipfile.ZipFile(wheel()) as archive:
        return {
            name: "" if re.search(r"\.so(\.\d+)?$", name) else archive.read(name).decode()
            for name in archive.namelist()
        }


def folder_of(package: str) -> Path:
    return ROOT / package if (ROOT / package).is_dir() else ROOT / "plugins" / package


@pytest.mark.parametrize("package", sorted(PACKAGES))
@pytest.mark.parametrize("pattern", ["**/*.py", "**/*.pxd", "**/*.h", "**/*.hpp", "**/*.cmake", "py.typed"])
def test_the_wheel_has_every_file_of_a_package(content: dict[str, str], package: str, pattern: str) -> None:
    folder = folder_of(package)
    expected = {f"{package}/{path.relative_to(folder).as_posix()}" for path in folder.glob(pattern)}
    assert expected <= set(content)


def test_the_stubs_of_the_wheel_are_those_of_its_sources(content: dict[str, str], tmp_path: Path) -> None:
    if find_spec("Cython") is None:
        pytest.skip("needs Cython: pip install cython")
    packages = [str(ROOT / package) for package in ("pagetable", "pinning")]
    subprocess.run([sys.executable, ROOT / "tools" / "stub.py", tmp_path, *packages], check=True)
    stubs = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.pyi")}
    assert {name: text for name, text in content.items() if name.endswith(".pyi")} == stubs
    assert len(stubs) > 20


def test_the_wheel_has_every_header(content: dict[str, str]) -> None:
    folders = ROOT / "native" / "include", ROOT / "native" / "python"
    expected = {
        f"pinning/include/{path.relative_to(folder).as_posix()}" for folder in folders for path in folder.rglob("*.h*")
    }
    assert {"pinning/include/pinning/pinning.h", "pinning/include/pinning/python_device.hpp"} <= expected
    assert {name for name in content if name.startswith("pinning/include/")} == expected


@pytest.mark.parametrize(
    "name",
    [
        "pagetable/include/pagetable/page_table.hpp",
        "pagetable/cmake/pagetable-config.cmake",
        "pagetable/__init__.pxd",
        "pagetable/table.pxd",
        "pagetable/table.pyi",
        "pinning/include/pinning/pinned_map.hpp",
        "pinning/include/pinning/pinning.h",
        "pinning/lib/libpinning.so",
        "pinning/lib/libpinning.so.0",
        "pinning/lib/libpinning_run.so",
        "pinning/lib/cmake/pinning/pinning-config.cmake",
        "pinning/lib/cmake/pinning/pinning-config-version.cmake",
        "pinning/lib/pkgconfig/pinning.pc",
        "pinning/map/pinned_map.pxd",
        "pinning/map/pinned_map.pyi",
        *(f"{package}/py.typed" for package in sorted(PACKAGES)),
    ],
)
def test_the_wheel_has_what_others_build_with(content: dict[str, str], name: str) -> None:
    assert name in content


def test_the_wheel_has_the_native_modules(content: dict[str, str]) -> None:
    modules = [name for name in content if name.endswith(".so") and not name.startswith("pinning/lib/")]
    native = {name.partition(".")[0] for name in modules}
    sources = {path for package in ("pagetable", "pinning") for path in (ROOT / package).rglob("*.pyx")}
    assert native == {path.relative_to(ROOT).with_suffix("").as_posix() for path in sources}


def test_the_wheel_has_nothing_else(content: dict[str, str]) -> None:
    tops = {name.split("/")[0] for name in content}
    assert tops == PACKAGES | {f"pinning-{PROJECT['version']}.dist-info"}
    kinds = {PurePosixPath(name).suffix for name in content if ".dist-info/" not in name}
    # So no generated .cpp.
    assert kinds <= {".py", ".pyi", ".pyx", ".pxd", ".h", ".hpp", ".cmake", ".pc", ".so", ".0", ".typed"}


def test_the_wheel_says_what_it_is(content: dict[str, str]) -> None:
    info = f"pinning-{PROJECT['version']}.dist-info"
    metadata = message_from_string(content[f"{info}/METADATA"])
    assert (metadata["Name"], metadata["Version"]) == ("pinning", PROJECT["version"])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    extras = {
        "cli",
        "conformance",
        "cuda",
        "cuda-core",
        "dask",
        "docs",
        "hip",
        "nixl",
        "numba",
        "plot",
        "ray",
        "test",
        "ur",
    }
    assert extras | {"ur-cpu"} == set(metadata.get_all("Provides-Extra", []))
    assert content[f"{info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_text()
    assert "Root-Is-Purelib: false" in content[f"{info}/WHEEL"]
    entry_points = ConfigParser()
    entry_points.read_string(content[f"{info}/entry_points.txt"])
    assert dict(entry_points["console_scripts"]) == {"pinning": "pinning_command:main"}
    assert dict(entry_points["pinning.plugins"]) == {vendor: f"pinning_{vendor}:plugin" for vendor in VENDORS}
    assert dict(entry_points["pytest11"]) == {"pinning": "pytest_pinning"}


@pytest.mark.parametrize(
    ("file", "prefix"),
    [("pinning/include/pinning/pinning.h", "PINNING"), ("pagetable/include/pagetable/page_table.hpp", "PAGETABLE")],
)
def test_the_headers_version_is_the_projects(content: dict[str, str], file: str, prefix: str) -> None:
    version = PROJECT["version"]
    defined = dict(re.findall(rf"^#define {prefix}_VERSION(\w*) (.+)$", content[file], re.MULTILINE))
    major, minor, patch = version.split(".")
    assert defined == {"": f'"{version}"', "_MAJOR": major, "_MINOR": minor, "_PATCH": patch}
    assert f"PACKAGE_VERSION {version})" in content["pagetable/cmake/pagetable-config-version.cmake"]


def test_the_wheel_names_nobodys_folders(content: dict[str, str]) -> None:
    assert [name for name, text in content.items() if str(ROOT) in text] == []


def test_an_installed_wheel_finds_its_plugins_and_headers(tmp_path: Path) -> None:
    program = """
import importlib.metadata, pagetable, pinning
print(importlib.metadata.version("pinning"))
print([report.name for report in pinning.plugins()], [device.name for device in pinning.devices()][-1])
print(*[pagetable.__file__, pinning.__file__, pagetable.table.__file__, pinning.map.pinned_map.__file__], sep="\\n")
print(*[pagetable.cmake_dir(), pagetable.include_dir(), *pinning.build.include_dirs()], sep="\\n")
print(*[folder / "libpinning.so" for folder in pinning.build.library_dirs()], sep="\\n")
"""
    environment = installed()
    version, plugins, *places = environment.run("-c", program, folder=tmp_path).splitlines()
    assert version == PROJECT["version"]
    assert plugins == "['cuda', 'hip', 'hsa', 'ur', 'host'] host:0"
    for place in places:
        assert Path(place).is_relative_to(environment.site)
        assert Path(place).exists()


@pytest.mark.parametrize("package", ["pagetable", "pinning"])
def test_a_source_tree_says_that_it_is_one(tmp_path: Path, package: str) -> None:
    """Python finds it if it is started in a checkout and does not find an installed wheel first."""
    for name in ("pagetable", "pinning"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    alone = ("-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {package}")
    failed = subprocess.run([sys.executable, *alone], capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert f"{tmp_path} is a source tree, which has no native modules: run `pip install .`" in failed.stderr


def test_python_m_pagetable_says_where_things_are(tmp_path: Path) -> None:
    environment = installed()
    cmake = Path(environment.run("-m", "pagetable", "--cmake-dir", folder=tmp_path).strip())
    include = Path(environment.run("-m", "pagetable", "--include-dir", folder=tmp_path).strip())
    assert (cmake / "pagetable-config.cmake").is_file()
    assert (include / "pagetable" / "page_table.hpp").is_file()
    nothing = subprocess.run([environment.python, "-m", "pagetable"], cwd=tmp_path, capture_output=True, text=True)
    assert nothing.returncode == 2
    assert "--cmake-dir" in nothing.stderr


# What a stub of a Cython module cannot say: Cython's own names, and the parameters of __cinit__ and of slots, which
# are not visible at run time; and a TypeVarTuple, which stubtest does not support.
CYTHON = r"""
.*__(reduce|setstate)_cython__
.*\.__pyx_capi__
.*\.__test__
.*\.__(init|contains|eq|buffer)__
pinning\.arena\.space\.Arguments
"""


def stubtest(folder: Path, *modules: str, search: Path | None = None) -> subprocess.CompletedProcess[str]:
    if find_spec("mypy") is None:
        pytest.skip("needs mypy: pip install mypy")
    (folder / "allowed").write_text(CYTHON)
    (folder / "mypy.ini").write_text(f"[mypy]\nmypy_path = {search}\n" if search else "[mypy]\n")
    options = [
        "--allowlist",
        "allowed",
        "--ignore-unused-allowlist",
        "--ignore-disjoint-bases",
        "--ignore-missing-stub",
    ]
    command = [installed().python, "-m", "mypy.stubtest", *modules, "--mypy-config-file", "mypy.ini", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_stubs_agree_with_the_modules(content: dict[str, str], tmp_path: Path) -> None:
    stubs = [name.removesuffix(".pyi").replace("/", ".") for name in content if name.endswith(".pyi")]
    done = stubtest(tmp_path, *stubs)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_stub_that_is_wrong_is_noticed(content: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "stubs" / "pagetable").mkdir(parents=True)
    for name, text in content.items():
        if name.startswith("pagetable/") and name.endswith((".py", ".pyi", ".typed")):
            (tmp_path / "stubs" / name).write_text(text)
    stub = tmp_path / "stubs" / "pagetable" / "table.pyi"
    stub.write_text(stub.read_text().replace("def overlapping(", "def overlaping("))
    done = stubtest(tmp_path, "pagetable.table", search=tmp_path / "stubs")
    assert done.returncode == 1
    assert "overlaping" in done.stdout

# SPDX-License-Identifier: Apache-2.0
"""libpinning.so in other projects' builds: by find_package and by pkg-config, from the wheel and from native/ alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from installed import ROOT, Installed, installed, run, tool
from limits import needs_room_to_lock
from pinning.build import library_dirs

RUNTIME = ROOT / "examples" / "c_runtime"
MAP = ROOT / "examples" / "cpp_map" / "mlock_map.cpp"
ROOM = 2 << 20  # bytes that the program locks, and some pages
LAST_LINE = "copies: 5 fast, 0 slow; left: 0 locked, 0 on the device"


@pytest.fixture(scope="module")
def package() -> Installed:
    return installed()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``cmake --install`` installs from what `make native` packs, in a folder that has been moved since."""
    cmake = tool("cmake", "pip install cmake")
    folder = tmp_path_factory.mktemp("alone")
    run("make", "-C", ROOT, "native", f"TARBALL={folder / 'native.tar.gz'}", folder=folder)
    run("tar", "-xf", folder / "native.tar.gz", folder=folder)
    run(cmake, "-S", "pinning-native/native", "-B", "build", "-DCMAKE_INSTALL_LIBDIR=lib", folder=folder)
    # Not compiled again, which would take minutes: they are the same.
    shutil.copy(library_dirs()[0] / "libpinning.so.0", folder / "build")
    shutil.copy(library_dirs()[0] / "libpinning_run.so", folder / "build" / "tool")
    (folder / "build" / "libpinning.so").symlink_to("libpinning.so.0")
    run(cmake, "--install", folder / "build", "--prefix", folder / "installed", folder=folder)
    return (folder / "installed").rename(folder / "moved")


def build_with_cmake(pinning_dir: Path, folder: Path) -> str:
    needs_room_to_lock(ROOM)
    cmake = tool("cmake", "pip install cmake")
    tool("cc", "apt-get install gcc")
    run(cmake, "-S", RUNTIME, "-B", folder, f"-Dpinning_DIR={pinning_dir}", folder=folder)
    run(cmake, "--build", folder, folder=folder)
    return run(folder / "program", folder=folder).splitlines()[-1]


def build_with_pkg_config(search: Path, folder: Path) -> str:
    needs_room_to_lock(ROOM)
    pkg_config = tool("pkg-config", "apt-get install pkgconf")
    compiler = tool("cc", "apt-get install gcc")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(search)}
    command = [pkg_config, "--cflags", "--libs", "pinning"]
    flags = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    sources = [RUNTIME / "program.c", RUNTIME / "mapping.c"]
    # As a user does for a library outside the loader's folders.
    run_path = f"-Wl,-rpath,{search.parent}"
    run(compiler, *sources, *flags, run_path, "-o", folder / "program", folder=folder)
    run(tool("c++", "apt-get install g++"), "-std=c++20", "-fsyntax-only", MAP, *flags[:-1], folder=folder)
    return run(folder / "program", folder=folder).splitlines()[-1]


def test_cmake_finds_what_the_wheel_has(package: Installed, tmp_path: Path) -> None:
    where = package.run("-m", "pinning", "--cmake-dir", folder=tmp_path).strip()
    assert build_with_cmake(Path(where), tmp_path) == LAST_LINE


def test_pkg_config_finds_what_the_wheel_has(package: Installed, tmp_path: Path) -> None:
    where = package.run("-m", "pinning", "--pkgconfig-dir", folder=tmp_path).strip()
    assert build_with_pkg_config(Path(where), tmp_path) == LAST_LINE


def test_cmake_finds_what_native_alone_installs(alone: Path, tmp_path: Path) -> None:
    assert build_with_cmake(alone / "lib" / "cmake" / "pinning", tmp_path) == LAST_LINE


def test_pkg_config_finds_what_native_alone_installs(alone: Path, tmp_path: Path) -> None:
    assert build_with_pkg_config(alone / "lib" / "pkgconfig", tmp_path) == LAST_LINE


def test_native_alone_installs_no_header_that_needs_python(alone: Path) -> None:
    headers = list((alone / "include").rglob("*.h*"))
    assert {"pinning.h", "pinned_map.hpp", "page_table.hpp"} <= {path.name for path in headers}
    assert [path.name for path in headers if "Python.h" in path.read_text()] == []


def test_cmake_finds_the_page_table_that_native_alone_installs(alone: Path, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(p LANGUAGES CXX)\nfind_package(pagetable 0.1 REQUIRED)\n"
        "add_executable(p p.cpp)\ntarget_link_libraries(p PRIVATE pagetable::pagetable)\n"
    )
    (tmp_path / "p.cpp").write_text(
        "#include <pagetable/page_table.hpp>\nint main() { return pagetable::PageTable<>().find(0) ? 1 : 0; }\n"
    )
    build, where = tmp_path / "build", f"-DCMAKE_PREFIX_PATH={alone}"
    run(tool("cmake", "pip install cmake"), "-S", tmp_path, "-B", build, where, folder=tmp_path)
    run("cmake", "--build", build, folder=tmp_path)
    run(build / "p", folder=tmp_path)


@pytest.mark.parametrize("header", ["pagetable/page_table.hpp", "pinning/pinned_map.hpp", "pinning/vendor.hpp"])
def test_an_older_mode_of_the_compiler_is_told_what_is_needed(alone: Path, tmp_path: Path, header: str) -> None:
    (tmp_path / "p.cpp").write_text(f"#include <{header}>\n")
    command = [tool("c++", "apt-get install g++"), "-std=c++17", "-fsyntax-only", f"-I{alone / 'include'}", "p.cpp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    first = next(line for line in done.stderr.splitlines() if "error" in line)
    assert "needs C++20: compile with -std=c++20" in first, done.stderr


@pytest.mark.parametrize("package", ["pinning", "pagetable"])
def test_cmake_refuses_another_version(alone: Path, tmp_path: Path, package: str) -> None:
    cmake = tool("cmake", "pip install cmake")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(p LANGUAGES C)\nfind_package(PACKAGE 0.2 REQUIRED)\n".replace(
            "PACKAGE", package
        )
    )
    where = f"-D{package}_DIR={alone / 'lib' / 'cmake' / package}"
    done = subprocess.run([cmake, "-S", tmp_path, "-B", tmp_path / "b", where], capture_output=True, text=True)
    assert done.returncode == 1
    assert "0.1.0" in done.stderr
